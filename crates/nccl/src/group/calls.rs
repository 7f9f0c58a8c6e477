//! The few calls that a group makes: of NCCL, and of the GPU that it works on.

use std::sync::Arc;

use super::operation::Operation;
use super::status::Status;
use crate::error::LibraryError;
use crate::foreign::{Communicator, Context, Driver, Event, Library, Stream, UniqueId};
use crate::version::NcclVersion;

/// NCCL and one GPU, as a group uses them: the real ones ([`Gpu`]) or a stand-in.
///
/// Communicators do not block: what waits for other ranks answers [`Status::InProgress`], and
/// [`Calls::async_error`] tells when it is over. But for [`Calls::abort`] and [`Calls::destroy`],
/// which may take long, calls return soon.
pub(crate) trait Calls: Send + Sync {
    fn version(&self) -> NcclVersion;
    /// What tells this GPU from all others in the world.
    fn gpu(&self) -> String;
    fn unique_id(&self) -> Result<UniqueId, Status>;
    fn init(&self, id: &UniqueId, rank: usize, world_size: usize)
    -> (Option<Communicator>, Status);
    fn async_error(&self, communicator: &Communicator) -> Status;
    fn last_error(&self) -> String;
    fn finalize(&self, communicator: &Communicator) -> Status;
    fn destroy(&self, communicator: Communicator) -> Status;
    fn abort(&self, communicator: Communicator) -> Status;
    fn enqueue(
        &self,
        communicator: &Communicator,
        operation: &Operation,
        stream: &Stream,
    ) -> Status;

    fn create_stream(&self) -> Result<Stream, LibraryError>;
    fn destroy_stream(&self, stream: Stream);
    fn create_event(&self) -> Result<Event, LibraryError>;
    fn destroy_event(&self, event: Event);
    /// `event` is over when all that is on `stream` by now is.
    fn record(&self, event: &Event, stream: &Stream) -> Result<(), LibraryError>;
    /// What is put on `stream` from now on waits for `event`.
    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), LibraryError>;
    fn query(&self, event: &Event) -> Result<bool, LibraryError>;
    /// Whether the next two exist.
    fn orders_all(&self) -> bool;
    /// As [`Calls::record`], of all streams of this process on the GPU.
    fn record_all(&self, event: &Event) -> Result<(), LibraryError>;
    /// As [`Calls::wait`], of all streams of this process on the GPU.
    fn wait_all(&self, event: &Event) -> Result<(), LibraryError>;
}

/// NCCL's library on a GPU.
pub(crate) struct Gpu {
    library: Arc<Library>,
    context: Context,
    uuid: String,
}

impl Gpu {
    pub(crate) fn new(library: Arc<Library>, device: usize) -> Result<Self, LibraryError> {
        let context = Context::of(Driver::load()?, device)?;
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

impl Calls for Gpu {
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

/// An event that is destroyed with its owner.
pub(crate) struct OwnedEvent {
    calls: Arc<dyn Calls>,
    event: Option<Event>,
}

impl OwnedEvent {
    pub(crate) fn new(calls: &Arc<dyn Calls>) -> Result<Self, LibraryError> {
        let event = Some(calls.create_event()?);
        let calls = calls.clone();
        Ok(Self { calls, event })
    }

    pub(crate) fn get(&self) -> &Event {
        self.event.as_ref().expect("only `drop` takes it")
    }

    pub(crate) fn is_over(&self) -> Result<bool, LibraryError> {
        self.calls.query(self.get())
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.calls.destroy_event(event);
        }
    }
}

/// A stream that is destroyed with its owner.
pub(crate) struct OwnedStream {
    calls: Arc<dyn Calls>,
    stream: Option<Stream>,
}

impl OwnedStream {
    pub(crate) fn new(calls: &Arc<dyn Calls>) -> Result<Self, LibraryError> {
        let stream = Some(calls.create_stream()?);
        let calls = calls.clone();
        Ok(Self { calls, stream })
    }

    pub(crate) fn get(&self) -> &Stream {
        self.stream.as_ref().expect("only `drop` takes it")
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.calls.destroy_stream(stream);
        }
    }
}
