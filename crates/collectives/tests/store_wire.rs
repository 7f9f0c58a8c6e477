//! The server as bytes on the wire see it: PyTorch's protocol, and those who do not follow it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use everburn_collectives::store::{
    AUTH_OPCODE, Store, StoreError, StoreOptions, TcpStore, TcpStoreServer,
};
use proptest::prelude::*;

const LONG: Duration = Duration::from_secs(60);
const VALIDATE: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];

fn serve(options: StoreOptions) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap()
}

fn client(server: &TcpStoreServer) -> TcpStore {
    let options = StoreOptions {
        timeout: LONG,
        ..StoreOptions::default()
    };
    TcpStore::connect(&server.local_addr().to_string(), options).unwrap()
}

/// The server still serves its clients.
fn assert_serves(server: &TcpStoreServer) {
    let store = client(server);
    store.set("alive", b"yes").unwrap();
    assert_eq!(store.get("alive").unwrap(), b"yes");
}

/// A connection on which a test writes and expects raw bytes.
struct Raw(TcpStream);

impl Raw {
    fn connect(server: &TcpStoreServer) -> Self {
        let stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    fn validated(server: &TcpStoreServer) -> Self {
        let mut raw = Self::connect(server);
        raw.send(&VALIDATE);
        raw
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn expect(&mut self, expected: &[u8]) {
        let mut reply = vec![0; expected.len()];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply, expected);
    }

    fn ask(&mut self, request: &[u8], reply: &[u8]) {
        self.send(request);
        self.expect(reply);
    }

    /// The server has closed this connection; returns what it said before.
    fn closed(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("the connection was not closed: {error}"),
        }
    }
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_ne_bytes()[..], bytes].concat()
}

fn message(opcode: u8, parts: &[&[u8]]) -> Vec<u8> {
    let strings = parts.iter().flat_map(|part| string(part));
    std::iter::once(opcode).chain(strings).collect()
}

fn list(opcode: u8, count: u64, parts: &[&[u8]]) -> Vec<u8> {
    let tail = message(opcode, parts);
    [&[opcode][..], &count.to_ne_bytes(), &tail[1..]].concat()
}

fn number(n: i64) -> [u8; 8] {
    n.to_ne_bytes()
}

#[test]
fn every_operation_answers_as_pytorch_does() {
    let server = serve(StoreOptions::default());
    let mut raw = Raw::connect(&server);
    raw.send(&VALIDATE);
    raw.ask(&[13, 1, 2, 3, 4], &[1, 2, 3, 4]); // PING
    raw.ask(
        &[&message(4, &[b"init/"])[..], &number(1)].concat(),
        &number(1),
    ); // ADD
    raw.send(&message(1, &[b"/k", b"value"])); // SET has no reply
    raw.ask(&message(3, &[b"/k"]), &string(b"value")); // GET
    raw.ask(&message(3, &[b"/absent"]), &string(b"")); // GET of nothing
    raw.ask(&message(2, &[b"/k", b"value", b"new"]), &string(b"new")); // COMPARE_SET
    raw.ask(
        &message(2, &[b"/c", b"expected", b"x"]),
        &string(b"expected"),
    );
    raw.ask(&list(5, 2, &[b"/k", b"init/"]), &[0]); // CHECK: ready
    raw.ask(&list(5, 2, &[b"/k", b"/c"]), &[1]); // CHECK: not ready
    raw.ask(&list(6, 1, &[b"/k"]), &[0]); // WAIT
    raw.ask(&[7], &number(2)); // GETNUMKEYS
    raw.send(&message(9, &[b"/k", b"er"])); // APPEND has no reply
    raw.send(&message(9, &[b"/a", b"b"]));
    let both = [string(b"newer"), string(b"b")].concat();
    raw.ask(&list(10, 2, &[b"/k", b"/a"]), &both); // MULTI_GET
    raw.send(&list(11, 2, &[b"/m", b"1", b"/n", b"2"])); // MULTI_SET has no reply
    raw.ask(&message(3, &[b"/n"]), &string(b"2"));
    raw.ask(&message(8, &[b"/n"]), &number(1)); // DELETE_KEY
    raw.ask(&message(8, &[b"/n"]), &number(0));
    raw.ask(&[12], &[1]); // CANCEL_WAIT without a wait
    raw.send(&list(6, 1, &[b"/never"]));
    raw.ask(&[12], &[1]); // CANCEL_WAIT of a wait
    raw.ask(&message(16, &[b"/q"]), &number(0)); // QUEUE_LEN
    raw.ask(&message(15, &[b"/q"]), &number(0)); // QUEUE_POP of nothing
    raw.send(&message(14, &[b"/q", b"x"])); // QUEUE_PUSH has no reply
    raw.send(&message(14, &[b"/q", b"y"]));
    raw.ask(&message(16, &[b"/q"]), &number(2));
    raw.ask(&list(6, 1, &[b"/q"]), &[0]); // a queue counts as a key
    raw.ask(
        &message(15, &[b"/q"]),
        &[&number(2)[..], &string(b"x")].concat(),
    );
    raw.ask(
        &message(15, &[b"/q"]),
        &[&number(1)[..], &string(b"y")].concat(),
    );
    let barrier = [&message(18, &[b"/b"])[..], &number(1)].concat();
    raw.ask(&barrier, &[0]); // BARRIER of one
    for key in [&b"/k"[..], b"/a", b"/m", b"/b"] {
        raw.ask(&message(8, &[key]), &number(1));
    }
    raw.ask(&[17], &[&number(1)[..], &string(b"init/")].concat()); // LIST_KEYS
}

#[test]
fn requests_may_come_in_any_pieces() {
    let server = serve(StoreOptions::default());
    let mut raw = Raw::connect(&server);
    // Each byte by itself, validation and a MULTI_SET included; then many in one piece.
    let requests = [
        &VALIDATE[..],
        &list(11, 2, &[b"/m", b"1", b"/n", b"2"]),
        &[&message(4, &[b"/m"])[..], &number(1)].concat(),
    ]
    .concat();
    for byte in requests {
        raw.send(&[byte]);
    }
    raw.expect(&number(2));
    let many = [&message(4, &[b"/m"])[..], &number(1)]
        .concat()
        .repeat(1000);
    raw.send(&many);
    for n in 3..1003 {
        raw.expect(&number(n));
    }
}

#[test]
fn a_barrier_opens_when_all_have_come() {
    let server = serve(StoreOptions::default());
    let barrier = [&message(18, &[b"/b"])[..], &number(3)].concat();
    let mut ranks: Vec<Raw> = (0..3).map(|_| Raw::validated(&server)).collect();
    for rank in &mut ranks {
        rank.send(&barrier);
    }
    for rank in &mut ranks {
        rank.expect(&[0]);
    }
    ranks[0].ask(&message(3, &[b"/b"]), &string(b"3"));
}

#[test]
fn a_client_that_does_not_read_is_held_back_and_others_are_served() {
    let server = serve(StoreOptions::default());
    let store = client(&server);
    store.set("large", &vec![1; 4 << 20]).unwrap();
    let mut greedy = Raw::validated(&server);
    // 400 MiB of replies would be owed, were they all made at once.
    greedy.send(&message(3, &[b"/large"]).repeat(100));
    assert_serves(&server);
    for _ in 0..100 {
        let mut reply = vec![0; 8 + (4 << 20)];
        greedy.0.read_exact(&mut reply).unwrap();
    }
}

#[test]
fn a_wrong_magic_is_refused_at_once() {
    let server = serve(StoreOptions {
        handshake_timeout: Duration::from_secs(3600),
        ..StoreOptions::default()
    });
    for wrong in [
        &[0, 1, 2, 3, 4][..],
        b"GET / HTTP/1.1\r\n",
        &[1],
        &[13, 0, 0, 0, 0],
    ] {
        let mut raw = Raw::connect(&server);
        raw.send(wrong);
        assert_eq!(raw.closed(), b"");
    }
    assert_serves(&server);
}

#[test]
fn absurd_lengths_and_opcodes_close_only_their_connection() {
    let server = serve(StoreOptions::default());
    let huge = u64::MAX.to_ne_bytes();
    for bad in [
        vec![99],
        vec![0xEB],
        vec![19],
        [&[1][..], &huge].concat(),
        [&message(1, &[b"/k"])[..], &(9_u64 << 20).to_ne_bytes()].concat(),
        [&[6][..], &huge].concat(),
        [&[11][..], &131_073_u64.to_ne_bytes()].concat(),
        VALIDATE.to_vec(),
    ] {
        let mut raw = Raw::validated(&server);
        raw.send(&bad);
        // What is bad only with its arguments gets some.
        let _ = raw.0.write_all(&[0; 16]);
        assert_eq!(raw.closed(), b"", "{bad:?}");
    }
    assert_serves(&server);
}

#[test]
fn who_says_nothing_or_half_a_message_is_dropped_after_the_deadline() {
    let server = serve(StoreOptions {
        handshake_timeout: Duration::from_millis(50),
        request_timeout: Duration::from_millis(50),
        ..StoreOptions::default()
    });
    let silent = Raw::connect(&server);
    let mut half_validated = Raw::connect(&server);
    half_validated.send(&VALIDATE[..3]);
    let mut half_request = Raw::validated(&server);
    half_request.send(&message(1, &[b"/k", b"value"])[..12]);
    for raw in [silent, half_validated, half_request] {
        assert_eq!(raw.closed(), b"");
    }
    // Who is validated and waits, or has nothing to say, is not dropped.
    let mut waiting = Raw::validated(&server);
    waiting.send(&list(6, 1, &[b"/k"]));
    let silent = Raw::connect(&server);
    assert_eq!(silent.closed(), b"", "a deadline has passed meanwhile");
    client(&server).set("k", b"").unwrap();
    waiting.expect(&[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_bytes_do_not_hurt_the_server(
        bytes in proptest::collection::vec(any::<u8>(), 1..400),
        validated in any::<bool>(),
    ) {
        let server = serve(StoreOptions::default());
        let mut raw = if validated { Raw::validated(&server) } else { Raw::connect(&server) };
        let _ = raw.0.write_all(&bytes);
        let _ = raw.0.shutdown(Shutdown::Write);
        assert_serves(&server);
        raw.closed();
    }
}

/// Both ends of a thousand connections are in this process.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn a_thousand_clients_are_served() {
    allow_many_files();
    let server = serve(StoreOptions::default());
    let mut clients: Vec<Raw> = (0..1000).map(|_| Raw::validated(&server)).collect();
    let add = [&message(4, &[b"/n"])[..], &number(1)].concat();
    for client in &mut clients {
        client.send(&add);
    }
    let mut sums: Vec<i64> = clients
        .iter_mut()
        .map(|client| {
            let mut reply = [0; 8];
            client.0.read_exact(&mut reply).unwrap();
            i64::from_ne_bytes(reply)
        })
        .collect();
    sums.sort_unstable();
    assert!(sums.into_iter().eq(1..=1000));
    assert_eq!(server.connections(), 1000);
    drop(clients);
    assert!(server.wait_until_unused(LONG));
}

fn with_token(token: Option<&str>) -> StoreOptions {
    StoreOptions {
        job_token: token.map(str::to_owned),
        timeout: LONG,
        ..StoreOptions::default()
    }
}

#[test]
fn an_open_address_demands_the_token() {
    let open = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let error = TcpStoreServer::bind(open, with_token(None)).unwrap_err();
    assert!(matches!(error, StoreError::TokenRequired { .. }), "{error}");
    let text = error.to_string();
    for part in ["0.0.0.0", "EVERBURN_JOB_TOKEN", "127.0.0.1"] {
        assert!(text.contains(part), "{part} in: {text}");
    }

    let server = TcpStoreServer::bind(open, with_token(Some("secret"))).unwrap();
    let address = format!("127.0.0.1:{}", server.local_addr().port());
    let store = TcpStore::connect(&address, with_token(Some("secret"))).unwrap();
    store.set("k", b"v").unwrap();
    // A connection of its own for the wait passes the gate, too.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get_within("later", LONG));
        store.set("later", b"now").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), b"now");
    });
    for (token, expected) in [(Some("wrong"), "token is wrong"), (None, "has none")] {
        let error = TcpStore::connect(&address, with_token(token)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    // PyTorch's first message is refused, as is a token cut short.
    let at_loopback = SocketAddr::new(
        IpAddr::from(Ipv4Addr::LOCALHOST),
        server.local_addr().port(),
    );
    for first in [VALIDATE.to_vec(), message(AUTH_OPCODE, &[b"secre"])] {
        let mut raw = Raw(TcpStream::connect(at_loopback).unwrap());
        raw.0.set_read_timeout(Some(LONG)).unwrap();
        raw.send(&first);
        assert_eq!(raw.closed(), [AUTH_OPCODE]);
    }
}

#[test]
fn a_server_stops_with_clients_connected_and_frees_its_port() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = TcpStoreServer::from_listener(listener, StoreOptions::default()).unwrap();
    assert_eq!(server.local_addr(), address);
    let store = client(&server);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get_within("never", LONG));
        // The second connection is that of the wait.
        while server.connections() < 2 {
            thread::yield_now();
        }
        let taken = TcpStoreServer::bind(address, StoreOptions::default()).unwrap_err();
        assert!(matches!(taken, StoreError::AddressInUse { .. }), "{taken}");
        assert!(taken.to_string().contains(&address.to_string()), "{taken}");
        drop(server);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("has probably ended"), "{error}");
    });
    let error = store
        .set("k", b"")
        .and_then(|()| store.get("k"))
        .unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    TcpStoreServer::bind(address, StoreOptions::default()).unwrap();
}

#[test]
fn a_client_may_come_before_its_server() {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    thread::scope(|scope| {
        // The listener accepts for nobody until the server takes it over.
        let early = scope.spawn(move || {
            let options = with_token(None);
            TcpStore::connect(&address.to_string(), options)?.add("n", 1)
        });
        let server = TcpStoreServer::from_listener(probe, StoreOptions::default()).unwrap();
        assert_eq!(early.join().unwrap().unwrap(), 1);
        drop(server);
    });
}

#[test]
fn queues_and_batches_by_the_client() {
    let server = serve(StoreOptions::default());
    let store = client(&server);
    store.append("log", b"a").unwrap();
    store.append("log", b"b").unwrap();
    store.multi_set(&[("x", b"1"), ("y", b"")]).unwrap();
    let values = store.multi_get(&["y", "log", "x"]).unwrap();
    assert_eq!(values, [&b""[..], b"ab", b"1"]);
    assert_eq!(store.queue_pop("q").unwrap(), None);
    thread::scope(|scope| {
        let takers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| store.queue_pop_within("q", LONG).unwrap()))
            .collect();
        let other = client(&server);
        for item in 0..5_u8 {
            other.queue_push("q", &[item]).unwrap();
        }
        let mut taken: Vec<u8> = takers
            .into_iter()
            .map(|taker| taker.join().unwrap()[0])
            .collect();
        taken.push(store.queue_pop("q").unwrap().unwrap()[0]);
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
    });
    assert_eq!(store.queue_len("q").unwrap(), 0);
    let error = store
        .queue_pop_within("q", Duration::from_millis(10))
        .unwrap_err();
    assert!(
        matches!(&error, StoreError::Timeout { keys, .. } if keys == &["q"]),
        "{error}"
    );
}
