//! Ranks exchange bytes: stores, rendezvous and process groups, without Burn.
//!
//! The main types, in the order in which a program meets them:
//!
//! 1. [`store::Store`]: a few small values that all ranks of a job share.
//! 2. [`rendezvous::Rendezvous`]: what a rank knows once it has reached the store.
//! 3. [`group::ProcessGroup`]: the collectives ([`group::ProcessGroup::all_reduce`] and the rest),
//!    point-to-point messages and sub-groups.
//! 4. [`group::Work`]: an operation under way, waited for with a deadline.
//! 5. [`elastic::Membership`]: groups that form anew when ranks are lost or come.
//! 6. [`transport::Transport`]: how frames get from rank to rank. They are the control plane: news
//!    of failures, point-to-point messages, and the way to the lanes (shared memory or TCP) that
//!    carry the data of collectives.
//! 7. [`worker::Worker`]: a thread with a queue, for what runs beside the ranks' own work.
//!
//! ```
//! use everburn_collectives::group::{GroupOptions, ProcessGroup, ReduceOp};
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

pub mod elastic;
pub mod group;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod lane;
mod net;
mod printable;
pub mod rendezvous;
mod shared_memory;
pub mod store;
mod sync;
pub mod transport;
pub mod watch;
pub mod worker;

pub use printable::printable;
