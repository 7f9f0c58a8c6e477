//! Burn's tensors on GPUs, from outside of Burn: many tensors copied into one flat buffer, many tensors that are views
//! of one, and its memory for NCCL.
//!
//! One back end of Burn serves GPUs of all vendors (CUDA, ROCm, Metal, Vulkan, WebGPU), so only `memory` is about some
//! of them. Burn's operations there are put off and fused. `resolve` has all run that a tensor still waits for,
//! and yields CubeCL's own tensor, with its place in the GPU's memory; `adopt` gives such a tensor back to
//! Burn. Neither waits for the GPU.

mod adapters;
mod kernel;
mod kernel_timer;
#[cfg(any(feature = "cuda", feature = "rocm"))]
mod memory;

use burn::backend::fusion::custom::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use burn::backend::fusion::stream::{Operation, StreamId};
use burn::backend::fusion::{Client, FusionTensor, NoOp};
use burn::backend::ir::InitOperationIr;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{
    BackendTensor, Cube, DispatchDevice, DispatchKindConversion, DispatchTensor, ExecutionError,
    TensorMetadata,
};
use burn::prelude::*;
use burn::tensor::{DType, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_cubecl::tensor::CubeTensor;

pub(crate) use self::adapters::{describe, name_of, names, open};
pub(crate) use self::kernel_timer::GpuKernelTimer;
#[cfg(any(feature = "cuda", feature = "rocm"))]
pub use self::memory::CubeMemory;
use super::layout::FlatLayout;
use crate::gradient::{Gradient, wait_for_data};

/// How a flat buffer is filled: where the gradients begin, its length, and the factor of its numbers.
#[derive(Debug, Clone)]
struct FlatBuffer {
    starts: Vec<usize>,
    length: usize,
    weight: f32,
}

/// Whether kernels are generated for `device`.
pub(crate) fn is_gpu(device: &Device) -> bool {
    matches!(
        device.clone().inner().as_dispatch(),
        DispatchDevice::Cube(_)
    )
}

/// [`super::flat::flatten`] by one kernel. `None` if not on a GPU, or for a dtype that the kernel does not multiply in
/// f32.
pub(super) fn flatten(
    parts: &[Option<Gradient>],
    layout: &FlatLayout,
    dtype: DType,
    weight: f64,
) -> Option<Tensor<1>> {
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return None;
    }
    let there = parts.iter().zip(layout.ranges());
    // A gradient without numbers has no memory that a kernel could be given.
    let there = there.filter(|(_, range)| !range.is_empty());
    let there = there.filter_map(|(part, range)| Some((part.clone()?, range.start)));
    let (parts, starts): (Vec<_>, Vec<_>) = there.unzip();
    let parts = parts.into_iter().map(|part| fused(part.into_dispatch()));
    let parts = parts.collect::<Option<Vec<_>>>()?;
    let buffer = FlatBuffer {
        starts,
        length: layout.len(),
        weight: weight as f32,
    };
    Some(into_burn(register(parts, dtype, buffer)?))
}

/// The gradients in a flat buffer as views of its memory, of these shapes. `None` where that is not possible.
pub(super) fn views(
    flat: &Tensor<1>,
    layout: &FlatLayout,
    shapes: &[&[usize]],
) -> Option<Vec<Gradient>> {
    let flat = fused(flat.clone().into_dispatch())?;
    let client = flat.client.clone();
    let flat = resolve(flat);
    if !flat.is_contiguous() {
        return None;
    }
    let size = flat.dtype.size();
    let slots = layout.ranges().iter().zip(shapes).enumerate();
    let views = slots.map(|(slot, (range, shape))| {
        let behind = layout.len() - range.end - layout.gap(slot);
        let handle = flat.handle.clone();
        // Both ends are aligned as CubeCL requires; the padding belongs to the view before it.
        let handle = handle
            .offset_start((range.start * size) as u64)
            .offset_end((behind * size) as u64);
        let view = CubeTensor::new_contiguous(
            flat.client.clone(),
            flat.device.clone(),
            Shape::from(shape.to_vec()),
            handle,
            flat.dtype,
        );
        Gradient::of_backend::<Cube>(adopt(&client, view))
    });
    Some(views.collect())
}

/// Burn's tensor of a back end that fuses, if that is what it is.
fn fused(tensor: DispatchTensor) -> Option<FusionTensor<FusionCubeRuntime>> {
    let tensor = is_gpu(&Device::new(tensor.device()))
        .then(|| <DispatchTensor as DispatchKindConversion<Cube>>::try_into_backend(tensor));
    match tensor?.ok()? {
        BackendTensor::Float(tensor) => Some(tensor),
        _ => None,
    }
}

/// CubeCL's tensor, after the operations it depends on have been sent from Burn's queue to the GPU.
fn resolve(tensor: FusionTensor<FusionCubeRuntime>) -> CubeTensor {
    let client = tensor.client.clone();
    client.resolve_tensor_float::<CubeBackend>(tensor)
}

/// Burn's tensor of a tensor of CubeCL's, in the same memory.
fn adopt(
    client: &Client<FusionCubeRuntime>,
    tensor: CubeTensor,
) -> FusionTensor<FusionCubeRuntime> {
    let (shape, dtype) = (tensor.shape(), tensor.dtype);
    let id = client.register_tensor_handle(tensor.into());
    let out = TensorIr::uninit(id, shape, dtype);
    let operation = OperationIr::Init(InitOperationIr { out });
    let mut outputs = client.register(StreamId::current(), operation, NoOp::<CubeBackend>::new());
    outputs.remove(0)
}

fn into_burn(tensor: FusionTensor<FusionCubeRuntime>) -> Tensor<1> {
    let tensor = <DispatchTensor as DispatchKindConversion<Cube>>::from_backend(
        BackendTensor::Float(tensor),
    );
    Tensor::from_dispatch(tensor)
}

/// Puts the kernel into Burn's queue, after the operations that compute the parts.
fn register(
    parts: Vec<FusionTensor<FusionCubeRuntime>>,
    dtype: DType,
    buffer: FlatBuffer,
) -> Option<FusionTensor<FusionCubeRuntime>> {
    let client = parts.first()?.client.clone();
    let inputs: Vec<_> = parts.into_iter().map(FusionTensor::into_ir).collect();
    let shape = Shape::new([buffer.length]);
    let output = TensorIr::uninit(client.create_empty_handle(), shape, dtype);
    let what = CustomOpIr::new("everburn_flatten", &inputs, &[output]);
    let operation = Flatten {
        what: what.clone(),
        buffer,
    };
    let mut outputs = client.register(StreamId::current(), OperationIr::Custom(what), operation);
    Some(outputs.remove(0))
}

/// The kernel in Burn's queue.
#[derive(Debug)]
struct Flatten {
    what: CustomOpIr,
    buffer: FlatBuffer,
}

impl Operation<FusionCubeRuntime> for Flatten {
    fn execute(
        &self,
        handles: &mut HandleContainer<
            <FusionCubeRuntime as burn::backend::fusion::FusionRuntime>::FusionHandle,
        >,
    ) -> Result<(), ExecutionError> {
        let parts = self.what.inputs.iter();
        let parts = parts.map(|part| handles.get_float_tensor::<CubeBackend>(part));
        let flat = kernel::flatten(parts.collect(), &self.buffer);
        handles.register_float_tensor::<CubeBackend>(&self.what.outputs[0].id, flat);
        Ok(())
    }
}

/// A flat buffer that another thread can read.
pub(super) struct StagedBuffer(CubeTensor);

impl StagedBuffer {
    /// Of a tensor on a GPU.
    pub(super) fn of(numbers: Tensor<1>) -> Option<Self> {
        fused(numbers.into_dispatch()).map(|numbers| Self(resolve(numbers)))
    }

    pub(super) fn device(&self) -> Device {
        Device::new(DispatchDevice::Cube(self.0.device.clone()))
    }

    /// The numbers, in pinned memory; waits for the GPU.
    pub(super) fn read(self) -> Result<TensorData, String> {
        wait_for_data(CubeBackend::float_into_data(self.0))
    }
}
