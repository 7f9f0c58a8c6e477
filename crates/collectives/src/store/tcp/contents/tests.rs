//! What clients that ask in turn are answered. What the store holds is compared with a model by [`super::hostile`].

use super::*;

const NOBODY: Vec<ClientId> = Vec::new();

/// A store whose clients ask in turn.
struct Clients {
    contents: Contents,
}

impl Clients {
    fn new() -> Self {
        Self {
            contents: Contents::new(10_000),
        }
    }

    /// The reply to `client` and the clients woken.
    fn ask(&mut self, client: ClientId, request: &Request<'_>) -> (Bytes, Vec<ClientId>) {
        let (mut reply, mut woken) = (Vec::new(), Vec::new());
        self.contents
            .apply(client, request, &mut reply, &mut woken)
            .expect("the request is one that can be answered");
        (reply, woken)
    }
}

#[test]
fn a_wait_ends_when_all_keys_exist_at_one_time() {
    let mut store = Clients::new();
    let wait = Request::Wait(vec![b"a", b"b", b"a"]);
    assert_eq!(store.ask(1, &wait), (vec![], vec![]));
    assert_eq!(store.ask(2, &Request::Set(b"a", b"")).1, NOBODY);
    store.ask(2, &Request::Delete(b"a"));
    assert_eq!(
        store.ask(2, &Request::Set(b"b", b"")).1,
        NOBODY,
        "a is gone"
    );
    assert_eq!(store.ask(2, &Request::Add(b"a", 1)).1, vec![1]);
    assert!(store.contents.waiting.is_empty() && store.contents.waiters.is_empty());
}

#[test]
fn a_push_wakes_one_and_a_set_wakes_all() {
    let mut store = Clients::new();
    for client in [1, 2, 3] {
        store.ask(client, &Request::Wait(vec![b"k"]));
    }
    assert_eq!(store.ask(9, &Request::QueuePush(b"k", b"x")).1, vec![1]);
    assert_eq!(store.ask(9, &Request::Set(b"k", b"x")).1, vec![2, 3]);
}

#[test]
fn a_barrier_counts_arrivals_under_its_key() {
    let mut store = Clients::new();
    let barrier = Request::Barrier(b"b", 3);
    assert_eq!(store.ask(1, &barrier), (vec![], NOBODY));
    assert_eq!(store.ask(2, &barrier), (vec![], NOBODY));
    assert_eq!(store.ask(3, &barrier), (vec![STOP_WAITING], vec![1, 2]));
    assert_eq!(
        store.ask(4, &barrier),
        (vec![STOP_WAITING], NOBODY),
        "it stays open"
    );
    assert_eq!(store.contents.value(b"b"), b"4");
}

#[test]
fn an_item_goes_to_the_first_who_lacks_nothing_else() {
    let mut store = Clients::new();
    store.ask(1, &Request::Wait(vec![b"queue", b"other"]));
    store.ask(2, &Request::Wait(vec![b"queue"]));
    store.ask(3, &Request::Wait(vec![b"queue"]));
    assert_eq!(store.ask(4, &Request::QueuePush(b"queue", b"item")).1, [2]);
    assert_eq!(store.ask(4, &Request::QueuePush(b"queue", b"item")).1, [3]);
    assert_eq!(store.ask(4, &Request::Set(b"other", b"")).1, [1]);
}

/// An item that its taker cannot be sent is not lost.
#[test]
fn what_has_no_room_in_a_reply_stays() {
    let mut contents = Contents::new(10_000);
    let mut apply =
        |request: &Request<'_>| contents.apply(1, request, &mut Vec::new(), &mut Vec::new());
    let item = vec![7; 9_000];
    apply(&Request::QueuePush(b"q", &item)).unwrap();
    assert_eq!(apply(&Request::QueuePop(b"q")), Err(Refusal::Full(10_000)));
    apply(&Request::Delete(b"nothing")).unwrap();
    assert_eq!(contents.queues[&b"q"[..]], [item]);
}

#[test]
fn a_refusal_carries_nothing_that_a_terminal_obeys() {
    let mut contents = Contents::new(10_000);
    let key = &b"\x1b]0;owned\x07"[..];
    let mut apply =
        |request: &Request<'_>| contents.apply(1, request, &mut Vec::new(), &mut Vec::new());
    apply(&Request::Set(key, b"no number")).unwrap();
    let refusal = apply(&Request::Add(key, 1)).unwrap_err().to_string();
    assert!(refusal.contains("owned"), "{refusal}");
    assert!(!refusal.contains(char::is_control), "{refusal:?}");
}
