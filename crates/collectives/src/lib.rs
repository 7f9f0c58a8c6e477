//! Stores, rendezvous and process groups for distributed training, without Burn.
//!
//! The main types, in the order in which a program meets them:
//!
//! 1. [`store::Store`]: a key-value store shared by all ranks of a job.
//! 2. [`rendezvous::Rendezvous`]: the result of a rendezvous: store, rank, world size, addresses.
//! 3. [`group::ProcessGroup`]: collectives ([`group::ProcessGroup::all_reduce`] and others),
//!    point-to-point messages and sub-groups.
//! 4. [`group::Work`]: a pending operation, waited for with a deadline.
//! 5. [`elastic::Membership`]: groups that form again when ranks are lost or join.
//! 6. [`transport::Transport`]: the control plane. Its frames carry failures, point-to-point messages
//!    and the setup of channels (shared memory or TCP), which carry the data of collectives.
//! 7. [`worker::Worker`]: a thread with a task queue, for background work.
//!
//! ```
//! # mod everburn { pub use everburn_collectives as collectives; }
//! use everburn::collectives::group::{GroupOptions, ProcessGroup, ReduceOp};
//!
//! let groups = ProcessGroup::over_threads(2, GroupOptions::default());
//! let ranks = groups.into_iter().map(|group| {
//!     std::thread::spawn(move || {
//!         let mine = vec![group.rank() as f32, 1.0];
//!         group.all_reduce(mine, ReduceOp::Sum).wait()
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     assert_eq!(rank.join().unwrap().unwrap(), vec![1.0, 2.0]);
//! }
//! ```

mod channel;
pub mod elastic;
mod fields;
pub mod group;
pub mod heartbeat;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod net;
pub mod rendezvous;
pub mod runtime;
mod shared_memory;
#[doc(hidden)]
pub mod simulation;
pub mod store;
pub mod transport;
mod wait_notice;
pub mod worker;

pub use everburn_record::sync;
