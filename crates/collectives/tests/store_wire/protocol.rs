//! Who follows the protocol is served: each operation, in any pieces, for many at once.

use std::io::Read;

use everburn_collectives::store::Store;

use crate::raw::{
    LONG, Raw, VALIDATE, assert_serves, client, list, message, number, open, serve, string,
};

#[test]
fn every_operation_answers_as_pytorch_does() {
    let server = serve(open());
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
    let server = serve(open());
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
fn a_client_that_does_not_read_is_held_back_and_others_are_served() {
    let server = serve(open());
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
fn a_thousand_clients_are_served() {
    // Which allows this process as many descriptors as both ends of the connections need.
    let server = serve(open());
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
