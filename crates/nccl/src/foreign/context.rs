//! The primary context of a GPU, its streams and events: how work is ordered without a wait of the
//! host.
//!
//! CubeCL (and everything else that uses cudart) works in the primary context, so streams and events
//! of this module and theirs can wait for each other. HIP has one context per GPU, which a thread selects by the GPU's
//! number.

#![expect(unsafe_code, reason = "the GPU's driver is a library of C")]

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use super::driver::{Device, Driver};
use super::dynamic::{Opened, functions, functions_of_both};
use crate::api::{Event, Stream};
use crate::error::LibraryError;
use crate::vendor::Vendor;

/// `CU_STREAM_NON_BLOCKING`, `hipStreamNonBlocking`: not ordered with the stream of number 0, on which nobody here works.
const NON_BLOCKING: c_uint = 1;

/// `CU_EVENT_DISABLE_TIMING`, `hipEventDisableTiming`, which makes events cheap.
const WITHOUT_TIME: c_uint = 2;

/// `CUDA_ERROR_NOT_READY`, `hipErrorNotReady`: no error, but the answer that work is still under way.
const NOT_READY: c_int = 600;

type Handle = *mut c_void;

functions_of_both! {
    Functions {
        priorities: fn(*mut c_int, *mut c_int) -> c_int = "cuCtxGetStreamPriorityRange" | "hipDeviceGetStreamPriorityRange";
        stream_create: fn(*mut Handle, c_uint, c_int) -> c_int = "cuStreamCreateWithPriority" | "hipStreamCreateWithPriority";
        stream_destroy: fn(Handle) -> c_int = "cuStreamDestroy_v2" | "hipStreamDestroy";
        stream_wait: fn(Handle, Handle, c_uint) -> c_int = "cuStreamWaitEvent" | "hipStreamWaitEvent";
        event_create: fn(*mut Handle, c_uint) -> c_int = "cuEventCreate" | "hipEventCreateWithFlags";
        event_destroy: fn(Handle) -> c_int = "cuEventDestroy_v2" | "hipEventDestroy";
        event_record: fn(Handle, Handle) -> c_int = "cuEventRecord" | "hipEventRecord";
        event_query: fn(Handle) -> c_int = "cuEventQuery" | "hipEventQuery";
        allocate: fn(*mut u64, usize) -> c_int = "cuMemAlloc_v2" | "hipMalloc";
        free: fn(u64) -> c_int = "cuMemFree_v2" | "hipFree";
        upload: fn(u64, *const c_void, usize) -> c_int = "cuMemcpyHtoD_v2" | "hipMemcpyHtoD";
        download: fn(*mut c_void, u64, usize) -> c_int = "cuMemcpyDtoH_v2" | "hipMemcpyDtoH";
    }
}

functions! {
    ContextFunctions {
        retain: fn(*mut Handle, c_int) -> c_int = "cuDevicePrimaryCtxRetain";
        release: fn(c_int) -> c_int = "cuDevicePrimaryCtxRelease_v2";
        push: fn(Handle) -> c_int = "cuCtxPushCurrent_v2";
        pop: fn(*mut Handle) -> c_int = "cuCtxPopCurrent_v2";
    }
}

functions! {
    NumberFunctions {
        get: fn(*mut c_int) -> c_int = "hipGetDevice";
        set: fn(c_int) -> c_int = "hipSetDevice";
    }
}

/// How a thread says which GPU its calls are about.
#[derive(Clone, Copy)]
pub(super) enum Selection {
    /// By a context of CUDA.
    Context(ContextFunctions),
    /// By HIP's number of the GPU.
    Number(NumberFunctions),
}

impl Selection {
    pub(super) fn load(vendor: Vendor, opened: &Opened) -> Result<Self, &'static str> {
        match vendor {
            Vendor::Nvidia => ContextFunctions::load(opened).map(Self::Context),
            Vendor::Amd => NumberFunctions::load(opened).map(Self::Number),
        }
    }
}

functions! {
    /// Events of all streams of a context at once: since CUDA 12.5, and not in HIP.
    OrderFunctions {
        record: fn(Handle, Handle) -> c_int = "cuCtxRecordEvent";
        wait: fn(Handle, Handle) -> c_int = "cuCtxWaitEvent";
    }
}

/// `CUstream`, `hipStream_t`.
pub(super) fn stream_handle(stream: &Stream) -> Handle {
    ptr::with_exposed_provenance_mut(stream.handle())
}

/// `CUevent`, `hipEvent_t`.
fn event_handle(event: &Event) -> Handle {
    ptr::with_exposed_provenance_mut(event.handle())
}

/// A GPU's primary context, held until this is dropped.
pub(crate) struct Context {
    driver: Driver,
    device: Device,
    /// Of CUDA; zero in HIP.
    context: usize,
}

/// While it lives, calls of this thread are about the context.
struct Current<'a> {
    context: &'a Context,
    /// HIP's number of the GPU that was selected before.
    before: c_int,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // An error would be one of the GPU, which the calls in between have met too.
        let _ = match self.context.driver.selection {
            Selection::Context(calls) => {
                let mut popped = ptr::null_mut();
                // SAFETY: the pointer is to a handle of this frame; what is popped was pushed by `enter` on this thread.
                unsafe { (calls.pop)(&mut popped) }
            }
            // SAFETY: it takes a number.
            Selection::Number(calls) => unsafe { (calls.set)(self.before) },
        };
    }
}

impl Context {
    /// Of the GPU with this number.
    pub(crate) fn of(driver: Driver, number: usize) -> Result<Self, LibraryError> {
        let device = driver.device(number)?;
        let mut context = ptr::null_mut();
        if let Selection::Context(calls) = driver.selection {
            // SAFETY: the pointer is to a handle of this frame.
            let result = unsafe { (calls.retain)(&mut context, device.0) };
            driver.check("cuDevicePrimaryCtxRetain", result)?;
        }
        Ok(Self {
            driver,
            device,
            context: context.expose_provenance(),
        })
    }

    pub(crate) fn uuid(&self) -> Result<String, LibraryError> {
        self.driver.uuid(self.device)
    }

    fn handle(&self) -> Handle {
        ptr::with_exposed_provenance_mut(self.context)
    }

    fn enter(&self) -> Result<Current<'_>, LibraryError> {
        let mut before = 0;
        match self.driver.selection {
            Selection::Context(calls) => {
                // SAFETY: the context is held.
                let result = unsafe { (calls.push)(self.handle()) };
                self.driver.check("cuCtxPushCurrent", result)?;
            }
            Selection::Number(calls) => {
                // SAFETY: the pointer is to an `int` of this frame.
                let result = unsafe { (calls.get)(&mut before) };
                self.driver.check("hipGetDevice", result)?;
                // SAFETY: it takes a number.
                let result = unsafe { (calls.set)(self.device.0) };
                self.driver.check("hipSetDevice", result)?;
            }
        }
        Ok(Current {
            context: self,
            before,
        })
    }

    /// Calls `body` with the context current on this thread, as NCCL needs it.
    pub(crate) fn with<R>(&self, body: impl FnOnce() -> R) -> Result<R, LibraryError> {
        let _current = self.enter()?;
        Ok(body())
    }

    /// A stream of the highest priority: a collective's kernels are few and wait for those of other
    /// GPUs, so what they are kept from costs all ranks.
    pub(crate) fn create_stream(&self) -> Result<Stream, LibraryError> {
        let _current = self.enter()?;
        let calls = &self.driver.contexts;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the pointers are to two `int`s of this frame.
        let result = unsafe { (calls.priorities.call)(&mut least, &mut greatest) };
        self.driver
            .check(self.driver.contexts.priorities.name, result)?;
        let mut stream = ptr::null_mut();
        // SAFETY: the pointer is to a handle of this frame.
        let result = unsafe { (calls.stream_create.call)(&mut stream, NON_BLOCKING, greatest) };
        self.driver
            .check(self.driver.contexts.stream_create.name, result)?;
        Ok(Stream::new(stream.expose_provenance()))
    }

    /// What is on the stream is still done.
    #[allow(clippy::needless_pass_by_value)]
    pub(crate) fn destroy_stream(&self, stream: Stream) {
        // SAFETY: the stream lives, and nobody has it after this. An error would be an earlier one
        // of the GPU, which whoever waits for its work has been told.
        let _ = self
            .with(|| unsafe { (self.driver.contexts.stream_destroy.call)(stream_handle(&stream)) });
    }

    pub(crate) fn create_event(&self) -> Result<Event, LibraryError> {
        let _current = self.enter()?;
        let mut event = ptr::null_mut();
        // SAFETY: the pointer is to a handle of this frame.
        let result = unsafe { (self.driver.contexts.event_create.call)(&mut event, WITHOUT_TIME) };
        self.driver
            .check(self.driver.contexts.event_create.name, result)?;
        Ok(Event::new(event.expose_provenance()))
    }

    #[allow(clippy::needless_pass_by_value)]
    pub(crate) fn destroy_event(&self, event: Event) {
        // SAFETY: the event lives, and nobody has it after this; the driver keeps what it still
        // needs. For errors see `destroy_stream`.
        let _ = self
            .with(|| unsafe { (self.driver.contexts.event_destroy.call)(event_handle(&event)) });
    }

    /// `event` is over when all that is on `stream` by now is.
    pub(crate) fn record(&self, event: &Event, stream: &Stream) -> Result<(), LibraryError> {
        let _current = self.enter()?;
        // SAFETY: both live.
        let result = unsafe {
            (self.driver.contexts.event_record.call)(event_handle(event), stream_handle(stream))
        };
        self.driver
            .check(self.driver.contexts.event_record.name, result)
    }

    /// What is put on `stream` from now on waits for `event`.
    pub(crate) fn wait(&self, stream: &Stream, event: &Event) -> Result<(), LibraryError> {
        let _current = self.enter()?;
        // SAFETY: both live; 0 is the usual way to wait.
        let result = unsafe {
            (self.driver.contexts.stream_wait.call)(stream_handle(stream), event_handle(event), 0)
        };
        self.driver
            .check(self.driver.contexts.stream_wait.name, result)
    }

    /// Whether `event` is over.
    pub(crate) fn query(&self, event: &Event) -> Result<bool, LibraryError> {
        let _current = self.enter()?;
        // SAFETY: the event lives.
        match unsafe { (self.driver.contexts.event_query.call)(event_handle(event)) } {
            NOT_READY => Ok(false),
            result => self
                .driver
                .check(self.driver.contexts.event_query.name, result)
                .map(|()| true),
        }
    }

    /// Whether [`Context::record_all`] and [`Context::wait_all`] exist.
    pub(crate) fn orders_all(&self) -> bool {
        self.driver.order.is_some()
    }

    /// `event` is over when all that any stream of the context has been given by now is.
    pub(crate) fn record_all(&self, event: &Event) -> Result<(), LibraryError> {
        let Some(order) = &self.driver.order else {
            return Err(without("cuCtxRecordEvent"));
        };
        let _current = self.enter()?;
        // SAFETY: both live.
        let result = unsafe { (order.record)(self.handle(), event_handle(event)) };
        self.driver.check("cuCtxRecordEvent", result)
    }

    /// What any stream of the context is given from now on waits for `event`.
    pub(crate) fn wait_all(&self, event: &Event) -> Result<(), LibraryError> {
        let Some(order) = &self.driver.order else {
            return Err(without("cuCtxWaitEvent"));
        };
        let _current = self.enter()?;
        // SAFETY: both live.
        let result = unsafe { (order.wait)(self.handle(), event_handle(event)) };
        self.driver.check("cuCtxWaitEvent", result)
    }

    /// Memory of the GPU, of at least a byte.
    pub(super) fn allocate(&self, bytes: usize) -> Result<u64, LibraryError> {
        let _current = self.enter()?;
        let mut pointer = 0;
        // SAFETY: the pointer is to a `CUdeviceptr` of this frame.
        let result = unsafe { (self.driver.contexts.allocate.call)(&mut pointer, bytes.max(1)) };
        self.driver
            .check(self.driver.contexts.allocate.name, result)?;
        Ok(pointer)
    }

    /// # Safety
    /// `pointer` is from [`Context::allocate`], and nothing uses that memory any more.
    pub(super) unsafe fn free(&self, pointer: u64) {
        // SAFETY: the caller's word. For errors see `destroy_stream`.
        let _ = self.with(|| unsafe { (self.driver.contexts.free.call)(pointer) });
    }

    /// # Safety
    /// `pointer` is of at least as many bytes of [`Context::allocate`].
    pub(super) unsafe fn upload(&self, pointer: u64, bytes: &[u8]) -> Result<(), LibraryError> {
        let _current = self.enter()?;
        let from = bytes.as_ptr().cast();
        // SAFETY: the caller's word for the one side, a slice for the other.
        let result = unsafe { (self.driver.contexts.upload.call)(pointer, from, bytes.len()) };
        self.driver.check(self.driver.contexts.upload.name, result)
    }

    /// # Safety
    /// As [`Context::upload`].
    pub(super) unsafe fn download(
        &self,
        pointer: u64,
        bytes: &mut [u8],
    ) -> Result<(), LibraryError> {
        let _current = self.enter()?;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: the caller's word for the one side, a slice for the other.
        let result = unsafe { (self.driver.contexts.download.call)(to, pointer, bytes.len()) };
        self.driver
            .check(self.driver.contexts.download.name, result)
    }
}

fn without(call: &'static str) -> LibraryError {
    LibraryError::Driver {
        vendor: Vendor::Nvidia,
        call,
        name: "the driver has no such call (CUDA 12.5 has)".to_owned(),
        // CUDA_ERROR_NOT_FOUND
        code: 500,
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Selection::Context(calls) = self.driver.selection {
            // SAFETY: it was retained once. For errors see `destroy_stream`.
            unsafe { (calls.release)(self.device.0) };
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.device).finish()
    }
}
