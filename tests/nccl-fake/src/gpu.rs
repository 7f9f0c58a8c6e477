//! One rank's NCCL and GPU, as a backend calls them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use everburn_nccl::api::{Communicator, Event, NcclApi, Operation, Stream, UniqueId};
use everburn_nccl::{LibraryError, NcclVersion, Status, Vendor};
use everburn_record::sync::{lock, wait_while};

use crate::fabric::Fabric;
use crate::fault::Fault;
use crate::stream::{FakeEvent, FakeStream, PATIENCE};

/// An operation that is not on its stream yet.
struct Launch {
    communicator: usize,
    operation: Operation,
    stream: usize,
    /// How often the communicator is asked for its state before the operation is there; `None`: it never is.
    questions: Option<u32>,
}

pub(super) struct FakeGpu {
    pub(super) fabric: Arc<Fabric>,
    rank: usize,
    handles: Arc<AtomicUsize>,
    pub(super) dead: Arc<AtomicBool>,
    pub(super) faults: Mutex<Vec<Fault>>,
    streams: Mutex<HashMap<usize, FakeStream>>,
    events: Mutex<HashMap<usize, Arc<FakeEvent>>>,
    launches: Mutex<Vec<Launch>>,
    /// What NCCL was called with, in this order.
    pub(super) calls: Mutex<Vec<String>>,
}

impl FakeGpu {
    pub(super) fn new(rank: usize, fabric: Arc<Fabric>, handles: Arc<AtomicUsize>) -> Self {
        let (dead, faults, streams, events, launches, calls) = Default::default();
        Self {
            fabric,
            rank,
            handles,
            dead,
            faults,
            streams,
            events,
            launches,
            calls,
        }
    }

    fn fault<R>(&self, wanted: impl Fn(&Fault) -> Option<R>) -> Option<R> {
        lock(&self.faults).iter().find_map(wanted)
    }

    fn has(&self, fault: &Fault) -> bool {
        lock(&self.faults).contains(fault)
    }

    fn handle(&self) -> usize {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn stream(&self) -> usize {
        let handle = self.handle();
        lock(&self.streams).insert(handle, FakeStream::new(self.dead.clone()));
        handle
    }

    pub(super) fn stream_of(&self, handle: usize) -> Result<FakeStream, LibraryError> {
        lock(&self.streams)
            .get(&handle)
            .cloned()
            .ok_or_else(|| failed("cuStreamQuery", 400))
    }

    fn event_of(&self, event: &Event) -> Result<Arc<FakeEvent>, LibraryError> {
        lock(&self.events)
            .get(&event.handle())
            .cloned()
            .ok_or_else(|| failed("cuEventQuery", 400))
    }

    /// What a call that hangs does: it returns when the cluster is gone.
    fn hang(&self) -> Status {
        let deadline = Instant::now() + PATIENCE;
        let state = lock(&self.fabric.state);
        drop(wait_while(&self.fabric.moved, state, deadline, |it| {
            !it.closed
        }));
        Status::SystemError
    }

    fn launch(&self, communicator: usize, operation: Operation, stream: usize) -> Status {
        let number = self.fabric.next_number(communicator);
        let (Some(number), Ok(stream)) = (number, self.stream_of(stream)) else {
            return Status::InvalidArgument;
        };
        let fabric = self.fabric.clone();
        stream.give(move || fabric.run(communicator, number, &operation));
        Status::Success
    }

    fn begin(&self, communicator: usize, operation: Operation, stream: usize) -> Status {
        if self.has(&Fault::EnqueueHangs) {
            return self.hang();
        }
        if let Some(status) = self.fault(|fault| match fault {
            Fault::EnqueueFails(status) => Some(*status),
            _ => None,
        }) {
            return status;
        }
        if let Some(status) = self.fault(|fault| match fault {
            Fault::EnqueueFailsLate(status) => Some(*status),
            _ => None,
        }) {
            self.launch(communicator, operation, stream);
            return status;
        }
        let takes = self.fault(|fault| match fault {
            Fault::LaunchTakes(questions) => Some(*questions),
            _ => None,
        });
        match takes {
            Some(questions) => {
                lock(&self.launches).push(Launch {
                    communicator,
                    operation,
                    stream,
                    questions,
                });
                Status::InProgress
            }
            None => self.launch(communicator, operation, stream),
        }
    }

    /// Whether launches of the communicator are under way; counts the question.
    fn is_launching(&self, communicator: usize) -> bool {
        let mut launches = lock(&self.launches);
        let Some(at) = launches
            .iter()
            .position(|launch| launch.communicator == communicator)
        else {
            return false;
        };
        match &mut launches[at].questions {
            None => return true,
            Some(0) => {}
            Some(left) => {
                *left -= 1;
                return true;
            }
        }
        let launch = launches.remove(at);
        drop(launches);
        self.launch(launch.communicator, launch.operation, launch.stream);
        false
    }
}

fn failed(call: &'static str, code: i32) -> LibraryError {
    let name = match code {
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        _ => "CUDA_ERROR_INVALID_HANDLE",
    };
    LibraryError::Driver {
        vendor: Vendor::Nvidia,
        call,
        name: name.to_owned(),
        code,
    }
}

impl NcclApi for FakeGpu {
    fn version(&self) -> NcclVersion {
        let version = self.fault(|fault| match fault {
            Fault::Version(code) => Some(*code),
            _ => None,
        });
        NcclVersion::from_code(version.unwrap_or(22105))
    }

    fn gpu(&self) -> String {
        let twin = self.fault(|fault| match fault {
            Fault::SameGpu(rank) => Some(*rank),
            _ => None,
        });
        format!("FAKE-{}", twin.unwrap_or(self.rank))
    }

    fn unique_id(&self) -> Result<UniqueId, Status> {
        let refused = self.fault(|fault| match fault {
            Fault::NoUniqueId(status) => Some(*status),
            _ => None,
        });
        refused.map_or_else(|| Ok(self.fabric.unique_id()), Err)
    }

    fn init(
        &self,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
    ) -> (Option<Communicator>, Status) {
        let refused = self.fault(|fault| match fault {
            Fault::InitFails(status) => Some(*status),
            _ => None,
        });
        if let Some(status) = refused {
            return (None, status);
        }
        let handle = self.handle();
        let joins = !self.has(&Fault::InitHangs);
        self.fabric.init(handle, id, rank, world_size, joins);
        (Some(Communicator::new(handle)), Status::InProgress)
    }

    fn async_error(&self, communicator: &Communicator) -> Status {
        let found = self.fault(|fault| match fault {
            Fault::AsyncError(status) => Some(*status),
            _ => None,
        });
        match found.unwrap_or_else(|| self.fabric.status(communicator.handle())) {
            Status::Success if self.is_launching(communicator.handle()) => Status::InProgress,
            status => status,
        }
    }

    fn last_error(&self) -> String {
        "as the fake was told".to_owned()
    }

    fn finalize(&self, communicator: &Communicator) -> Status {
        if self.has(&Fault::FinalizeHangs) {
            let mut state = lock(&self.fabric.state);
            if let Some(communicator) = state.communicators.get_mut(&communicator.handle()) {
                communicator.found = Some(Status::InProgress);
            }
            return Status::InProgress;
        }
        Status::Success
    }

    fn destroy(&self, communicator: Communicator) -> Status {
        lock(&self.fabric.state)
            .communicators
            .remove(&communicator.handle());
        Status::Success
    }

    fn abort(&self, communicator: Communicator) -> Status {
        if self.has(&Fault::AbortHangs) {
            return self.hang();
        }
        self.fabric.abort(communicator.handle());
        Status::Success
    }

    fn enqueue(
        &self,
        communicator: &Communicator,
        operation: &Operation,
        stream: &Stream,
    ) -> Status {
        lock(&self.calls).push(operation.to_string());
        self.begin(communicator.handle(), operation.clone(), stream.handle())
    }

    fn create_stream(&self) -> Result<Stream, LibraryError> {
        Ok(Stream::new(self.stream()))
    }

    fn destroy_stream(&self, stream: Stream) {
        lock(&self.streams).remove(&stream.handle());
    }

    fn create_event(&self) -> Result<Event, LibraryError> {
        let handle = self.handle();
        lock(&self.events).insert(handle, Arc::default());
        Ok(Event::new(handle))
    }

    fn destroy_event(&self, event: Event) {
        lock(&self.events).remove(&event.handle());
    }

    fn record(&self, event: &Event, stream: &Stream) -> Result<(), LibraryError> {
        if self.has(&Fault::RecordFails) {
            return Err(failed("cuEventRecord", 700));
        }
        let (stream, event) = (self.stream_of(stream.handle())?, self.event_of(event)?);
        event.expect(1);
        stream.come_to(&event);
        Ok(())
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), LibraryError> {
        self.stream_of(stream.handle())?
            .wait(&self.event_of(event)?);
        Ok(())
    }

    fn query(&self, event: &Event) -> Result<bool, LibraryError> {
        if self.has(&Fault::GpuFails) {
            return Err(failed("cuEventQuery", 700));
        }
        Ok(self.event_of(event)?.is_over())
    }

    fn orders_all(&self) -> bool {
        !self.has(&Fault::OldDriver)
    }

    fn record_all(&self, event: &Event) -> Result<(), LibraryError> {
        let event = self.event_of(event)?;
        let streams: Vec<FakeStream> = lock(&self.streams).values().cloned().collect();
        event.expect(streams.len());
        streams.iter().for_each(|stream| stream.come_to(&event));
        Ok(())
    }

    fn wait_all(&self, event: &Event) -> Result<(), LibraryError> {
        let event = self.event_of(event)?;
        let streams: Vec<FakeStream> = lock(&self.streams).values().cloned().collect();
        streams.iter().for_each(|stream| stream.wait(&event));
        Ok(())
    }
}
