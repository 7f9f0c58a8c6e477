//! NCCL on a GPU: its calls on communicators, as nccl.h 2.18 and later has them.

#![expect(unsafe_code, reason = "NCCL is a library of C")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::size_of;
use std::ptr;
use std::sync::Arc;

use everburn_collectives::group::{DType, ReduceOp};

use super::buffer::DeviceBuffer;
use super::context::{Context, stream_handle};
use super::driver::Driver;
use super::dynamic::functions;
use super::nccl::{Library, OLDEST};
use crate::api::{Communicator, Event, NcclApi, Operation, Stream, UniqueId};
use crate::backend::Status;
use crate::error::LibraryError;
use crate::version::NcclVersion;

/// `NCCL_API_MAGIC`, the same in all versions.
const CONFIG_MAGIC: c_uint = 0xcafe_beef;

/// `NCCL_CONFIG_UNDEF_INT`: the library chooses.
const UNDEFINED: c_int = c_int::MIN;

/// `ncclConfig_t` as 2.18 has it. Newer libraries read as many bytes as `size` says and take
/// defaults for what `version` had not.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// `NCCL_CONFIG_INITIALIZER`, and that no call waits for other ranks.
    fn without_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: CONFIG_MAGIC,
            version: OLDEST.code(),
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

type Handle = *mut c_void;

functions! {
    Functions {
        unique_id: fn(*mut UniqueId) -> c_int = "ncclGetUniqueId";
        init: fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> c_int = "ncclCommInitRankConfig";
        async_error: fn(Handle, *mut c_int) -> c_int = "ncclCommGetAsyncError";
        last_error: fn(Handle) -> *const c_char = "ncclGetLastError";
        finalize: fn(Handle) -> c_int = "ncclCommFinalize";
        destroy: fn(Handle) -> c_int = "ncclCommDestroy";
        abort: fn(Handle) -> c_int = "ncclCommAbort";
        all_reduce: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int = "ncclAllReduce";
        reduce_scatter: fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int = "ncclReduceScatter";
        all_gather: fn(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> c_int = "ncclAllGather";
    }
}

/// `ncclComm_t`.
fn handle(communicator: &Communicator) -> Handle {
    ptr::with_exposed_provenance_mut(communicator.handle())
}

/// `ncclDataType_t`.
const fn data_type(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
        _ => return None,
    })
}

/// `ncclRedOp_t`.
const fn reduction(op: ReduceOp) -> Option<c_int> {
    Some(match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Mean => 4,
        _ => return None,
    })
}

fn pointer(buffer: &DeviceBuffer) -> *mut c_void {
    // An address on the GPU, which nothing here reads.
    ptr::without_provenance_mut(usize::try_from(buffer.pointer()).unwrap_or(0))
}

fn number(rank: usize) -> c_int {
    // A process group has checked that there are no more ranks than that.
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

/// NCCL's library on a GPU.
struct NcclOnGpu {
    library: Arc<Library>,
    context: Context,
    uuid: String,
}

impl Library {
    /// NCCL on this rank's GPU number `device`, an index into `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// That of a driver or GPU that is not there.
    pub fn on_gpu(self: &Arc<Self>, device: usize) -> Result<Arc<dyn NcclApi>, LibraryError> {
        let context = Context::of(Driver::load(self.vendor())?, device)?;
        let uuid = context.uuid()?;
        let library = self.clone();
        Ok(Arc::new(NcclOnGpu {
            library,
            context,
            uuid,
        }))
    }
}

impl NcclOnGpu {
    /// Calls NCCL with the GPU's context current on this thread.
    fn ask(&self, call: impl FnOnce(&Functions) -> Status) -> Status {
        let asked = self.context.with(|| call(&self.library.functions));
        asked.unwrap_or(Status::UnhandledCudaError)
    }
}

impl NcclApi for NcclOnGpu {
    fn version(&self) -> NcclVersion {
        self.library.version()
    }

    fn gpu(&self) -> String {
        self.uuid.clone()
    }

    fn unique_id(&self) -> Result<UniqueId, Status> {
        let mut id = UniqueId::new([0; UniqueId::BYTES]);
        // SAFETY: the pointer is to an `ncclUniqueId` of this frame.
        match self.ask(|calls| Status::from_code(unsafe { (calls.unique_id)(&mut id) })) {
            Status::Success => Ok(id),
            refused => Err(refused),
        }
    }

    fn init(
        &self,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
    ) -> (Option<Communicator>, Status) {
        let mut handle: Handle = ptr::null_mut();
        let mut config = Config::without_blocking();
        let (rank, world_size) = (number(rank), number(world_size));
        let status = self.ask(|calls| {
            // SAFETY: the pointers are to a handle and an `ncclConfig_t` of this frame; NCCL copies the
            // latter before it returns.
            let code = unsafe { (calls.init)(&mut handle, world_size, *id, rank, &mut config) };
            Status::from_code(code)
        });
        // A call that fails at once takes its handle back.
        let communicator =
            (!handle.is_null()).then(|| Communicator::new(handle.expose_provenance()));
        (communicator, status)
    }

    fn async_error(&self, communicator: &Communicator) -> Status {
        let mut state = 0;
        let calls = &self.library.functions;
        // SAFETY: the communicator lives; the pointer is to an `ncclResult_t`, an `int`, of this frame.
        let code = unsafe { (calls.async_error)(handle(communicator), &mut state) };
        match Status::from_code(code) {
            Status::Success => Status::from_code(state),
            refused => refused,
        }
    }

    fn last_error(&self) -> String {
        // SAFETY: the argument is unused, and null allowed.
        let text = unsafe { (self.library.functions.last_error)(ptr::null_mut()) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: it is a text that ends with zero, in a buffer that NCCL never gives back.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().trim().to_owned()
    }

    fn finalize(&self, communicator: &Communicator) -> Status {
        // SAFETY: the communicator lives.
        self.ask(|calls| Status::from_code(unsafe { (calls.finalize)(handle(communicator)) }))
    }

    fn destroy(&self, communicator: Communicator) -> Status {
        // SAFETY: the communicator lives, and nobody has it after this.
        self.ask(|calls| Status::from_code(unsafe { (calls.destroy)(handle(&communicator)) }))
    }

    fn abort(&self, communicator: Communicator) -> Status {
        // SAFETY: the communicator lives, and nobody has it after this.
        self.ask(|calls| Status::from_code(unsafe { (calls.abort)(handle(&communicator)) }))
    }

    fn enqueue(
        &self,
        communicator: &Communicator,
        operation: &Operation,
        stream: &Stream,
    ) -> Status {
        self.ask(|calls| enqueue(calls, communicator, operation, stream))
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

/// Puts `operation` on `stream`, with the GPU's context current on this thread.
fn enqueue(
    calls: &Functions,
    communicator: &Communicator,
    operation: &Operation,
    stream: &Stream,
) -> Status {
    let (communicator, stream) = (handle(communicator), stream_handle(stream));
    let Some(dtype) = data_type(operation.dtype()) else {
        return Status::InvalidArgument;
    };
    // SAFETY (all calls): communicator and stream live. The buffers are of the lengths that are
    // given: the backend checks operations before it issues them, and keeps the buffers until the
    // GPU has finished.
    let code = match operation {
        Operation::AllReduce { buffer, op } => {
            let Some(op) = reduction(*op) else {
                return Status::InvalidArgument;
            };
            let at = pointer(buffer);
            // SAFETY: as above.
            unsafe { (calls.all_reduce)(at, at, buffer.len(), dtype, op, communicator, stream) }
        }
        Operation::ReduceScatter { send, receive, op } => {
            let Some(op) = reduction(*op) else {
                return Status::InvalidArgument;
            };
            let (from, to, len) = (pointer(send), pointer(receive), receive.len());
            // SAFETY: as above.
            unsafe { (calls.reduce_scatter)(from, to, len, dtype, op, communicator, stream) }
        }
        Operation::AllGather { send, receive } => {
            let (from, to) = (pointer(send), pointer(receive));
            // SAFETY: as above.
            unsafe { (calls.all_gather)(from, to, send.len(), dtype, communicator, stream) }
        }
    };
    Status::from_code(code)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The layout of `ncclConfig_t` on a machine of 64 bits, field by field.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn the_configuration_lies_in_memory_as_nccl_h_has_it() {
        let offsets = [
            offset_of!(Config, size),
            offset_of!(Config, magic),
            offset_of!(Config, version),
            offset_of!(Config, blocking),
            offset_of!(Config, cga_cluster_size),
            offset_of!(Config, min_ctas),
            offset_of!(Config, max_ctas),
            offset_of!(Config, net_name),
            offset_of!(Config, split_share),
        ];
        assert_eq!(offsets, [0, 8, 12, 16, 20, 24, 28, 32, 40]);
        let config = Config::without_blocking();
        assert_eq!(
            (config.size, config.version, config.blocking),
            (48, 21800, 0)
        );
        assert_eq!(size_of::<UniqueId>(), 128);
    }

    #[test]
    fn every_type_and_reduction_has_nccls_number() {
        let types = DType::ALL.map(|dtype| data_type(dtype).unwrap());
        // In the order of `DType::ALL`: f32, f64, f16, bf16, i32, i64, u8.
        assert_eq!(types, [7, 8, 6, 9, 2, 4, 1]);
        let reductions = ReduceOp::ALL.map(|op| reduction(op).unwrap());
        // Sum, mean, min, max, product.
        assert_eq!(reductions, [0, 4, 3, 2, 1]);
    }
}
