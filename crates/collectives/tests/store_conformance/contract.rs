//! The part of every store's contract that PyTorch's servers keep too.

use std::time::Duration;

use everburn_collectives::store::{Store, StoreError};
use everburn_tests::assert_matches;

const SHORT: Duration = Duration::from_millis(50);

pub fn compare_set_has_its_four_cases(store: &dyn Store) {
    let absent_but_expected = store.compare_set("c", b"old", b"new").unwrap();
    assert_eq!(absent_but_expected, b"old");
    assert!(!store.check(&["c"]).unwrap(), "nothing was stored");
    assert_eq!(store.compare_set("c", b"", b"first").unwrap(), b"first");
    assert_eq!(store.compare_set("c", b"wrong", b"x").unwrap(), b"first");
    assert_eq!(store.compare_set("c", b"first", b"next").unwrap(), b"next");
    assert_eq!(store.get("c").unwrap(), b"next");
}

pub fn deadlines_name_the_keys(store: &dyn Store) {
    store.set("d/there", b"").unwrap();
    let waited = store.wait_within(&["d/there", "d/missing"], SHORT);
    let got = store.get_within("d/missing", SHORT);
    let both = store.multi_get_within(&["d/there", "d/missing"], SHORT);
    for error in [waited.unwrap_err(), got.unwrap_err(), both.unwrap_err()] {
        let StoreError::Timeout { keys, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(keys.len(), 1, "only the missing one: {keys:?}");
        assert!(keys[0].ends_with("d/missing"), "{keys:?}");
        assert!(error.to_string().contains("d/missing"), "{error}");
    }
    let at_once = store.wait_within(&["d/missing"], Duration::ZERO);
    assert_matches!(at_once, Err(StoreError::Timeout { .. }));
    assert_eq!(store.get_within("d/there", Duration::ZERO).unwrap(), b"");
    store.wait_within(&["d/there"], Duration::ZERO).unwrap();
    // A wait that was called off leaves the store usable.
    assert_eq!(store.add("d/n", 1).unwrap(), 1);
    store.set("d/missing", b"here").unwrap();
    assert_eq!(store.get("d/missing").unwrap(), b"here");
}
