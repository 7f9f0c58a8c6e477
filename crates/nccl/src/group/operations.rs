//! The operations of a group, one by one or several as one.

use std::sync::Arc;

use everburn_collectives::group::ReduceOp;

use super::NcclGroup;
use super::config::After;
use super::error::NcclError;
use super::operation::Operation;
use super::work::Work;
use crate::foreign::DeviceBuffer;

impl NcclGroup {
    /// Combines all ranks' numbers, in place; every rank gets the same bits.
    ///
    /// # Errors
    /// [`NcclError::Invalid`] for what can never be, and nothing is sent; else what has failed the
    /// group, at once if that was earlier.
    pub fn all_reduce(
        &self,
        buffer: &DeviceBuffer,
        op: ReduceOp,
        after: After,
    ) -> Result<Work, NcclError> {
        self.all_reduce_into(buffer, buffer, op, after)
    }

    /// [`NcclGroup::all_reduce`] from one buffer into another.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn all_reduce_into(
        &self,
        send: &DeviceBuffer,
        receive: &DeviceBuffer,
        op: ReduceOp,
        after: After,
    ) -> Result<Work, NcclError> {
        self.batch().all_reduce_into(send, receive, op).issue(after)
    }

    /// Copies the numbers of rank `root` of the group to all others.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn broadcast(
        &self,
        buffer: &DeviceBuffer,
        root: usize,
        after: After,
    ) -> Result<Work, NcclError> {
        self.batch().broadcast(buffer, root).issue(after)
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
        after: After,
    ) -> Result<Work, NcclError> {
        self.batch().reduce_scatter(send, receive, op).issue(after)
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
        after: After,
    ) -> Result<Work, NcclError> {
        self.batch().all_gather(send, receive).issue(after)
    }

    /// Sends numbers to rank `peer` of the group, which must receive as many of that type. It is over
    /// when they have been taken; two ranks that send to each other first need a [`Batch`].
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn send(
        &self,
        buffer: &DeviceBuffer,
        peer: usize,
        after: After,
    ) -> Result<Work, NcclError> {
        self.batch().send(buffer, peer).issue(after)
    }

    /// Receives numbers from rank `peer` of the group.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn recv(
        &self,
        buffer: &DeviceBuffer,
        peer: usize,
        after: After,
    ) -> Result<Work, NcclError> {
        self.batch().recv(buffer, peer).issue(after)
    }

    /// Operations that are to go as one: fewer launches for many small buckets, and messages in both
    /// directions at once.
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            group: self,
            operations: Vec::new(),
        }
    }
}

/// Operations that go as one, of 1024 at most.
///
/// ```
/// use everburn_collectives::group::ReduceOp;
/// use everburn_nccl::After;
/// use everburn_nccl::fake::FakeCluster;
///
/// let cluster = FakeCluster::new(2);
/// let sums = cluster.on_all_ranks(|group, rank| {
///     let other = 1 - rank;
///     let (sum, mine, theirs) = (
///         cluster.allocate(rank, &[1f32, rank as f32]),
///         cluster.allocate(rank, &[rank as i64]),
///         cluster.allocate(rank, &[-1i64]),
///     );
///     let mut batch = group.batch();
///     batch.all_reduce(&sum, ReduceOp::Sum).send(&mine, other).recv(&theirs, other);
///     batch.issue(After::Nothing)?.wait()?;
///     assert_eq!(cluster.read::<i64>(&theirs), [other as i64]);
///     Ok::<_, everburn_nccl::NcclError>(cluster.read::<f32>(&sum))
/// });
/// for sum in sums {
///     assert_eq!(sum.unwrap(), [2.0, 1.0]);
/// }
/// ```
#[derive(Debug)]
#[must_use = "nothing happens before it is issued"]
pub struct Batch<'a> {
    group: &'a NcclGroup,
    operations: Vec<Operation>,
}

impl Batch<'_> {
    fn with(&mut self, operation: Operation) -> &mut Self {
        self.operations.push(operation);
        self
    }

    /// [`NcclGroup::all_reduce`].
    pub fn all_reduce(&mut self, buffer: &DeviceBuffer, op: ReduceOp) -> &mut Self {
        self.all_reduce_into(buffer, buffer, op)
    }

    /// [`NcclGroup::all_reduce_into`].
    pub fn all_reduce_into(
        &mut self,
        send: &DeviceBuffer,
        receive: &DeviceBuffer,
        op: ReduceOp,
    ) -> &mut Self {
        let (send, receive) = (send.clone(), receive.clone());
        self.with(Operation::AllReduce { send, receive, op })
    }

    /// [`NcclGroup::broadcast`].
    pub fn broadcast(&mut self, buffer: &DeviceBuffer, root: usize) -> &mut Self {
        let buffer = buffer.clone();
        self.with(Operation::Broadcast { buffer, root })
    }

    /// [`NcclGroup::reduce_scatter`].
    pub fn reduce_scatter(
        &mut self,
        send: &DeviceBuffer,
        receive: &DeviceBuffer,
        op: ReduceOp,
    ) -> &mut Self {
        let (send, receive) = (send.clone(), receive.clone());
        self.with(Operation::ReduceScatter { send, receive, op })
    }

    /// [`NcclGroup::all_gather`].
    pub fn all_gather(&mut self, send: &DeviceBuffer, receive: &DeviceBuffer) -> &mut Self {
        let (send, receive) = (send.clone(), receive.clone());
        self.with(Operation::AllGather { send, receive })
    }

    /// [`NcclGroup::send`].
    pub fn send(&mut self, buffer: &DeviceBuffer, peer: usize) -> &mut Self {
        let buffer = buffer.clone();
        self.with(Operation::Send { buffer, peer })
    }

    /// [`NcclGroup::recv`].
    pub fn recv(&mut self, buffer: &DeviceBuffer, peer: usize) -> &mut Self {
        let buffer = buffer.clone();
        self.with(Operation::Receive { buffer, peer })
    }

    /// Puts the operations on the group's stream; the batch is empty then. The first exchange with a
    /// rank may wait for it, for the group's timeout; else this waits for nobody.
    ///
    /// # Errors
    /// As [`NcclGroup::all_reduce`].
    pub fn issue(&mut self, after: After) -> Result<Work, NcclError> {
        let operations = std::mem::take(&mut self.operations);
        let shared = &self.group.shared;
        let flight = shared.core.issue(operations, after)?;
        Ok(Work::new(flight, Arc::clone(shared)))
    }
}
