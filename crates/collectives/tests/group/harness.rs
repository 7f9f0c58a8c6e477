//! Runs ranks as threads over either transport: of frames and of the data of collectives.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup, TransportKind};
use everburn_collectives::rendezvous::Rendezvous;
use everburn_collectives::store::{HashStore, SharedStore};
use everburn_collectives::transport::{TcpMesh, ThreadMesh};
use everburn_tests::assert_matches;
pub use everburn_tests::{Meeting, in_parallel};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Frames between threads, collectives through shared memory.
    Threads,
    /// Frames and collectives over TCP.
    Tcp,
}

pub const WIRES: [Wire; 2] = [Wire::Threads, Wire::Tcp];

/// Long enough for a busy machine; only tests of the deadline itself use less.
pub const GENEROUS: Duration = Duration::from_secs(60);

/// A deadline that is meant to pass, and long enough for what the other ranks still do before it on a busy machine,
/// once all of them have met. A test that waits for it runs its wires at once.
pub const SHORT: Duration = Duration::from_secs(3);

pub fn options() -> GroupOptions {
    GroupOptions {
        timeout: Some(GENEROUS),
        ..GroupOptions::default()
    }
}

/// As [`options`], with the deadline [`SHORT`].
pub fn short_options() -> GroupOptions {
    GroupOptions {
        timeout: Some(SHORT),
        ..options()
    }
}

pub fn rendezvous(store: SharedStore, rank: usize, world_size: usize) -> Rendezvous {
    Rendezvous {
        store,
        rank,
        world_size,
        local_rank: rank,
        ranks_per_machine: None,
        local_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        timeout: GENEROUS,
        key: None,
    }
}

/// Calls `body` on every rank, each on a thread of its own; the results in rank order.
pub fn on_all_ranks<R: Send>(
    wire: Wire,
    size: usize,
    options: GroupOptions,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let options = GroupOptions {
        transport: match wire {
            Wire::Threads => TransportKind::SharedMemory,
            Wire::Tcp => TransportKind::Tcp,
        },
        ..options
    };
    let makers: Vec<Box<dyn FnOnce() -> ProcessGroup + Send>> = match wire {
        Wire::Threads => ProcessGroup::over_threads(size, options)
            .into_iter()
            .map(|group| Box::new(move || group) as _)
            .collect(),
        Wire::Tcp => {
            let store = Arc::new(HashStore::new());
            let make = |rank| {
                let rendezvous = rendezvous(store.clone(), rank, size);
                // As `ProcessGroup::connect`, which gives the rendezvous the timeout of the operations: a
                // test may mean that to pass.
                Box::new(move || {
                    let mesh = TcpMesh::connect(&rendezvous, &options);
                    ProcessGroup::over(Arc::new(mesh.unwrap()), rank, options)
                }) as _
            };
            (0..size).map(make).collect()
        }
    };
    in_parallel(makers, |make| body(make()))
}

/// The groups of ranks that are threads, each with options of its own.
pub fn over_threads_with(options: &[GroupOptions]) -> Vec<ProcessGroup> {
    let meshes = ThreadMesh::new(options.len()).into_iter().zip(options);
    meshes
        .map(|(mesh, options)| ProcessGroup::over(Arc::new(mesh), 0, *options))
        .collect()
}

/// [`on_all_ranks`] over each wire, one after the other.
pub fn on_every_wire<R: Send>(size: usize, body: impl Fn(ProcessGroup) -> R + Sync) {
    for wire in WIRES {
        on_all_ranks(wire, size, options(), &body);
    }
}

/// The error of a result that must be one.
pub fn error<T: Debug>(result: Result<T, CollectiveError>) -> CollectiveError {
    result.expect_err("the operation should have failed")
}

/// Calls `call` on `size` ranks over both transports: it fails on each of them with `expected`, and so do later calls.
#[track_caller]
pub fn assert_mismatch<T: Debug>(
    size: usize,
    call: impl Fn(&ProcessGroup) -> Result<T, CollectiveError> + Sync,
    expected: &str,
) {
    for wire in WIRES {
        let errors = on_all_ranks(wire, size, options(), |group| {
            let first = error(call(&group));
            let later = error(group.barrier().wait());
            (first, later)
        });
        for (rank, (first, later)) in errors.iter().enumerate() {
            assert!(
                matches!(first, CollectiveError::Mismatch { .. }),
                "{wire:?} {rank}: {first:?}"
            );
            assert_verdict(&first.to_string(), rank, expected);
            assert_matches!(later, CollectiveError::Poisoned { .. });
            assert!(later.to_string().contains(expected), "{later}");
        }
    }
}

/// Demands that `text` is what `rank` says of a mismatch: `verdict`, which is the same on all ranks,
/// between its own number, step and wait and what to check.
#[track_caller]
pub fn assert_verdict(text: &str, rank: usize, verdict: &str) {
    let rest = text.strip_prefix(&format!("rank {rank} at step 0, after "));
    let rest = rest.and_then(|rest| rest.split_once(" s: "));
    let expected =
        format!("{verdict}; check that every rank runs the same program, configuration and data");
    assert_eq!(rest.map(|(_, rest)| rest), Some(&*expected), "{text}");
}
