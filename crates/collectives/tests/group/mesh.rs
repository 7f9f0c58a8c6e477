//! How ranks connect by TCP.

use std::sync::Arc;

use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_collectives::store::{HashStore, SharedStore, Store};
use everburn_tests::{AssertContains, assert_matches};

use crate::harness::{
    Meeting, Wire, error, in_parallel, on_all_ranks, options, rendezvous, short_options,
};

#[test]
fn a_world_of_one_does_not_touch_the_store() {
    let store = Arc::new(HashStore::new());
    let group = ProcessGroup::connect(rendezvous(store.clone(), 0, 1), options()).unwrap();
    assert_eq!(
        group.all_reduce(vec![2f32], ReduceOp::Sum).wait().unwrap(),
        [2.0]
    );
    group.send(vec![1u8], 0, 0).wait().unwrap();
    assert_eq!(group.recv::<u8>(0, 0).wait().unwrap(), [1]);
    group.destroy().unwrap();
    assert_eq!(store.num_keys().unwrap(), 0);
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let store = Arc::new(HashStore::new());
    let options = short_options();
    let errors = in_parallel(vec![0, 2], |rank| {
        error(ProcessGroup::connect(
            rendezvous(store.clone(), rank, 4),
            options,
        ))
    });
    for error in errors {
        let text = error.to_string();
        assert_matches!(&error, CollectiveError::Incomplete { missing, .. } if *missing == [1, 3]);
        assert!(text.contains("for ranks 1, 3 to connect"), "{text}");
    }
}

#[test]
fn a_second_process_as_the_same_rank_is_refused_and_told_so() {
    let store = Arc::new(HashStore::new());
    let options = short_options();
    let errors = in_parallel(vec![0, 1, 1], |rank| {
        error(ProcessGroup::connect(
            rendezvous(store.clone(), rank, 3),
            options,
        ))
    });
    for error in &errors {
        assert_matches!(error, CollectiveError::Incomplete { missing, .. } if *missing == [2]);
    }
    let second = "it is connected with another process that is rank 1";
    let refused = errors.iter().map(ToString::to_string);
    let refused: Vec<_> = refused.filter(|text| text.contains(second)).collect();
    assert_eq!(refused.len(), 1, "{errors:?}");
}

#[test]
fn a_rank_of_another_world_is_named_by_all() {
    let store = Arc::new(HashStore::new());
    let errors = in_parallel(vec![(0, 3), (1, 3), (2, 4)], |(rank, world_size)| {
        error(ProcessGroup::connect(
            rendezvous(store.clone(), rank, world_size),
            options(),
        ))
    });
    for error in errors {
        let text = error.to_string();
        assert_matches!(error, CollectiveError::WorldSize { .. });
        text.assert_contains(["rank 2", "3", "4"]);
    }
}

#[test]
fn a_rank_outside_its_world_is_refused() {
    let store: SharedStore = Arc::new(HashStore::new());
    let text = error(ProcessGroup::connect(rendezvous(store, 2, 2), options())).to_string();
    text.assert_contains(["rank 2 does not exist in a world of 2"]);
}

/// The threads of this process whose name is `name`.
#[cfg(target_os = "linux")]
fn threads_named(name: &str) -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread may end while it is looked at.
    let names = threads.filter_map(|it| std::fs::read_to_string(it.ok()?.path().join("comm")).ok());
    names.filter(|it| it.trim_end() == name).count()
}

#[test]
fn sixty_four_ranks_exchange_messages_with_one_thread_each() {
    let size = 64;
    let met = Meeting::of(size);
    on_all_ranks(Wire::Tcp, size, options(), |group| {
        let rank = group.rank();
        let others = (0..size).filter(|peer| *peer != rank);
        let sent: Vec<_> = others
            .clone()
            .map(|to| group.send(vec![rank as i64], to, 5))
            .collect();
        for from in others {
            assert_eq!(group.recv::<i64>(from, 5).wait().unwrap(), [from as i64]);
        }
        for work in sent {
            work.wait().unwrap();
        }
        let sum = group.all_reduce(vec![rank as i64; 3], ReduceOp::Sum).wait();
        assert_eq!(sum.unwrap(), [64 * 63 / 2; 3]);
        met.wait();
        // No other test has as many ranks in this process.
        #[cfg(target_os = "linux")]
        if rank >= 32 {
            assert_eq!(threads_named(&format!("everburn-io-{rank}")), 1);
        }
        met.wait();
        group.destroy().unwrap();
    });
}
