//! A server that answers waits for missing keys, as PyTorch's does when another client compares the key with a value.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use everburn_collectives::store::{Store, StoreError, TcpStore};
use everburn_tests::assert_matches;

use crate::raw::{LONG, client, open, serve};

const WAIT: u8 = 6;
const STOP_WAITING: u8 = 0;

/// A read that waits for its key.
type Read = fn(&TcpStore) -> Result<Vec<u8>, StoreError>;

/// Passes everything between a client and `server`, but answers the first `early` waits itself.
struct Early {
    address: SocketAddr,
    /// The number of waits that clients have sent.
    waits: Arc<AtomicUsize>,
}

impl Early {
    fn before(server: SocketAddr, early: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let waits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waits);
        // Both end with the process: nobody connects after a test.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let counted = Arc::clone(&counted);
                let server = TcpStream::connect(server).unwrap();
                thread::spawn(move || pass(client, server, early, &counted));
            }
        });
        Self { address, waits }
    }

    fn client(&self) -> TcpStore {
        TcpStore::connect(&self.address.to_string(), open()).unwrap()
    }
}

/// A client waits on a connection of its own and sends a wait in one write, so that a wait is what was read at once.
fn pass(mut client: TcpStream, mut server: TcpStream, early: usize, waits: &AtomicUsize) {
    let mut replies = [&server, &client].map(|stream| stream.try_clone().unwrap());
    thread::spawn(move || {
        let [from, to] = &mut replies;
        // Either end may go first.
        let _ = std::io::copy(from, to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = client.read(&mut bytes) {
        let is_early = bytes[0] == WAIT && waits.fetch_add(1, Ordering::SeqCst) < early;
        let sent = match is_early {
            true => client.write_all(&[STOP_WAITING]),
            false => server.write_all(&bytes[..length]),
        };
        if sent.is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

#[test]
fn a_wait_that_is_answered_early_is_repeated_until_the_keys_are_there() {
    let server = serve(open());
    let writer = client(&server);
    let early = Early::before(server.local_addr(), 3);
    let reads: [Read; 3] = [
        |store| store.get("get"),
        |store| {
            let values = store.multi_get_within(&["there", "multi_get"], LONG)?;
            Ok(values.concat())
        },
        |store| {
            store.wait(&["there", "wait"])?;
            Ok(store.try_get("wait")?.unwrap_or_default())
        },
    ];
    writer.set("there", b"").unwrap();
    for (read, key) in reads.into_iter().zip(["get", "multi_get", "wait"]) {
        early.waits.store(0, Ordering::SeqCst);
        let store = early.client();
        let value = thread::scope(|scope| {
            let reading = scope.spawn(|| read(&store));
            // The fourth wait is the one that the server answers.
            while early.waits.load(Ordering::SeqCst) < 4 && !reading.is_finished() {
                thread::yield_now();
            }
            writer.set(key, b"late").unwrap();
            reading.join().unwrap()
        });
        assert_eq!(value.unwrap(), b"late", "{key}");
    }
}

#[test]
fn a_server_that_answers_every_wait_at_once_is_asked_seldom_and_until_the_deadline() {
    let server = serve(open());
    let early = Early::before(server.local_addr(), usize::MAX);
    let error = early
        .client()
        .get_within("never", Duration::from_millis(400))
        .unwrap_err();
    assert_matches!(&error, StoreError::Timeout { keys, .. } if keys == &["never"]);
    // Pauses of 1, 2, 4 ms and so on up to 100 ms, each half as long by chance; fewer on a busy machine.
    let waits = early.waits.load(Ordering::SeqCst);
    assert!((1..=16).contains(&waits), "{waits} waits");
}
