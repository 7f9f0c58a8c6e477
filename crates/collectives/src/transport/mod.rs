//! The control plane of process groups: frames between ranks.
//!
//! Frames carry point-to-point messages, aborts, goodbyes, and the setup of channels in a group's first
//! collective. All other data of collectives use the group's channels.
//!
//! A [`Transport`] sends frames to the other ranks of the job and delivers received frames into an
//! [`Inbox`]. [`TcpMesh`] connects processes, [`ThreadMesh`] threads of one process.
//!
//! # Flow control
//! A rank always reads, so that aborts and goodbyes are never delayed by data without a receive
//! call. The data that they buffer are bounded by
//! [`GroupOptions::max_unreceived_bytes`](crate::group::GroupOptions::max_unreceived_bytes):
//!
//! - A peer with more than half of this limit, or any peer once all together exceed it, is paused
//!   ([`FrameKind::Pause`]): it sends no data, and its sends do not complete. Aborts and goodbyes still pass.
//! - It is resumed ([`FrameKind::Resume`]) when half of the buffered bytes have been received, or as soon as
//!   a call waits for that peer, because the awaited message may come after others. So any number of
//!   sends may precede the receives, and tags may be received in any order. As in MPI, a rank that *waits*
//!   for a send larger than the limit waits for the receiver.
//! - The connection is closed, with an error that names the rank, the bytes and the option, if a paused peer
//!   continues to send, or if more than twice the limit and one message precede the awaited message. A
//!   peer that was not paused is not closed because of other peers' data.
//!
//! Threads of one process share payloads; they are not counted.

mod backlog;
mod frame;
mod host_info;
mod inbox;
mod interruption;
mod mailbox;
mod payload;
mod tcp;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use everburn_auth::Key;
pub use frame::{Frame, FrameKind, Header};
pub use host_info::HostInfo;
pub use inbox::Inbox;
pub use payload::Payload;
pub use tcp::TcpMesh;
#[cfg(any(test, fuzzing))]
pub(crate) use tcp::hostile;
pub use threads::ThreadMesh;

/// The cause for connections closed by [`Transport::cut`].
pub(crate) const CUT_HERE: &str = "this rank has closed the connection to it (fault injection)";

pub(crate) use inbox::encode_abort;
pub(crate) use interruption::{Failure, Interruption, Parting};
pub(crate) use mailbox::{Mailbox, Part, STRAGGLERS};
pub(crate) use tcp::{exchange_addresses, forget_meshes};

/// Point-to-point frames between the ranks of a job.
///
/// Frames between two ranks arrive in the order in which they were sent.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::transport::{ThreadMesh, Transport};
///
/// let mesh = ThreadMesh::new(2);
/// assert_eq!((mesh[1].rank(), mesh[1].world_size()), (1, 2));
/// ```
pub trait Transport: Send + Sync + fmt::Debug {
    /// This rank's number in the job.
    fn rank(&self) -> usize;

    /// How many ranks the job has.
    fn world_size(&self) -> usize;

    /// The host information of this rank. A transport between machines sets the address on which this
    /// rank can be reached.
    fn host_info(&self) -> HostInfo {
        HostInfo::of_this_process()
    }

    /// The secret that the ranks of this transport share: what further connections between them
    /// prove. It is never sent.
    fn key(&self) -> Key;

    /// Where received frames and the news of lost peers go.
    fn inbox(&self) -> &Arc<Inbox>;

    /// Queues `frame` for `to` and returns without waiting for the network.
    ///
    /// A frame for a lost peer is dropped: its [`Frame::written`] hook gets the cause, and the inbox marks the
    /// peer as lost.
    fn send(&self, to: usize, frame: Frame);

    /// Waits until everything queued has been written or `deadline` has passed; whether it has.
    fn flush(&self, deadline: Instant) -> bool;

    /// Closes all connections at once without a goodbye, as if the process had been killed.
    fn sever(&self);

    /// Closes the connection to `peer` at once without a goodbye, as if the network had.
    fn cut(&self, peer: usize);
}
