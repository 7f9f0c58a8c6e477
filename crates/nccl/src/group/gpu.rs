//! NCCL's library and a GPU, as a group calls them.

use std::sync::Arc;

use super::status::Status;
use crate::api::{Communicator, Event, NcclApi, Operation, Stream, UniqueId};
use crate::error::LibraryError;
use crate::foreign::{Context, Driver, Library};
use crate::version::NcclVersion;

/// NCCL's library on a GPU.
pub(crate) struct Gpu {
    library: Arc<Library>,
    context: Context,
    uuid: String,
}

impl Gpu {
    pub(crate) fn new(library: Arc<Library>, device: usize) -> Result<Self, LibraryError> {
        let context = Context::of(Driver::load(library.vendor())?, device)?;
        let uuid = context.uuid()?;
        Ok(Self {
            library,
            context,
            uuid,
        })
    }

    /// Calls NCCL with the GPU's context current on this thread.
    fn ask(&self, call: impl FnOnce(&Library) -> Status) -> Status {
        let asked = self.context.with(|| call(&self.library));
        asked.unwrap_or(Status::UnhandledCudaError)
    }
}

impl NcclApi for Gpu {
    fn version(&self) -> NcclVersion {
        self.library.version()
    }

    fn gpu(&self) -> String {
        self.uuid.clone()
    }

    fn unique_id(&self) -> Result<UniqueId, Status> {
        let asked = self.context.with(|| self.library.unique_id());
        asked.unwrap_or(Err(Status::UnhandledCudaError))
    }

    fn init(
        &self,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
    ) -> (Option<Communicator>, Status) {
        let asked = self
            .context
            .with(|| self.library.init(id, rank, world_size));
        asked.unwrap_or((None, Status::UnhandledCudaError))
    }

    fn async_error(&self, communicator: &Communicator) -> Status {
        self.library.async_error(communicator)
    }

    fn last_error(&self) -> String {
        self.library.last_error()
    }

    fn finalize(&self, communicator: &Communicator) -> Status {
        self.ask(|library| library.finalize(communicator))
    }

    fn destroy(&self, communicator: Communicator) -> Status {
        self.ask(|library| library.destroy(communicator))
    }

    fn abort(&self, communicator: Communicator) -> Status {
        self.ask(|library| library.abort(communicator))
    }

    fn enqueue(
        &self,
        communicator: &Communicator,
        operation: &Operation,
        stream: &Stream,
    ) -> Status {
        self.ask(|library| library.enqueue(communicator, operation, stream))
    }

    fn create_stream(&self) -> Result<Stream, LibraryError> {
        self.context.create_stream()
    }

    fn destroy_stream(&self, stream: Stream) {
        self.context.destroy_stream(stream);
    }

    fn create_event(&self) -> Result<Event, LibraryError> {
        self.context.create_event()
    }

    fn destroy_event(&self, event: Event) {
        self.context.destroy_event(event);
    }

    fn record(&self, event: &Event, stream: &Stream) -> Result<(), LibraryError> {
        self.context.record(event, stream)
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), LibraryError> {
        self.context.wait(stream, event)
    }

    fn query(&self, event: &Event) -> Result<bool, LibraryError> {
        self.context.query(event)
    }

    fn orders_all(&self) -> bool {
        self.context.orders_all()
    }

    fn record_all(&self, event: &Event) -> Result<(), LibraryError> {
        self.context.record_all(event)
    }

    fn wait_all(&self, event: &Event) -> Result<(), LibraryError> {
        self.context.wait_all(event)
    }
}
