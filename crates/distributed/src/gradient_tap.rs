//! Gradients seen while the backward pass still runs.
//!
//! [`watch_with`] gives a copy of a module whose parameters pass through a differentiable identity
//! operation, the *tap*. Its backward step runs when all that uses the parameter has been
//! differentiated, so it sees the parameter's finished gradient. The model's code does not change
//! and sees ordinary tensors.
//!
//! When a tap's backward step runs is a matter of depth: burn-autodiff runs the steps of a graph
//! from the deepest to the shallowest, and the depth of a node is that of its deepest parent and
//! one. A tap on a leaf would have depth 1, and all taps would run at the very end. So a tap is made
//! when the forward pass first asks for the parameter, and gets a second parent without a gradient,
//! a *rung*, that is as deep as anything the forward pass has built by then. What uses the parameter
//! is deeper than its tap, and what was built before is not: the backward pass comes to the tap
//! between the two.

use std::any::Any;
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
use everburn_nn::ParameterSource;
use everburn_profile::{Pass, Recorder};

use crate::gradient::Gradient;
use crate::reducer::lock;
use crate::sharding;

/// The most rungs that a tap climbs: ranks that are threads count each other's nodes, and a rung
/// that is too low costs a little overlap and nothing else.
const MOST_RUNGS: u64 = 2048;

/// Where finished gradients go, called on the thread of the backward pass.
pub(crate) trait GradientSink: Send + Sync + Debug {
    /// Takes the gradient of the parameter `index`, which is still on its device.
    fn take(&self, index: usize, gradient: Gradient);
}

/// For passes whose gradients are thrown away.
#[derive(Debug)]
pub(crate) struct Nowhere;

impl GradientSink for Nowhere {
    fn take(&self, _index: usize, _gradient: Gradient) {}
}

/// A parameter's way into a sink.
#[derive(Debug, Clone)]
pub(crate) struct GradientTap {
    sink: Arc<dyn GradientSink>,
    index: usize,
    /// Is told when the passes come by.
    recorder: Option<Recorder>,
}

/// Identities that have an effect on the backward pass only.
#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "cuda"))]
pub(crate) trait TapGradient: Backend {
    /// `tensor` itself; without autodiff there is no gradient to see.
    fn tap_gradient(
        tensor: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        tap: GradientTap,
    ) -> FloatTensor<Self> {
        drop((rung, tap));
        tensor
    }

    /// `numbers`, with the place that `place` has in a graph; without autodiff there is none.
    fn attach(place: FloatTensor<Self>, numbers: FloatTensor<Self>) -> FloatTensor<Self> {
        drop(place);
        numbers
    }

    /// `rung` itself, one deeper.
    fn next_rung(rung: FloatTensor<Self>) -> FloatTensor<Self> {
        rung
    }
}

impl TapGradient for Flex {}

// `Cube` is the fusing back end itself: the default bodies do for it too.
#[cfg(feature = "cuda")]
impl TapGradient for burn::backend::Cube {}

/// The gradient ends here: the sink gets it whole, and the leaf behind the operation none, so that
/// no second copy is kept.
#[derive(Debug)]
struct TapBackward;

impl<B: Backend> Backward<B, 2> for TapBackward
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = GradientTap;

    fn backward(
        self,
        ops: Ops<GradientTap, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let gradient = Gradient::of_backend::<B>(gradient);
        let tap = ops.state;
        tap.sink.take(tap.index, gradient);
        if let Some(recorder) = tap.recorder {
            recorder.mark(tap.index, Pass::Backward);
        }
    }
}

/// What has a place in a graph gets the gradient of what was attached to it.
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

/// A rung has no gradient.
#[derive(Debug)]
struct RungBackward;

impl<B: Backend> Backward<B, 1> for RungBackward {
    type State = ();

    fn backward(self, _: Ops<(), 1>, _: &mut Gradients, _: &mut Checkpointer) {}
}

impl<B: Backend + TapGradient, C: CheckpointStrategy> TapGradient for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn tap_gradient(
        tensor: FloatTensor<Self>,
        rung: FloatTensor<Self>,
        tap: GradientTap,
    ) -> FloatTensor<Self> {
        let (primitive, node) = tensor.into_parts();
        let parents = [node, rung.node()];
        // Compute-bound, because it must not run again when activations are computed anew.
        match TapBackward.prepare::<C>(parents).compute_bound().stateful() {
            OpsKind::Tracked(operation) => operation.finish(tap, primitive),
            OpsKind::UnTracked(operation) => operation.finish(primitive),
        }
    }

    fn attach(place: FloatTensor<Self>, numbers: FloatTensor<Self>) -> FloatTensor<Self> {
        let operation = Backward::<B, 1>::prepare::<C>(AttachBackward, [place.node()]);
        let (numbers, _) = numbers.into_parts();
        operation.compute_bound().stateless(numbers)
    }

    fn next_rung(rung: FloatTensor<Self>) -> FloatTensor<Self> {
        let (primitive, node) = rung.into_parts();
        let operation = Backward::<B, 1>::prepare::<C>(RungBackward, [node]);
        operation.compute_bound().stateless(primitive)
    }
}

/// How deep the graph of a forward pass can have become.
#[derive(Debug)]
struct Ladder {
    /// As deep as anything built before the last tap; none before the first.
    rung: Option<Tensor<1>>,
    /// The depth of `rung`.
    height: u64,
    /// The number of the last node that has been reckoned with: every node gets the next number,
    /// and none is deeper than the deepest before it and one.
    counted: u64,
}

impl Ladder {
    fn new() -> Self {
        Self {
            rung: None,
            height: 0,
            counted: NodeId::new().value,
        }
    }

    /// `value`, tapped no lower than anything built so far.
    fn tap<const D: usize>(&mut self, value: Tensor<D>, tap: GradientTap) -> Tensor<D> {
        // The tap before this one is among them: it is one deeper than its rung.
        let built = (NodeId::new().value - self.counted).min(MOST_RUNGS);
        let device = value.device();
        let (mut rung, rungs) = match self.rung.take() {
            Some(rung) if rung.device() == device => (rung, built),
            // The model goes on on another device, in the same graph.
            _ => (Tensor::zeros([1], &device), self.height + built),
        };
        for _ in 0..rungs {
            let next = <Dispatch as TapGradient>::next_rung(rung.into_dispatch());
            rung = Tensor::from_dispatch(next);
        }
        self.height += built;
        let tapped = <Dispatch as TapGradient>::tap_gradient(
            value.into_dispatch(),
            rung.clone().into_dispatch(),
            tap,
        );
        self.rung = Some(rung);
        self.counted = NodeId::new().value;
        Tensor::from_dispatch(tapped)
    }
}

/// [`watch_with`] the model's own numbers.
pub(crate) fn watch<M: Module>(
    model: &M,
    indices: &HashMap<ParamId, usize>,
    sink: &Arc<dyn GradientSink>,
    recorder: Option<&Recorder>,
) -> (M, usize) {
    watch_with(model, indices, sink, recorder, None)
}

/// A copy of `model` whose gradients go into `sink` as they are finished; `indices` gives each
/// trainable parameter its number there. Also how many of them the model has.
///
/// A parameter that the model holds twice (tied weights) goes through one tap, so its gradient is
/// whole when the sink gets it. One that the forward pass does not ask for gets no tap. `recorder` is told
/// when the passes come to each. Where there is a `pass`, its numbers stand in place of the model's.
pub(crate) fn watch_with<M: Module>(
    model: &M,
    indices: &HashMap<ParamId, usize>,
    sink: &Arc<dyn GradientSink>,
    recorder: Option<&Recorder>,
    pass: Option<&Arc<sharding::Pass>>,
) -> (M, usize) {
    let mut watcher = Watcher {
        indices,
        sink,
        recorder,
        ladder: Arc::new(Mutex::new(Ladder::new())),
        watched: HashMap::new(),
        pass,
    };
    let watched = model.clone().map(&mut watcher);
    (watched, watcher.watched.len())
}

/// A tensor of `shape` that takes the memory of one number: a place in a graph.
fn placeholder<const D: usize>(shape: Shape, device: &Device, dtype: DType) -> Tensor<D> {
    let one = Tensor::<D>::zeros([1; D], (device, dtype));
    one.expand(shape).set_require_grad(true)
}

struct Watcher<'a> {
    indices: &'a HashMap<ParamId, usize>,
    sink: &'a Arc<dyn GradientSink>,
    recorder: Option<&'a Recorder>,
    ladder: Arc<Mutex<Ladder>>,
    /// `Param<Tensor<D>>` by its id.
    watched: HashMap<ParamId, Box<dyn Any>>,
    pass: Option<&'a Arc<sharding::Pass>>,
}

impl ModuleMapper for Watcher<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(index) = self.indices.get(&param.id).copied() else {
            return param;
        };
        let known = self.watched.get(&param.id);
        if let Some(known) = known.and_then(|known| known.downcast_ref::<Param<Tensor<D>>>()) {
            return known.clone();
        }
        let (id, device, shape) = (param.id, param.lazy_device(), param.lazy_shape());
        let (sink, ladder) = (self.sink.clone(), self.ladder.clone());
        let recorder = self.recorder.cloned();
        if let Some(pass) = self.pass.cloned() {
            let (on, of) = (device.clone(), shape.clone());
            let dtype = pass.dtype(index);
            pass.set_placeholder(id, &device, move || {
                // Also where a checkpointed segment asks, which goes to the source itself.
                if let Some(recorder) = &recorder {
                    recorder.mark(index, Pass::Forward);
                }
                let tap = GradientTap {
                    sink,
                    index,
                    recorder,
                };
                let tapped = lock(&ladder).tap(placeholder::<D>(of, &on, dtype), tap);
                tapped.into_dispatch()
            });
            let attach_at_first_use = move |_: &Device, _: bool| {
                let (place, numbers) = (pass.place(id), pass.numbers(id));
                let attached = <Dispatch as TapGradient>::attach(place, numbers);
                Tensor::from_dispatch(attached)
            };
            let watched: Param<Tensor<D>> =
                Param::uninitialized(id, attach_at_first_use, device, true, shape);
            self.watched.insert(id, Box::new(watched.clone()));
            return watched;
        }
        let tap_at_first_use = move |_: &Device, _: bool| {
            if let Some(recorder) = &recorder {
                recorder.mark(index, Pass::Forward);
            }
            let tap = GradientTap {
                sink,
                index,
                recorder,
            };
            lock(&ladder).tap(param.val(), tap)
        };
        let watched = Param::uninitialized(id, tap_at_first_use, device, true, shape);
        self.watched.insert(id, Box::new(watched.clone()));
        watched
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;

    use super::*;

    #[derive(Debug, Default)]
    struct Seen(Mutex<Vec<(usize, Vec<f32>)>>);

    impl GradientSink for Seen {
        fn take(&self, index: usize, gradient: Gradient) {
            let values = gradient.read().unwrap().try_into_vec::<f32>().unwrap();
            self.0.lock().unwrap().push((index, values));
        }
    }

    #[derive(Module, Debug)]
    struct Tied {
        first: Linear,
        again: Linear,
        last: Linear,
        unused: Linear,
    }

    impl Tied {
        fn forward(&self, rows: Tensor<2>) -> Tensor<1> {
            let hidden = self.again.forward(self.first.forward(rows).tanh());
            self.last.forward(hidden).powf_scalar(2.0).mean()
        }
    }

    /// Taps gradients of an activation, as a clock of the backward pass.
    #[derive(Debug, Default)]
    struct Moments(Mutex<Vec<&'static str>>);

    /// A sink that notes its name when a gradient comes.
    #[derive(Debug)]
    struct Moment(Arc<Moments>, &'static str);

    impl GradientSink for Moment {
        fn take(&self, _: usize, _: Gradient) {
            self.0.0.lock().unwrap().push(self.1);
        }
    }

    /// The identity on an activation: gives `moments` its name when the backward pass goes through.
    /// (It is a tap on a copy, added at weight zero, so that the gradient goes on.)
    fn clock(rows: Tensor<2>, moments: &Arc<Moments>, name: &'static str) -> Tensor<2> {
        let sink: Arc<dyn GradientSink> = Arc::new(Moment(moments.clone(), name));
        let rung = Tensor::<1>::zeros([1], &rows.device());
        let tap = GradientTap {
            sink,
            index: 0,
            recorder: None,
        };
        let tapped = <Dispatch as TapGradient>::tap_gradient(
            rows.clone().into_dispatch(),
            rung.into_dispatch(),
            tap,
        );
        rows + Tensor::<2>::from_dispatch(tapped) * 0.0
    }

    #[test]
    fn gradients_come_while_the_backward_pass_still_runs() {
        let device = Device::flex().autodiff();
        let linear = || LinearConfig::new(3, 3).init(&device);
        let layers: Vec<Linear> = vec![linear(), linear(), linear()];
        let moments = Arc::new(Moments::default());
        let ids = layers.iter().flat_map(|layer| [layer.weight.id]);
        let indices = ids.enumerate().map(|(i, id)| (id, i)).collect();
        let sink: Arc<dyn GradientSink> = Arc::new(Moment(moments.clone(), "weight"));
        let (watched, _) = watch(&layers, &indices, &sink, None);
        let mut rows = Tensor::<2>::ones([2, 3], &device).require_grad();
        for (layer, name) in watched.iter().zip(["input 0", "input 1", "input 2"]) {
            rows = layer.forward(clock(rows, &moments, name)).tanh();
        }
        drop(rows.mean().backward());
        // The clock of a layer's input is deeper than its rung of 0, so it runs after the layer.
        let seen = moments.0.lock().unwrap();
        let expected = [
            "weight", "input 2", "weight", "input 1", "weight", "input 0",
        ];
        assert_eq!(*seen, expected);
    }

    #[test]
    fn a_parameter_that_is_not_used_leaves_nothing_behind() {
        let device = Device::flex().autodiff();
        let linear: Linear = LinearConfig::new(3, 3).init(&device);
        let indices = HashMap::from([(linear.weight.id, 0)]);
        let seen = Arc::new(Seen::default());
        let sink: Arc<dyn GradientSink> = seen.clone();
        drop(watch(&linear, &indices, &sink, None));
        drop(sink);
        assert_eq!(Arc::strong_count(&seen), 1);
    }

    #[test]
    fn every_gradient_is_seen_once_whole_and_last_layer_first() {
        let device = Device::flex().autodiff();
        let linear = || LinearConfig::new(3, 3).with_bias(false).init(&device);
        let first: Linear = linear();
        let _ = first.weight.val();
        let model = Tied {
            again: first.clone(),
            first,
            last: linear(),
            unused: linear(),
        };
        let ids = [&model.first, &model.last, &model.unused].map(|layer| layer.weight.id);
        let indices = ids.into_iter().enumerate().map(|(i, id)| (id, i)).collect();
        let seen = Arc::new(Seen::default());
        let sink: Arc<dyn GradientSink> = seen.clone();
        let rows = Tensor::<2>::from_floats([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], &device);

        let plain = GradientsParams::from_grads(model.forward(rows.clone()).backward(), &model);
        let (watched, found) = watch(&model, &indices, &sink, None);
        assert_eq!(found, 3);
        let loss = watched.forward(rows.clone());
        loss.clone()
            .into_data()
            .assert_eq(&model.forward(rows).into_data(), true);
        drop(loss.backward());

        let expected = |layer: &Linear| {
            let gradient = plain.get::<2>(layer.weight.id).unwrap();
            gradient.into_data().try_into_vec::<f32>().unwrap()
        };
        let seen = seen.0.lock().unwrap();
        let expected = vec![(1, expected(&model.last)), (0, expected(&model.first))];
        assert_eq!(*seen, expected);
    }
}
