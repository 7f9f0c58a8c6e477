//! Every operation on every store, by one function.

mod contract;
mod etcd;
#[cfg(feature = "tls")]
mod etcd_tls;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use everburn_collectives::store::{
    FileStore, HashStore, MAX_KEY_BYTES, MAX_VALUE_BYTES, PrefixStore, SharedStore, Store,
    StoreAccess, StoreError, StoreOptions, TcpStore, TcpStoreServer,
};
use everburn_tests::assert_matches;

use self::contract::{compare_set_has_its_four_cases, deadlines_name_the_keys};

const LONG: Duration = Duration::from_secs(60);

fn open_options() -> StoreOptions {
    StoreOptions {
        timeout: LONG,
        ..StoreOptions::new(StoreAccess::Open)
    }
}

/// Holds every store to its contract; `open` yields views of one and the same content.
fn conforms(open: &dyn Fn() -> SharedStore) {
    conforms_up_to(MAX_VALUE_BYTES, open);
}

/// The same of a store whose values have at most `longest` bytes.
fn conforms_up_to(longest: usize, open: &dyn Fn() -> SharedStore) {
    values_and_counters(&*open());
    compare_set_has_its_four_cases(&*open());
    deadlines_name_the_keys(&*open());
    limits_are_kept(&*open(), longest);
    waiters_are_woken(open);
    concurrent_adds_all_count(open);
}

fn values_and_counters(store: &dyn Store) {
    let keys = store.num_keys().unwrap();
    assert!(!store.check(&["v/a"]).unwrap());
    store.set("v/a", b"one").unwrap();
    store.set("v/a", b"two").unwrap();
    store.set("v/empty", b"").unwrap();
    assert_eq!(store.get("v/a").unwrap(), b"two");
    assert_eq!(store.get("v/empty").unwrap(), b"");
    let both = store.multi_get_within(&["v/empty", "v/a"], Duration::ZERO);
    assert_eq!(both.unwrap(), [&b""[..], b"two"]);
    assert!(store.check(&["v/a", "v/empty"]).unwrap());
    assert!(!store.check(&["v/a", "v/none"]).unwrap());
    assert!(store.check(&[]).unwrap());
    store.wait(&["v/empty", "v/a"]).unwrap();
    store.wait(&[]).unwrap();
    assert_eq!(store.num_keys().unwrap(), keys + 2);

    assert_eq!(store.add("v/n", 5).unwrap(), 5);
    assert_eq!(store.add("v/n", -7).unwrap(), -2);
    assert_eq!(store.get("v/n").unwrap(), b"-2");
    store.set("v/n", b"40").unwrap();
    assert_eq!(store.add("v/n", 2).unwrap(), 42);
    let error = store.add("v/a", 1).unwrap_err();
    assert_matches!(error, StoreError::Invalid { .. });
    assert!(error.to_string().contains("`two`"), "{error}");
    assert_eq!(store.get("v/a").unwrap(), b"two", "left as it was");

    assert_eq!(store.try_get("v/a").unwrap().unwrap(), b"two");
    assert_eq!(store.try_get("v/empty").unwrap().unwrap(), b"");
    assert_eq!(store.try_get("v/none").unwrap(), None);
    let many = store.try_get_many(&["v/none", "v/a", "v/empty"]).unwrap();
    assert_eq!(many, [None, Some(b"two".to_vec()), Some(Vec::new())]);
    assert_eq!(store.try_get_many(&[]).unwrap(), []);
    let none: Vec<String> = (0..3000).map(|number| format!("v/none/{number}")).collect();
    let wanted: Vec<&str> = none.iter().map(String::as_str).chain(["v/a"]).collect();
    let many = store.try_get_many(&wanted).unwrap();
    assert_eq!((many.len(), many.iter().flatten().count()), (3001, 1));
    assert!(!store.check(&["v/none"]).unwrap(), "nothing was stored");

    assert!(store.delete("v/a").unwrap());
    assert!(!store.delete("v/a").unwrap());
    // More than one request of a store takes, and every second is there.
    let names: Vec<String> = (0..300).map(|number| format!("v/{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in names.iter().step_by(2) {
        store.set(name, b"x").unwrap();
    }
    // All of them, and a part that has many others between its first and its last.
    for wanted in [&names[..], &names[..40]] {
        let found = store.try_get_many(wanted).unwrap();
        let there: Vec<bool> = found.iter().map(Option::is_some).collect();
        let expected: Vec<bool> = (0..wanted.len()).map(|place| place % 2 == 0).collect();
        assert_eq!(there, expected);
    }
    store.delete_many(&names).unwrap();
    let left = store.try_get_many(&names).unwrap();
    assert!(left.iter().all(Option::is_none), "{left:?}");
    assert!(!store.check(&["v/a"]).unwrap());
    assert_eq!(store.num_keys().unwrap(), keys + 2);
    store.set("v/a", b"again").unwrap();
    assert_eq!(store.get("v/a").unwrap(), b"again");

    let large = vec![7; 300_000];
    store.set("v/large", &large).unwrap();
    assert_eq!(store.get("v/large").unwrap(), large);
}

fn limits_are_kept(store: &dyn Store, longest: usize) {
    let long = "k".repeat(MAX_KEY_BYTES + 1);
    let error = store.set(&long, b"").unwrap_err();
    assert_matches!(error, StoreError::Invalid { .. });
    let error = store.set("l", &vec![0; longest + 1]).unwrap_err();
    assert_matches!(error, StoreError::Invalid { .. });
    assert!(!store.check(&["l"]).unwrap());
    store.set("l", &vec![1; longest]).unwrap();
    assert_eq!(store.get("l").unwrap().len(), longest);
}

fn waiters_are_woken(open: &dyn Fn() -> SharedStore) {
    let store = open();
    thread::scope(|scope| {
        let by_set = open();
        let by_set = scope.spawn(move || by_set.get_within("w/set", LONG));
        let by_add = open();
        let by_add = scope.spawn(move || by_add.wait_within(&["w/add", "w/set"], LONG));
        // While another thread waits on the same store object, this one continues.
        let same = Arc::clone(&store);
        let by_compare = scope.spawn(move || same.get_within("w/compare", LONG));
        store.set("w/set", b"woken").unwrap();
        assert_eq!(store.add("w/add", 1).unwrap(), 1);
        store.compare_set("w/compare", b"", b"too").unwrap();
        assert_eq!(by_set.join().unwrap().unwrap(), b"woken");
        by_add.join().unwrap().unwrap();
        assert_eq!(by_compare.join().unwrap().unwrap(), b"too");
    });
}

fn concurrent_adds_all_count(open: &dyn Fn() -> SharedStore) {
    thread::scope(|scope| {
        for _ in 0..32 {
            let store = open();
            scope.spawn(move || {
                for _ in 0..5 {
                    store.add("n", 1).unwrap();
                }
            });
        }
    });
    assert_eq!(open().add("n", 0).unwrap(), 160);
}

#[test]
fn hash_store_conforms() {
    let store = HashStore::with_timeout(LONG);
    conforms(&|| Arc::new(store.clone()));
}

#[test]
fn file_store_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    conforms(&|| Arc::new(FileStore::open_with_timeout(&path, None, LONG).unwrap()));
}

#[test]
fn tcp_store_conforms() {
    let loopback = "127.0.0.1:0".parse().unwrap();
    let server = TcpStoreServer::bind(loopback, open_options()).unwrap();
    let address = server.local_addr().to_string();
    conforms(&|| Arc::new(TcpStore::connect(&address, open_options()).unwrap()));
}

#[test]
fn prefix_store_conforms_and_prefixes() {
    let whole = Arc::new(HashStore::with_timeout(LONG));
    whole.set("n", b"not a number").unwrap();
    let open: &dyn Fn() -> SharedStore = &|| Arc::new(PrefixStore::new("job", whole.clone()));
    conforms(open);
    assert_eq!(whole.get("job/c").unwrap(), b"next");
    let nested = PrefixStore::new("b", Arc::new(PrefixStore::new("a", whole.clone())));
    nested.set("k", b"v").unwrap();
    assert_eq!(whole.get("a/b/k").unwrap(), b"v");
}
