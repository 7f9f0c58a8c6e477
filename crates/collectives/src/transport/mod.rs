//! How frames get from rank to rank: the control plane of process groups.
//!
//! Frames bring point-to-point messages and the news of ranks that give up, leave or are lost, and
//! the first collective of a group exchanges by them what its lanes need; all further data of
//! collectives travel on lanes of the group's own.
//!
//! A [`Transport`] sends frames to the other ranks of the job and delivers what it receives into
//! an [`Inbox`]. Two are here: [`TcpMesh`] between processes and [`ThreadMesh`] between threads of
//! one process. A transport that serves some pairs only is built over the same inbox:
//! whoever delivers, the process group takes frames from one place.
//!
//! What is deliberately absent: back-pressure. A rank's readers always read, whether or not
//! anybody has asked, so no order of large sends can deadlock; the price is that a message nobody
//! receives stays in memory.

mod frame;
mod inbox;
mod mailbox;
mod payload;
mod surroundings;
mod tcp;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub use frame::{Frame, FrameKind, Header, WrittenHook};
pub use inbox::Inbox;
pub use payload::Payload;
pub use surroundings::Surroundings;
pub use tcp::TcpMesh;
#[cfg(any(test, fuzzing))]
pub(crate) use tcp::hostile;
pub use threads::ThreadMesh;

/// What a rank says of a connection that it has cut itself.
pub(crate) const CUT_HERE: &str = "this rank has cut the connection to it, as it was told to";

pub(crate) use inbox::encode_abort;
pub(crate) use mailbox::{Failure, Interruption, Mailbox, Parting, STRAGGLERS};
pub(crate) use tcp::forget_meshes;

/// Point-to-point frames between the ranks of a job.
///
/// Frames between two ranks arrive in the order in which they were sent.
///
/// ```
/// use everburn_collectives::transport::{ThreadMesh, Transport};
///
/// let mesh = ThreadMesh::new(2);
/// assert_eq!((mesh[1].rank(), mesh[1].world_size()), (1, 2));
/// ```
pub trait Transport: Send + Sync + fmt::Debug {
    /// This rank's number in the job.
    fn rank(&self) -> usize;

    /// How many ranks the job has.
    fn world_size(&self) -> usize;

    /// What carries the frames, for reports: `tcp` or `threads`.
    fn name(&self) -> &'static str;

    /// Where this rank runs: what decides how its data get to the others. A transport between
    /// machines says here at which address the others reach this rank.
    fn surroundings(&self) -> Surroundings {
        Surroundings::of_this_process()
    }

    /// Where received frames and the news of lost peers go.
    fn inbox(&self) -> &Arc<Inbox>;

    /// Queues `frame` for `to` and returns without waiting for the network.
    ///
    /// A frame for a peer that is gone is dropped; its [`Frame::written`] hook is told why, and
    /// the inbox knows of the loss.
    fn send(&self, to: usize, frame: Frame);

    /// Waits until everything queued has been written or `deadline` has passed; whether it has.
    fn flush(&self, deadline: Instant) -> bool;

    /// Closes all connections at once without a goodbye, as if the process had been killed.
    fn sever(&self);

    /// Closes the connection to `peer` at once without a goodbye, as if the network had.
    fn cut(&self, peer: usize);
}
