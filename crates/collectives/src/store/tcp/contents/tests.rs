//! What clients that ask in turn are answered.

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
fn a_cancelled_or_vanished_client_is_forgotten() {
    let mut store = Clients::new();
    store.ask(1, &Request::Wait(vec![b"k"]));
    store.ask(2, &Request::Wait(vec![b"k"]));
    assert_eq!(store.ask(1, &Request::CancelWait).0, vec![WAIT_CANCELED]);
    store.contents.forget(2);
    assert_eq!(store.ask(4, &Request::Set(b"k", b"")).1, NOBODY);
    assert!(store.contents.waiting.is_empty() && store.contents.waiters.is_empty());
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
fn the_store_refuses_to_grow_without_bound() {
    let mut contents = Contents::new(1_000);
    let mut apply =
        |request: Request<'_>| contents.apply(1, &request, &mut Vec::new(), &mut Vec::new());
    assert_eq!(apply(Request::Set(b"a", &[0; 600])), Ok(()));
    assert_eq!(
        apply(Request::Set(b"b", &[0; 600])),
        Err(Refusal::Full(1_000))
    );
    assert_eq!(
        apply(Request::Append(b"a", &[0; 600])),
        Err(Refusal::Full(1_000))
    );
    assert_eq!(apply(Request::Delete(b"a")), Ok(()));
    assert_eq!(apply(Request::QueuePush(b"b", &[0; 600])), Ok(()));
    assert_eq!(apply(Request::QueuePop(b"b")), Ok(()));
    assert_eq!(apply(Request::Set(b"b", &[0; 600])), Ok(()));
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

/// The waits alone grew the store from 3 MB to 2.9 GB.
#[test]
fn waits_are_part_of_what_is_held() {
    const LIMIT: usize = 100_000;
    let mut contents = Contents::new(LIMIT);
    let names: Vec<String> = (0..100).map(|i| format!("{i:0>100}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let mut outcomes = Vec::new();
    for client in 0..16 {
        let wait = Request::Wait(keys.clone());
        outcomes.push(contents.apply(client, &wait, &mut Vec::new(), &mut Vec::new()));
        assert!(contents.held_bytes() <= LIMIT);
    }
    // Two have room; a refused wait leaves nothing.
    let (waiting, refused) = outcomes.split_at(2);
    assert_eq!(waiting, [Ok(()), Ok(())]);
    assert!(refused.iter().all(|it| *it == Err(Refusal::Full(LIMIT))));
    assert_eq!(contents.waiting.len(), 2);
    contents.forget(0);
    let mut woken = Vec::new();
    for key in keys {
        let set = Request::Set(key, b"");
        contents
            .apply(9, &set, &mut Vec::new(), &mut woken)
            .unwrap();
        contents
            .apply(9, &Request::Delete(key), &mut Vec::new(), &mut woken)
            .unwrap();
    }
    // All keys must exist at one time, and they never did.
    assert_eq!((woken, contents.waiting.len()), (vec![], 1));
    contents.forget(1);
    assert_eq!(contents.held_bytes(), 0);
}

#[test]
fn a_key_named_often_is_held_once() {
    let mut contents = Contents::new(1_000);
    let wait = Request::Wait(vec![b"k"; 100_000]);
    let mut apply = |request: &Request<'_>| {
        let mut woken = Vec::new();
        let done = contents.apply(1, request, &mut Vec::new(), &mut woken);
        (done, woken, contents.held_bytes())
    };
    assert_eq!(apply(&wait), (Ok(()), NOBODY, wait_cost(b"k")));
    assert_eq!(apply(&Request::Set(b"k", b"")).1, [1]);
    assert_eq!(apply(&Request::Delete(b"k")), (Ok(()), NOBODY, 0));
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
