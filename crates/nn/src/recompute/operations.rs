//! The nodes that a segment leaves in the graph, as an extension of Burn's backends.
//!
//! ```text
//! input ----- take_part --.
//! weight ----- take_part --+-- segment --+-- emit -- output
//! bias -------- take_part -'             '-- emit -- second output
//! ```
//!
//! They hang together by *markers*, tensors of one element that mean nothing: an operation of Burn has a
//! fixed number of parents, and a segment any. burn-autodiff runs the steps of a backward pass from the
//! deepest node to the shallowest, so that all `emit` have put their gradients into their slots when
//! `segment` runs, and `segment` has filled the slots of all `take_part` when these run.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, BackendTensor, DispatchKindConversion, DispatchTensor, TensorMetadata,
    backend_extension,
};
use burn::tensor::{DType, Shape};

use crate::backward_step::with_backward_step;

/// Where a gradient waits between two backward steps. Without a graph of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct GradientSlot(Arc<Mutex<Option<DispatchTensor>>>);

impl GradientSlot {
    pub(crate) fn put(&self, gradient: Option<DispatchTensor>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = gradient;
    }

    pub(crate) fn take(&self) -> Option<DispatchTensor> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take()
    }

    fn put_primitive<B: Backend>(&self, gradient: FloatTensor<B>)
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        let gradient = BackendTensor::Float(gradient);
        self.put(Some(DispatchTensor::from_backend(gradient)));
    }

    fn take_primitive<B: Backend>(&self) -> Option<FloatTensor<B>>
    where
        DispatchTensor: DispatchKindConversion<B>,
    {
        let gradient = self.take()?;
        let gradient = <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(gradient);
        // A segment may move between devices of one kind; its gradients come back on the way it went.
        Some(
            gradient
                .expect("a gradient is on the device of its tensor")
                .float(),
        )
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// What the backward pass does in the segment's place, once.
#[derive(Clone)]
pub(crate) struct Recomputation(Arc<Mutex<Option<Job>>>);

impl Recomputation {
    pub(crate) fn new(job: impl FnOnce() + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(job)))))
    }

    fn run(&self) {
        let job = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(job) = job {
            job();
        }
    }
}

impl fmt::Debug for Recomputation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recomputation")
    }
}

/// Operations that have an effect on the backward pass only. Slots are filled with tensors of the same
/// back end.
#[backend_extension(
    Autodiff,
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "gpu")
)]
pub(crate) trait RecomputeOps: Backend {
    /// `marker`, for a segment that uses `tensor`, whose gradient comes from `slot`.
    fn take_part(
        marker: FloatTensor<Self>,
        tensor: FloatTensor<Self>,
        slot: GradientSlot,
    ) -> FloatTensor<Self> {
        drop((tensor, slot));
        marker
    }

    /// `marker`, after which `recomputation` runs in the backward pass.
    fn segment(marker: FloatTensor<Self>, recomputation: Recomputation) -> FloatTensor<Self> {
        drop(recomputation);
        marker
    }

    /// `output`, as an output of the segment of `marker`, whose gradient goes into `slot`.
    fn emit(
        output: FloatTensor<Self>,
        marker: FloatTensor<Self>,
        slot: GradientSlot,
    ) -> FloatTensor<Self> {
        drop((marker, slot));
        output
    }

    /// `marker`, from which a backward pass gives `output` the gradient in `slot`.
    fn begin(
        marker: FloatTensor<Self>,
        output: FloatTensor<Self>,
        slot: GradientSlot,
    ) -> FloatTensor<Self> {
        drop((output, slot));
        marker
    }
}

#[cfg(feature = "flex")]
impl RecomputeOps for burn::backend::Flex {}

// `Cube` is the fusing back end itself: the default bodies do for it too.
#[cfg(feature = "gpu")]
impl RecomputeOps for burn::backend::Cube {}

/// What a gradient that never came would have looked like.
#[derive(Clone, Debug)]
struct Absent<D> {
    slot: GradientSlot,
    shape: Shape,
    device: D,
    dtype: DType,
}

#[derive(Debug)]
struct TakePart;

impl<B: Backend> Backward<B, 2> for TakePart
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Absent<B::Device>;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [_, tensor] = ops.parents;
        let (Some(tensor), absent) = (tensor, ops.state) else {
            return;
        };
        match absent.slot.take_primitive::<B>() {
            Some(gradient) => gradients.register::<B>(tensor.id, gradient),
            // The segment asked for the tensor, and its output did not depend on it. A step before
            // this one waits for a gradient all the same; a leaf does not.
            None if tensor.order > 0 => {
                let zeros = B::float_zeros(absent.shape, &absent.device, absent.dtype.into());
                gradients.register::<B>(tensor.id, zeros);
            }
            None => {}
        }
    }
}

#[derive(Debug)]
struct RunSegment;

impl<B: Backend> Backward<B, 1> for RunSegment {
    type State = Recomputation;

    fn backward(self, ops: Ops<Recomputation, 1>, _: &mut Gradients, _: &mut Checkpointer) {
        ops.state.run();
    }
}

#[derive(Debug)]
struct Emit;

impl<B: Backend> Backward<B, 1> for Emit
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = GradientSlot;

    fn backward(
        self,
        ops: Ops<GradientSlot, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        ops.state.put_primitive::<B>(gradient);
    }
}

#[derive(Debug)]
struct Begin;

impl<B: Backend> Backward<B, 2> for Begin
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = GradientSlot;

    fn backward(
        self,
        ops: Ops<GradientSlot, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let [_, output] = ops.parents;
        if let (Some(output), Some(gradient)) = (output, ops.state.take_primitive::<B>()) {
            gradients.register::<B>(output.id, gradient);
        }
    }
}

impl<B: RecomputeOps, C: CheckpointStrategy> RecomputeOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn take_part(
        marker: FloatTensor<Self>,
        tensor: FloatTensor<Self>,
        slot: GradientSlot,
    ) -> FloatTensor<Self> {
        let absent = Absent {
            slot,
            shape: tensor.shape(),
            device: tensor.device(),
            dtype: tensor.dtype(),
        };
        let parents = [marker.node(), tensor.node()];
        with_backward_step::<B, C, _, _>(TakePart, parents, absent, marker.into_primitive())
    }

    fn segment(marker: FloatTensor<Self>, recomputation: Recomputation) -> FloatTensor<Self> {
        let (primitive, node) = marker.into_parts();
        with_backward_step::<B, C, _, _>(RunSegment, [node], recomputation, primitive)
    }

    fn emit(
        output: FloatTensor<Self>,
        marker: FloatTensor<Self>,
        slot: GradientSlot,
    ) -> FloatTensor<Self> {
        with_backward_step::<B, C, _, _>(Emit, [marker.node()], slot, output.into_primitive())
    }

    fn begin(
        marker: FloatTensor<Self>,
        output: FloatTensor<Self>,
        slot: GradientSlot,
    ) -> FloatTensor<Self> {
        let parents = [marker.node(), output.node()];
        with_backward_step::<B, C, _, _>(Begin, parents, slot, marker.into_primitive())
    }
}
