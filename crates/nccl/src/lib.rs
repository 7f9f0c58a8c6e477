//! What GPUs a machine has, and groups of ranks that exchange numbers between them by NCCL. Without
//! Burn, and without a need of NCCL, CUDA or a GPU to be built: libraries are opened at run time.
//!
//! The main types, in the order in which a program meets them:
//!
//! 1. [`gpus`]: driver, CUDA, NCCL and every GPU, or why there is none ("no driver: ...").
//!    [`GpuSensor`]: how busy and how warm one is at this moment.
//! 2. [`Library`]: NCCL itself. `EVERBURN_NCCL_LIBRARY` names a file; else the system's loader, the
//!    usual folders and those of Python's packages are searched.
#![cfg_attr(
    feature = "group",
    doc = "
3. [`NcclGroup`]: one rank's end of a group, one rank a process or a thread, each with a GPU of its
   own, on any number of machines. The ranks find each other in a store of `everburn-collectives`.
4. [`DeviceBuffer`]: numbers in a GPU's memory, made by others. [`GpuMemory`] for those who have none.
5. [`Work`]: an operation under way: other work of the GPU can wait for it, or the host with a deadline.
6. [`Control`]: what else knows of the ranks' fate, such as the job's `ProcessGroup`.
7. [`api`]: what a group asks of NCCL and of the GPU, which tests answer with a stand-in.

# With Burn

Burn's tensors on CUDA are CubeCL's. Their memory is in the device's primary context, in which this
crate works too, so nothing is copied:

1. `tensor.into_primitive()` (through fusion, which runs what it has put off) yields a `CubeTensor`
   with its `client` and `handle`. It must be contiguous and begin where its handle begins.
2. `client.get_resource::<<CudaRuntime as Runtime>::Server>(handle)` yields a `ManagedResource`, whose
   `resource()` has `ptr` and `size`. It goes through CubeCL's own queue, so that all kernels that this
   thread has asked for before are on their stream when it returns.
3. `DeviceBuffer::new(ptr, len, dtype, owner)`, with the `ManagedResource` as `owner`: while it is held
   CubeCL neither gives the memory away nor moves it, and the buffer holds it until the GPU has
   finished. This is the one `unsafe` step: the pointer is the caller's word.
4. `group.all_reduce(&buffer, op)`. CubeCL's streams are its own, and do not wait for the stream of
   number 0; the operation waits for what all streams of the context have been given so far
   (`cuCtxRecordEvent`), on the GPU. Where the driver is older ([`NcclGroup::orders_device`] is false),
   `client.sync()` before it.
5. `work.hold_device()`, before the optimizer's first kernel is asked for: all that the context is given
   later waits (`cuCtxWaitEvent`). The host goes on. With an older driver, `work.wait()`.
6. Once a step, before its result counts, [`NcclGroup::check`]: a group that has failed lets the GPU go
   on, with numbers that mean nothing.

Two groups on one GPU (of data and tensor parallelism, say) must be used in the same order on all their
ranks: an operation waits for all that its GPU was given before, the other group's included. While CubeCL
captures a graph, no operation can be called.

# When something fails

A thread of the group looks after what is under way whether or not anybody waits: a deadline that passes,
an error that NCCL finds, another rank's word in the store, or the end of the [`Control`] has NCCL aborted
(`ncclCommAbort`). Its kernels leave the GPU, so that a host that waits for what is behind them on a stream
is freed. The error names rank, peers, operation, step, how long and what to check. From then on every
call says so at once; make another group, of a higher generation.

What is deliberately absent: tensors, mending a group that has failed, more than one GPU a group and rank.
"
)]

#[cfg(feature = "group")]
pub mod api;
mod error;
mod foreign;
mod gpus;
#[cfg(feature = "group")]
mod group;
mod places;
mod sensor;
mod version;

pub use self::error::LibraryError;
#[cfg(feature = "group")]
pub use self::foreign::{DeviceBuffer, GpuMemory};
pub use self::foreign::{Library, nvrtc};
pub use self::gpus::{Gpu, Inventory, gpus};
#[cfg(feature = "group")]
pub use self::group::{Control, Ended, NcclConfig, NcclError, NcclGroup, Status, Work};
pub use self::places::{NCCL_VARIABLE, Places, find_library, nvidia_driver};
pub use self::sensor::{GpuReading, GpuSensor};
pub use self::version::{CudaVersion, NcclVersion};
