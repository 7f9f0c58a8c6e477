//! The operations of a group.

use std::sync::Arc;

use everburn_collectives::group::{CollectiveError, ReduceOp};

use super::NcclGroup;
use super::operation::Operation;
use super::work::Work;
use crate::foreign::DeviceBuffer;

impl NcclGroup {
    /// Combines all ranks' numbers, in place; every rank gets the same bits.
    ///
    /// As every operation, it waits on the GPU for all that any stream of this process on the GPU has been
    /// given by now, and not for the host. Where the driver cannot order streams
    /// ([`NcclGroup::orders_device`]), it waits for nothing: the caller has waited for what writes the
    /// buffers.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] for what can never be, and nothing is sent; else what has failed the
    /// group, at once if that was earlier.
    pub fn all_reduce(&self, buffer: &DeviceBuffer, op: ReduceOp) -> Result<Work, CollectiveError> {
        let buffer = buffer.clone();
        self.issue(Operation::AllReduce { buffer, op })
    }

    /// Copies the numbers of rank `root` of the group to all others.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn broadcast(&self, buffer: &DeviceBuffer, root: usize) -> Result<Work, CollectiveError> {
        let buffer = buffer.clone();
        self.issue(Operation::Broadcast { buffer, root })
    }

    /// Combines all ranks' numbers and gives each rank its part: `send` has a part for each rank, in
    /// rank order. In place, `receive` is the rank's own part of `send`.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn reduce_scatter(
        &self,
        send: &DeviceBuffer,
        receive: &DeviceBuffer,
        op: ReduceOp,
    ) -> Result<Work, CollectiveError> {
        let (send, receive) = (send.clone(), receive.clone());
        self.issue(Operation::ReduceScatter { send, receive, op })
    }

    /// Gives every rank the numbers of all, in rank order. In place, `send` is the rank's own part of
    /// `receive`.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn all_gather(
        &self,
        send: &DeviceBuffer,
        receive: &DeviceBuffer,
    ) -> Result<Work, CollectiveError> {
        let (send, receive) = (send.clone(), receive.clone());
        self.issue(Operation::AllGather { send, receive })
    }

    /// Sends numbers to rank `peer` of the group, which must receive as many of that type. It is over
    /// when they have been taken: of two ranks that send to each other, one must receive first.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn send(&self, buffer: &DeviceBuffer, peer: usize) -> Result<Work, CollectiveError> {
        let buffer = buffer.clone();
        self.issue(Operation::Send { buffer, peer })
    }

    /// Receives numbers from rank `peer` of the group.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn recv(&self, buffer: &DeviceBuffer, peer: usize) -> Result<Work, CollectiveError> {
        let buffer = buffer.clone();
        self.issue(Operation::Receive { buffer, peer })
    }

    /// Puts the operation on the group's stream. The first exchange with a rank may wait for it, for the
    /// group's timeout; else this waits for nobody.
    fn issue(&self, operation: Operation) -> Result<Work, CollectiveError> {
        let in_flight = self.shared.core.issue(operation)?;
        Ok(Work::new(in_flight, Arc::clone(&self.shared)))
    }
}
