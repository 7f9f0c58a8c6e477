//! All that is not Rust's to check: NCCL's (and RCCL's), the drivers' and NVML's functions, found at run time,
//! and memory of the GPU that others have allocated. What leaves this module is safe to call.
//!
//! Types and numbers are those of nccl.h (2.18 and later; rccl.h has the same), cuda.h, hip_runtime_api.h and nvml.h. Results are taken as
//! plain integers, never as Rust enums: a newer library may say what these headers do not know.

#[cfg(feature = "backend")]
mod buffer;
#[cfg(feature = "backend")]
mod communicator;
#[cfg(feature = "backend")]
mod context;
mod driver;
mod dynamic;
#[cfg(feature = "backend")]
mod memory;
mod nccl;
mod nvml;
mod nvrtc;

#[cfg(feature = "backend")]
pub use self::buffer::DeviceBuffer;
pub(crate) use self::driver::Driver;
#[cfg(feature = "backend")]
pub use self::memory::GpuMemory;
pub use self::nccl::Library;
pub(crate) use self::nvml::Nvml;
pub use self::nvrtc::nvrtc;
