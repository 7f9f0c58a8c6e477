//! The memory of a flat buffer, for NCCL. The one place that trusts CubeCL's pointers.

#![expect(unsafe_code, reason = "CubeCL hands out pointers to the GPU's memory")]

use std::any::Any;

use burn::prelude::*;
use burn::tensor::DType as BurnType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
#[cfg(feature = "cuda")]
use cubecl::cuda::CudaRuntime;
#[cfg(feature = "rocm")]
use cubecl::hip::HipRuntime;
use cubecl_runtime::runtime::Runtime;
use everburn_collectives::group::DType;
use everburn_nccl::DeviceBuffer;

use super::{adopt, fused, into_burn, resolve};
use crate::device::communicator::{DeviceMemory, Lent};

/// The memory of tensors on CUDA, in the primary context of their GPU, which NCCL uses too, and of those on ROCm.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{CubeMemory, DeviceMemory};
///
/// // A tensor elsewhere is refused.
/// let device = burn::prelude::Device::flex();
/// let numbers = burn::prelude::Tensor::<1>::ones([4], &device);
/// assert!(CubeMemory.lend(numbers).is_err());
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CubeMemory;

/// A lent tensor, to give back to Burn.
struct LentTensor {
    client: burn::backend::fusion::Client<burn_cubecl::fusion::FusionCubeRuntime>,
    tensor: CubeTensor,
}

/// Where a tensor is.
struct Place {
    pointer: u64,
    bytes: u64,
    /// Keeps it there.
    owner: Box<dyn Any + Send>,
}

impl Place {
    fn of(tensor: &CubeTensor) -> Result<Self, String> {
        // Through CubeCL's own queue, after everything this thread has queued: the kernels that write the tensor are on
        // its stream when this returns.
        macro_rules! resource {
            ($runtime:ty, $pointer:expr) => {{
                let handle = tensor.handle.clone();
                let found = tensor
                    .client
                    .get_resource::<<$runtime as Runtime>::Server>(handle);
                let found = found.map_err(|error| error.to_string())?;
                Ok(Self {
                    pointer: $pointer(found.resource().ptr),
                    bytes: found.resource().size,
                    owner: Box::new(found),
                })
            }};
        }
        match &tensor.device {
            #[cfg(feature = "cuda")]
            CubeDevice::Cuda(_) => resource!(CudaRuntime, u64::from),
            #[cfg(feature = "rocm")]
            CubeDevice::Hip(_) => {
                resource!(
                    HipRuntime,
                    |pointer: *mut std::ffi::c_void| pointer.expose_provenance() as u64
                )
            }
            other => Err(format!(
                "a tensor on {other:?} is not in the memory of an NVIDIA or AMD GPU"
            )),
        }
    }
}

impl DeviceMemory for CubeMemory {
    fn lend(&self, numbers: Tensor<1>) -> Result<Lent, String> {
        let device = numbers.device();
        let numbers = fused(numbers.into_dispatch()).ok_or_else(|| {
            format!("a tensor on {device:?} is not in the memory of an NVIDIA or AMD GPU")
        })?;
        let client = numbers.client.clone();
        let tensor = burn_cubecl::kernel::into_contiguous(resolve(numbers));
        let (length, size) = (tensor.meta.num_elements(), tensor.dtype.size());
        let dtype = type_of(tensor.dtype)?;
        let Place {
            pointer,
            bytes,
            owner,
        } = Place::of(&tensor)?;
        if bytes < (length * size) as u64 {
            return Err(format!(
                "CubeCL has {bytes} bytes for {length} numbers of {size} bytes; this version keeps its tensors in a layout that Everburn does not support"
            ));
        }
        // SAFETY: `pointer` is that of `bytes` bytes of memory of the GPU (on CUDA in the primary context), of which
        // the tensor takes the first `length * size` (it is contiguous, and the handle's offset is in the
        // pointer). They stay there while `owner` lives, which is what the buffer is given for its owner:
        // it binds the allocation, which CubeCL neither frees, hands out nor moves meanwhile
        // (`ManagedResource` in cubecl-runtime). Kernels that write the tensor have been given to their
        // stream by now, and are waited for by the operation or by `synchronize`; those that read it
        // come after `take_back`, which is called after `Work::hold_device` or `Work::wait`. Until then
        // `LentTensor` has the only handle on a tensor that operations write that anybody can reach. Without
        // `take_back`, `owner` alone keeps the allocation, and the operation drops it when the GPU is done.
        let buffer = unsafe { DeviceBuffer::new(pointer, length, dtype, owner) };
        let buffer = buffer.map_err(|error| error.to_string())?;
        Ok(Lent::new(buffer, LentTensor { client, tensor }))
    }

    fn take_back(&self, lent: Lent) -> Result<Tensor<1>, String> {
        let kept = lent.into_kept::<LentTensor>()?;
        Ok(into_burn(adopt(&kept.client, kept.tensor)))
    }

    fn synchronize(&self, device: &Device) -> Result<(), String> {
        let device = device.clone().inner();
        device.sync().map_err(|error| error.to_string())
    }
}

fn type_of(dtype: BurnType) -> Result<DType, String> {
    match dtype {
        BurnType::F32 | BurnType::Flex32 => Ok(DType::F32),
        BurnType::F16 => Ok(DType::F16),
        BurnType::BF16 => Ok(DType::Bf16),
        BurnType::F64 => Ok(DType::F64),
        other => Err(format!(
            "numbers of type {other:?} cannot be added up by NCCL"
        )),
    }
}
