//! The GPUs of a machine, and NCCL as a backend of process groups. It builds without Burn, NCCL, CUDA or a GPU: libraries are loaded
//! at run time.
//!
//! The main types, in the order in which a program uses them:
//!
//! 1. [`gpus`]: driver, CUDA, NCCL and every GPU, or why there is none ("no driver: ...").
//!    [`GpuSensor`]: the current utilisation and temperature of one.
//!    [`drivers`]: the drivers for GPUs of other vendors.
//! 2. [`Library`]: NCCL itself, or AMD's RCCL, which has the same interface. `EVERBURN_NCCL_LIBRARY` names a file; otherwise the system's loader, the
//!    usual folders and those of Python's packages are searched.
#![cfg_attr(
    feature = "backend",
    doc = "
3. [`NcclBackend`]: the backend of a `ProcessGroup` of `everburn-collectives` for the memory of GPUs. A rank is a process
   or a thread with a GPU of its own, on any machine.
4. [`DeviceBuffer`]: existing GPU memory. [`GpuMemory`] allocates some.
5. [`Work`]: an operation in flight: later GPU work can wait for it, or the host with a deadline.
6. [`api`]: the calls of NCCL and the GPU that a backend makes, which tests replace by a fake.

# With Burn

Burn's tensors on CUDA are CubeCL's (those on ROCm too: `HipRuntime`). Their memory is in the device's primary context, which this crate uses too, so
nothing is copied:

1. `tensor.into_primitive()` (through fusion, which flushes its queue) returns a `CubeTensor` with its `client` and
   `handle`. It must be contiguous and begin where its handle begins.
2. `client.get_resource::<<CudaRuntime as Runtime>::Server>(handle)` returns a `ManagedResource`, whose `resource()`
   has `ptr` and `size`. It goes through CubeCL's own queue, so that all kernels this thread has queued before are on
   their stream when it returns.
3. `DeviceBuffer::new(ptr, len, dtype, owner)`, with the `ManagedResource` as `owner`: while it is held CubeCL neither
   reuses nor moves the memory, and the buffer holds it until the GPU has finished. This is the only `unsafe` step: the
   caller guarantees the pointer.
4. `nccl.all_reduce(&buffer, op)`. CubeCL's streams do not wait for the default stream; the operation waits on the GPU
   for everything queued so far on all streams of the context (`cuCtxRecordEvent`). With an older driver, and with HIP
   ([`NcclBackend::orders_device`] is false), call `client.sync()` before it.
5. `work.hold_device()`, before the optimizer's first kernel is launched: everything queued later in the context waits
   (`cuCtxWaitEvent`). The host continues. Otherwise, `work.wait()`.
6. Once per step, before its result counts, [`NcclBackend::check`]: after a failure the GPU continues with invalid
   numbers.

The backends of two groups on one GPU (such as data and tensor parallel groups) must be used in the same order on all their ranks: an
operation waits for everything queued on its GPU before, including the other backend's operations. While CubeCL captures a
graph, no operation can be called.

# When something fails

A thread of the backend supervises operations in flight, whether or not anything waits for them: a missed deadline, an
NCCL error, a lost rank or any failure of the process group aborts NCCL (`ncclCommAbort`) and fails the process group.
NCCL's kernels leave the GPU, which frees a host that waits for later work on a stream. The error is a `CollectiveError`
and names rank, peers, operation, step, the time waited and what to check. From then on every call returns it at once;
connect again over a new process group.

NCCL neither names the ranks that it waits for nor compares what they call. So ranks whose collective takes long send
each other its signature over the process group: a rank that has not called it is named, and so are ranks that have called
something else. The operations are in the flight record of the process group, as those of its sub-group `nccl`.

Deliberately absent: tensors, repairing a failed group, several GPUs per rank of a group.
"
)]

#[cfg(feature = "backend")]
pub mod api;
#[cfg(feature = "backend")]
mod backend;
mod drivers;
mod error;
mod foreign;
mod gpus;
mod library_paths;
mod sensor;
mod vendor;
mod version;

#[cfg(feature = "backend")]
pub use self::backend::{NcclBackend, Status, Work};
pub use self::drivers::{ApiDriver, MissingDriver, drivers, vulkan_drivers};
pub use self::error::LibraryError;
#[cfg(feature = "backend")]
pub use self::foreign::{DeviceBuffer, GpuMemory};
pub use self::foreign::{Library, nvrtc};
pub use self::gpus::{Gpu, Inventory, gpu_uuid, gpus};
pub use self::library_paths::{LibraryPaths, NCCL_VARIABLE, find_library, nvidia_driver};
pub use self::sensor::{GpuReading, GpuSensor};
pub use self::vendor::Vendor;
pub use self::version::{CudaVersion, NcclVersion};
