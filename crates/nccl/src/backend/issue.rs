//! How operations get on the backend's stream.
//!
//! One thread at a time: all ranks issue the same operations in the same order, and the stream keeps
//! it. The first operation between two ranks may have to connect them; then NCCL answers that it is
//! under way, and the caller waits, with the group's deadline, until the operation is on the
//! stream. Otherwise nothing here waits for another rank, nor for the GPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use everburn_collectives::group::{CollectiveError, DeviceCall};
use everburn_collectives::sync::lock;

use super::core::{Core, InFlightOperation};
use super::operation::Operation;
use super::owned::OwnedEvent;
use super::status::Status;
use super::timed_mutex::Backoff;
use crate::error::LibraryError;

impl Core {
    /// Puts `operation` on the stream.
    pub(crate) fn issue(
        &self,
        operation: Operation,
    ) -> Result<Arc<InFlightOperation>, CollectiveError> {
        let call = self.calls.device_call(operation.call());
        self.check(&call)?;
        if let Some(reason) = operation.fault(self.calls.rank(), self.calls.world_size()) {
            return Err(call.invalid(reason));
        }
        let begun = Instant::now();
        let Some(_turn) = self.issuing.take_until(begun + self.calls.timeout()) else {
            return Err(self.blocked(&call));
        };
        self.check(&call)?;
        call.issue()?;
        let (ready, done) = match operation.is_empty() {
            true => (None, None),
            false => {
                let done = OwnedEvent::new(&self.api);
                let done = done.map_err(|source| self.gpu_failed(&call, &source))?;
                (self.order(&call)?, Some(done))
            }
        };
        // The record has the buffers before NCCL sees them.
        let in_flight = Arc::new(InFlightOperation::new(call, ready, done, operation));
        lock(&self.state).under_way.push_back(in_flight.clone());
        self.changed.notify_all();
        if let Err(error) = self.enqueue(&in_flight, begun) {
            self.let_go(&in_flight);
            return Err(error);
        }
        let marked = self.mark(&in_flight).and_then(|()| self.retire());
        marked.map_err(|source| self.gpu_failed(&in_flight.call, &source))?;
        Ok(in_flight)
    }

    /// The stream waits for all that the GPU has been given by now, where the driver can.
    fn order(&self, call: &DeviceCall) -> Result<Option<OwnedEvent>, CollectiveError> {
        if !self.api.orders_all() {
            return Ok(None);
        }
        let order = || {
            let event = OwnedEvent::new(&self.api)?;
            self.api.record_all(event.get())?;
            self.api.wait(self.stream.get(), event.get())?;
            Ok(Some(event))
        };
        order().map_err(|source| self.gpu_failed(call, &source))
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
    /// the record, which the backend's thread never frees.
    fn let_go(&self, in_flight: &InFlightOperation) {
        if !self.aborted.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = self.mark(in_flight) {
            tracing::debug!("the buffers of {} stay: {error}", in_flight.call);
        }
    }

    /// Puts `in_flight`, whose call has `begun` then, on the stream.
    fn enqueue(
        &self,
        in_flight: &InFlightOperation,
        begun: Instant,
    ) -> Result<(), CollectiveError> {
        let call = &in_flight.call;
        if in_flight.done.is_none() {
            return Ok(());
        }
        let Some(slot) = self.communicator.take_until(begun + self.calls.timeout()) else {
            return Err(self.blocked(call));
        };
        let Some(communicator) = slot.as_ref() else {
            drop(slot);
            // It was aborted since the group's health was looked at.
            self.check(call)?;
            return Err(self.blocked(call));
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
            Status::InProgress => self.settle(call, begun),
            wrong => Err(self.refused(call, wrong)),
        }
    }

    /// Waits until the communicator is ready for the next call.
    fn settle(&self, call: &DeviceCall, begun: Instant) -> Result<(), CollectiveError> {
        let backoff = Backoff::new();
        loop {
            self.check(call)?;
            match self.async_status() {
                Status::Success => return Ok(()),
                Status::InProgress => {
                    call.waits_since(begun)
                        .map_err(|error| self.failed(error))?;
                    backoff.sleep();
                }
                wrong => return Err(self.refused(call, wrong)),
            }
        }
    }
}
