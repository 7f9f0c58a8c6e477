//! How operations get on the group's stream.
//!
//! One thread at a time: all ranks issue the same operations in the same order, and the stream keeps
//! it. The first operation between two ranks may have to connect them; then NCCL answers that it is
//! under way, and the caller waits, with the group's deadline, until the operation is on the
//! stream. Otherwise nothing here waits for another rank, nor for the GPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use everburn_collectives::group::CollectiveError;
use everburn_collectives::sync::lock;

use super::core::{Core, InFlightOperation, OpContext};
use super::error::NcclError;
use super::operation::Operation;
use super::owned::OwnedEvent;
use super::status::Status;
use crate::error::LibraryError;

impl Core {
    /// Puts `operation` on the stream.
    pub(crate) fn issue(&self, operation: Operation) -> Result<Arc<InFlightOperation>, NcclError> {
        let mut context = self.context(operation.to_string(), operation.peer());
        self.health(&context)?;
        self.check(&context, &operation)?;
        let deadline = context.started + self.config.timeout;
        let Some(_turn) = self.issuing.take_until(deadline) else {
            return Err(self.blocked(&context));
        };
        context.sequence = self.issued.load(Ordering::Acquire);
        self.health(&context)?;
        if operation.is_collective() {
            // The others may read that it was issued a moment before it is: nobody is blamed then.
            self.issued.fetch_add(1, Ordering::AcqRel);
        }
        lock(&self.state).last = format!(
            "{} (collective {}, step {})",
            context.operation, context.sequence, context.step
        );
        let (ready, done) = match operation.is_empty() {
            true => (None, None),
            false => {
                let done = OwnedEvent::new(&self.api);
                let done = done.map_err(|source| self.gpu_failed(&context, source))?;
                (self.order(&context)?, Some(done))
            }
        };
        // The record has the buffers before NCCL sees them.
        let in_flight = Arc::new(InFlightOperation::new(context, ready, done, operation));
        lock(&self.state).under_way.push_back(in_flight.clone());
        self.changed.notify_all();
        if let Err(error) = self.enqueue(&in_flight, deadline) {
            self.let_go(&in_flight);
            return Err(error);
        }
        self.mark(&in_flight)
            .map_err(|source| self.gpu_failed(&in_flight.context, source))?;
        let retired = self.retire();
        retired.map_err(|source| self.gpu_failed(&in_flight.context, source))?;
        Ok(in_flight)
    }

    fn check(&self, context: &OpContext, operation: &Operation) -> Result<(), NcclError> {
        match operation.fault(self.config.rank, self.config.world_size()) {
            None => Ok(()),
            Some(reason) => Err(self.invalid(context, reason)),
        }
    }

    pub(crate) fn invalid(&self, context: &OpContext, reason: String) -> NcclError {
        NcclError::Group(CollectiveError::Invalid {
            rank: self.job_rank(),
            operation: context.operation.clone(),
            reason,
        })
    }

    /// The stream waits for all that the GPU has been given by now, where the driver can.
    fn order(&self, context: &OpContext) -> Result<Option<OwnedEvent>, NcclError> {
        if !self.api.orders_all() {
            return Ok(None);
        }
        let order = || {
            let event = OwnedEvent::new(&self.api)?;
            self.api.record_all(event.get())?;
            self.api.wait(self.stream.get(), event.get())?;
            Ok(Some(event))
        };
        order().map_err(|source| self.gpu_failed(context, source))
    }

    /// From here on `in_flight` is over when what is on the stream by now is.
    fn mark(&self, in_flight: &InFlightOperation) -> Result<(), LibraryError> {
        let Some(done) = &in_flight.done else {
            return Ok(());
        };
        self.api.record(done.get(), self.stream.get())?;
        in_flight.mark();
        Ok(())
    }

    /// `in_flight` failed on its way, and something of it may be on the stream. Once NCCL has aborted,
    /// nothing is added, and the buffers go when the stream has come to its end. Else they stay with
    /// the record, which the group's thread never frees.
    fn let_go(&self, in_flight: &InFlightOperation) {
        if !self.aborted.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = self.mark(in_flight) {
            tracing::debug!(
                group = self.config.name,
                "the buffers of {} stay: {error}",
                in_flight.context.operation
            );
        }
    }

    /// Puts `in_flight` on the stream.
    fn enqueue(&self, in_flight: &InFlightOperation, deadline: Instant) -> Result<(), NcclError> {
        let context = &in_flight.context;
        if in_flight.done.is_none() {
            return Ok(());
        }
        let Some(slot) = self.communicator.take_until(deadline) else {
            return Err(self.blocked(context));
        };
        let Some(communicator) = slot.as_ref() else {
            drop(slot);
            // It was aborted since the group's health was looked at.
            self.health(context)?;
            return Err(self.no_answer(context));
        };
        let status = match in_flight.operation().as_ref() {
            Some(operation) => self.api.enqueue(communicator, operation, self.stream.get()),
            // The group has given it up meanwhile.
            None => Status::Success,
        };
        in_flight.call_returned();
        drop(slot);
        match status {
            Status::Success => Ok(()),
            Status::InProgress => self.settle(context, deadline),
            wrong => Err(self.refused(context, wrong)),
        }
    }
}
