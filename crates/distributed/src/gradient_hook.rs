//! Gradient hooks: they see gradients while the backward pass still runs.
//!
//! [`with_hooks`] gives a copy of a module whose parameters pass through a differentiable identity operation, the
//! *gradient hook*. Its backward step runs after all uses of the parameter have been differentiated, so it sees the
//! finished gradient. The model's code does not change and sees ordinary tensors.
//!
//! Its depth decides when the backward step runs: burn-autodiff runs the steps of a graph from the deepest to the
//! shallowest, and a node is one deeper than its deepest parent. A hook on a leaf would have depth 1, and all hooks
//! would run at the very end. So a hook is made when the forward pass first uses the parameter, and gets a second
//! parent without a gradient, a *depth anchor*, that is as deep as anything the forward pass has built by then. The
//! uses of the parameter are deeper than its hook, and earlier operations are not: the backward pass reaches the hook
//! between the two.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, Dispatch, DispatchKindConversion, DispatchTensor, Flex, backend_extension,
};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::prelude::*;
use burn::tensor::DType;
use everburn_collectives::sync::lock;
use everburn_nn::{ParameterSource, TiedParameters};
use everburn_profile::{Pass, Recorder};

use crate::gradient::Gradient;
use crate::sharding;

/// The most anchors added for one hook: ranks in threads of one process count each other's nodes, and an anchor that is
/// too shallow only costs a little overlap.
const MOST_ANCHORS: u64 = 2048;

/// Where finished gradients go, called on the thread of the backward pass.
pub(crate) trait GradientSink: Send + Sync + Debug {
    /// Takes the gradient of the parameter `index`, which is still on its device.
    fn take(&self, index: usize, gradient: Gradient);
}

/// A sink that drops gradients.
#[derive(Debug)]
pub(crate) struct Nowhere;

impl GradientSink for Nowhere {
    fn take(&self, _index: usize, _gradient: Gradient) {}
}

/// Passes a parameter's gradient to a sink.
#[derive(Debug, Clone)]
pub(crate) struct GradientHook {
    sink: Arc<dyn GradientSink>,
    index: usize,
    /// Records when the passes reach the parameter.
    recorder: Option<Recorder>,
}

/// Identity operations that only affect the backward pass.
#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "gpu"))]
pub(crate) trait HookOperations: Backend {
    /// `tensor` itself; without autodiff there is no gradient to see.
    fn hook_gradient(
        tensor: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        hook: GradientHook,
    ) -> FloatTensor<Self> {
        drop((anchor, hook));
        tensor
    }

    /// `numbers`, at the node of `place` in the graph; without autodiff there is no graph.
    fn attach(place: FloatTensor<Self>, numbers: FloatTensor<Self>) -> FloatTensor<Self> {
        drop(place);
        numbers
    }

    /// `anchor` itself, one deeper.
    fn next_anchor(anchor: FloatTensor<Self>) -> FloatTensor<Self> {
        anchor
    }
}

impl HookOperations for Flex {}

// `Cube` is the fusing back end itself: the default bodies work for it too.
#[cfg(feature = "gpu")]
impl HookOperations for burn::backend::Cube {}

/// The gradient ends here: the sink gets it, and the leaf before the operation none, so that no second copy is kept.
#[derive(Debug)]
struct HookBackward;

impl<B: Backend> Backward<B, 2> for HookBackward
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = GradientHook;

    fn backward(
        self,
        ops: Ops<GradientHook, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let gradient = Gradient::of_backend::<B>(gradient);
        let hook = ops.state;
        hook.sink.take(hook.index, gradient);
        if let Some(recorder) = hook.recorder {
            recorder.mark(hook.index, Pass::Backward);
        }
    }
}

/// The placeholder gets the gradient of the numbers attached to it.
#[derive(Debug)]
struct AttachBackward;

impl<B: Backend> Backward<B, 1> for AttachBackward
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = ();

    fn backward(self, ops: Ops<(), 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(place)] = ops.parents {
            gradients.register::<B>(place.id, gradient);
        }
    }
}

/// An anchor has no gradient.
#[derive(Debug)]
struct AnchorBackward;

impl<B: Backend> Backward<B, 1> for AnchorBackward {
    type State = ();

    fn backward(self, _: Ops<(), 1>, _: &mut Gradients, _: &mut Checkpointer) {}
}

impl<B: Backend + HookOperations, C: CheckpointStrategy> HookOperations for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn hook_gradient(
        tensor: FloatTensor<Self>,
        anchor: FloatTensor<Self>,
        hook: GradientHook,
    ) -> FloatTensor<Self> {
        let (primitive, node) = tensor.into_parts();
        let parents = [node, anchor.node()];
        // Compute-bound, because it must not run again when activations are computed anew.
        match HookBackward
            .prepare::<C>(parents)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(operation) => operation.finish(hook, primitive),
            OpsKind::UnTracked(operation) => operation.finish(primitive),
        }
    }

    fn attach(place: FloatTensor<Self>, numbers: FloatTensor<Self>) -> FloatTensor<Self> {
        let operation = Backward::<B, 1>::prepare::<C>(AttachBackward, [place.node()]);
        let (numbers, _) = numbers.into_parts();
        operation.compute_bound().stateless(numbers)
    }

    fn next_anchor(anchor: FloatTensor<Self>) -> FloatTensor<Self> {
        let (primitive, node) = anchor.into_parts();
        let operation = Backward::<B, 1>::prepare::<C>(AnchorBackward, [node]);
        operation.compute_bound().stateless(primitive)
    }
}

/// Bounds the depth of a forward pass's graph from above.
#[derive(Debug)]
struct DepthAnchors {
    /// As deep as anything built before the last hook; none before the first.
    anchor: Option<Tensor<1>>,
    depth: u64,
    /// The number of the last counted node: nodes are numbered consecutively, and each is at most one deeper than the
    /// deepest before it.
    counted: u64,
}

impl DepthAnchors {
    fn new() -> Self {
        Self {
            anchor: None,
            depth: 0,
            counted: NodeId::new().value,
        }
    }

    /// `value`, hooked at least as deep as anything built so far.
    fn hook<const D: usize>(&mut self, value: Tensor<D>, hook: GradientHook) -> Tensor<D> {
        // The hook before this one is among them: it is one deeper than its anchor.
        let built = (NodeId::new().value - self.counted).min(MOST_ANCHORS);
        let device = value.device();
        let (mut anchor, anchors) = match self.anchor.take() {
            Some(anchor) if anchor.device() == device => (anchor, built),
            // The model continues on another device, in the same graph.
            _ => (Tensor::zeros([1], &device), self.depth + built),
        };
        for _ in 0..anchors {
            let next = <Dispatch as HookOperations>::next_anchor(anchor.into_dispatch());
            anchor = Tensor::from_dispatch(next);
        }
        self.depth += built;
        let hooked = <Dispatch as HookOperations>::hook_gradient(
            value.into_dispatch(),
            anchor.clone().into_dispatch(),
            hook,
        );
        self.anchor = Some(anchor);
        self.counted = NodeId::new().value;
        Tensor::from_dispatch(hooked)
    }
}

/// A copy of `model` whose gradients go into `sink` as they are finished, and the number of its trainable parameters;
/// `indices` gives the index of each in the sink.
///
/// A parameter that the model holds twice (tied weights) has one hook, so the sink gets its full gradient. A parameter
/// that the forward pass does not use gets no hook. `recorder` records when the passes reach each parameter. With a
/// `pass`, the parameters come from there.
pub(crate) fn with_hooks<M: Module>(
    model: &M,
    indices: &HashMap<ParamId, usize>,
    sink: &Arc<dyn GradientSink>,
    recorder: Option<&Recorder>,
    pass: Option<&Arc<sharding::Pass>>,
) -> (M, usize) {
    let mut add_hooks = AddHooks {
        indices,
        sink,
        recorder,
        anchors: Arc::new(Mutex::new(DepthAnchors::new())),
        watched: TiedParameters::default(),
        pass,
    };
    let watched = model.clone().map(&mut add_hooks);
    (watched, add_hooks.watched.ids().len())
}

/// A tensor of `shape` with the memory of one number: a node in the graph.
fn placeholder<const D: usize>(shape: Shape, device: &Device, dtype: DType) -> Tensor<D> {
    let one = Tensor::<D>::zeros([1; D], (device, dtype));
    one.expand(shape).set_require_grad(true)
}

struct AddHooks<'a> {
    indices: &'a HashMap<ParamId, usize>,
    sink: &'a Arc<dyn GradientSink>,
    recorder: Option<&'a Recorder>,
    anchors: Arc<Mutex<DepthAnchors>>,
    watched: TiedParameters,
    pass: Option<&'a Arc<sharding::Pass>>,
}

impl ModuleMapper for AddHooks<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(index) = self.indices.get(&param.id).copied() else {
            return param;
        };
        if let Some(watched) = self.watched.get(param.id) {
            return watched;
        }
        let (id, device, shape) = (param.id, param.lazy_device(), param.lazy_shape());
        let (sink, anchors) = (self.sink.clone(), self.anchors.clone());
        let recorder = self.recorder.cloned();
        let reached = move || {
            if let Some(recorder) = &recorder {
                recorder.mark(index, Pass::Forward);
            }
            GradientHook {
                sink,
                index,
                recorder,
            }
        };
        if let Some(pass) = self.pass.cloned() {
            let (on, of) = (device.clone(), shape.clone());
            let dtype = pass.dtype(index);
            pass.set_placeholder(id, &device, move || {
                // Also for checkpointed segments, which ask the source directly.
                let hook = reached();
                let hooked = lock(&anchors).hook(placeholder::<D>(of, &on, dtype), hook);
                hooked.into_dispatch()
            });
            let attach_at_first_use = move |_: &Device, _: bool| {
                let (place, numbers) = (pass.placeholder(id), pass.numbers(id));
                let attached = <Dispatch as HookOperations>::attach(place, numbers);
                Tensor::from_dispatch(attached)
            };
            let watched = Param::uninitialized(id, attach_at_first_use, device, true, shape);
            return self.watched.keep(id, watched);
        }
        let hook_at_first_use = move |_: &Device, _: bool| {
            let hook = reached();
            lock(&anchors).hook(param.val(), hook)
        };
        let watched = Param::uninitialized(id, hook_at_first_use, device, true, shape);
        self.watched.keep(id, watched)
    }
}

#[cfg(test)]
mod tests;
