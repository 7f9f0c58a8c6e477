//! Every operation of our client, held against what PyTorch's server answers: `operations.py` the
//! other way round.

use std::sync::Arc;
use std::thread;

use everburn_collectives::store::{PrefixStore, SharedStore, Store};

use crate::contract::{compare_set_has_its_four_cases, deadlines_name_the_keys};
use crate::python;

/// All 256 bytes.
fn binary() -> Vec<u8> {
    (0..=255).collect()
}

/// What every store of PyTorch's can do. `other` is a second client of the same store.
pub fn every_store(store: &SharedStore, other: &dyn Store) {
    values_and_counters(&**store);
    compare_set_has_its_four_cases(&**store);
    presence(&**store);
    deadlines_name_the_keys(&**store);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.get("w/late"));
        store.set("w/late", b"woken").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), b"woken");
    });
    let outer = PrefixStore::new("a", Arc::clone(store));
    let inner = PrefixStore::new("b", Arc::new(PrefixStore::new("a", Arc::clone(store))));
    inner.set("k", b"v").unwrap();
    assert_eq!(store.get("a/b/k").unwrap(), b"v");
    assert_eq!(outer.add("n", 3).unwrap(), 3);
    assert_eq!(store.get("a/n").unwrap(), b"3");
}

/// The script's line where every operation answers as it should; `place` says where the store is.
pub fn script_answers(place: [&str; 2], more: &[&str]) {
    let mut script = python::start("operations.py", &[&place[..], more].concat());
    assert_eq!(script.line(), "every operation answers as it should");
    script.finish();
}

/// The script does every operation on `store`, which is ours.
pub fn every_operation_of_pytorch(place: [&str; 2], store: &dyn Store) {
    store.set("from rust", &binary()).unwrap();
    store.add("from both", 40).unwrap();
    script_answers(place, &["--rust"]);
    assert_eq!(store.get("from python").unwrap(), binary());
    assert_eq!(store.get("from both").unwrap(), b"42");
    assert!(!store.check(&["p/b"]).unwrap(), "PyTorch has deleted it");
}

/// Two ranks of a gloo group of PyTorch meet and add up.
pub fn gloo_adds_up(init_method: &str, variables: &[(&str, String)]) {
    let ranks = ["0", "1"].map(|rank| {
        let arguments = [
            "--init-method",
            init_method,
            "--world-size",
            "2",
            "--rank",
            rank,
        ];
        python::start_with("gloo.py", &arguments, variables)
    });
    for (rank, mut script) in ranks.into_iter().enumerate() {
        assert_eq!(script.line(), format!("rank {rank} of 2: 2997"));
        script.finish();
    }
}

fn values_and_counters(store: &dyn Store) {
    store.set("v/a", b"one").unwrap();
    store.set("v/a", b"two").unwrap();
    assert_eq!(store.get("v/a").unwrap(), b"two");
    store.set("v/empty", b"").unwrap();
    assert_eq!(store.get("v/empty").unwrap(), b"");
    store.set("v/binary", &binary()).unwrap();
    assert_eq!(store.get("v/binary").unwrap(), binary());
    let large = vec![b'x'; 1 << 20];
    store.set("v/large", &large).unwrap();
    assert_eq!(store.get("v/large").unwrap(), large);
    assert_eq!(store.add("n", 5).unwrap(), 5);
    assert_eq!(store.add("n", -7).unwrap(), -2);
    assert_eq!(store.get("n").unwrap(), b"-2");
    store.set("n", b"40").unwrap();
    assert_eq!(store.add("n", 2).unwrap(), 42);
}

fn presence(store: &dyn Store) {
    store.set("p/a", b"").unwrap();
    let before = store.num_keys().unwrap();
    store.set("p/b", b"").unwrap();
    assert_eq!(store.num_keys().unwrap(), before + 1);
    assert!(store.check(&["p/a", "p/b"]).unwrap());
    assert!(!store.check(&["p/a", "p/none"]).unwrap());
    store.wait(&["p/a", "p/b"]).unwrap();
    assert!(store.delete("p/b").unwrap());
    assert!(!store.delete("p/b").unwrap());
    assert_eq!(store.num_keys().unwrap(), before);
}
