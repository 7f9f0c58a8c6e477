//! Gradients seen while the backward pass still runs.
//!
//! [`watch`] gives a copy of a module whose parameters pass through a differentiable identity
//! operation. The operation's backward step runs as soon as all that uses the parameter has been
//! differentiated, so it sees the parameter's finished gradient, long before the backward pass has
//! come to the first layer. The model's code does not change and sees ordinary tensors.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::prelude::*;
use burn::tensor::{TensorData, try_read_sync};

/// Where finished gradients go, called on the thread of the backward pass.
pub(crate) trait GradientSink: Send + Sync + Debug {
    /// Takes the gradient of the parameter `index`, or the reason why it could not be read.
    fn take(&self, index: usize, gradient: Result<TensorData, String>);
}

/// A parameter's way into a sink.
#[derive(Debug, Clone)]
pub(crate) struct GradientTap {
    sink: Arc<dyn GradientSink>,
    index: usize,
}

/// The identity, which a backward pass tells about.
#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "cuda"), Fusion: cfg(feature = "cuda"))]
pub(crate) trait TapGradient: Backend {
    /// `tensor` itself; without autodiff there is no gradient to see.
    #[cfg_attr(feature = "cuda", fusion(default))]
    fn tap_gradient(tensor: FloatTensor<Self>, tap: GradientTap) -> FloatTensor<Self> {
        drop(tap);
        tensor
    }
}

impl TapGradient for Flex {}

/// The gradient ends here: the sink gets it whole, and the leaf behind the operation none, so that
/// no second copy is kept.
#[derive(Debug)]
struct TapBackward;

impl<B: Backend> Backward<B, 1> for TapBackward {
    type State = GradientTap;

    fn backward(
        self,
        ops: Ops<GradientTap, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let data = match try_read_sync(B::float_into_data(gradient)) {
            Some(Ok(data)) => Ok(data),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("this platform cannot wait for a device".to_string()),
        };
        ops.state.sink.take(ops.state.index, data);
    }
}

impl<B: Backend + TapGradient, C: CheckpointStrategy> TapGradient for Autodiff<B, C> {
    fn tap_gradient(tensor: FloatTensor<Self>, tap: GradientTap) -> FloatTensor<Self> {
        let (primitive, node) = tensor.into_parts();
        // Compute-bound, because it must not run again when activations are computed anew.
        match TapBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(operation) => operation.finish(tap, primitive),
            OpsKind::UnTracked(operation) => operation.finish(primitive),
        }
    }
}

/// A copy of `model` whose gradients go into `sink` as they are finished; `indices` gives each
/// trainable parameter its number there.
///
/// A parameter that the model holds twice (tied weights) goes through one operation, so its
/// gradient is whole when the sink gets it.
pub(crate) fn watch<M: Module>(
    model: &M,
    indices: &HashMap<ParamId, usize>,
    sink: &Arc<dyn GradientSink>,
) -> M {
    model.clone().map(&mut Watcher {
        indices,
        sink,
        watched: HashMap::new(),
    })
}

struct Watcher<'a> {
    indices: &'a HashMap<ParamId, usize>,
    sink: &'a Arc<dyn GradientSink>,
    watched: HashMap<ParamId, burn::backend::DispatchTensor>,
}

impl ModuleMapper for Watcher<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(index) = self.indices.get(&param.id).copied() else {
            return param;
        };
        let id = param.id;
        param.map(|value| {
            let watched = self.watched.entry(id).or_insert_with(|| {
                let sink = self.sink.clone();
                let tap = GradientTap { sink, index };
                <Dispatch as TapGradient>::tap_gradient(value.into_dispatch(), tap)
            });
            Tensor::from_dispatch(watched.clone())
        })
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
        fn take(&self, index: usize, gradient: Result<TensorData, String>) {
            let values = gradient.unwrap().try_into_vec::<f32>().unwrap();
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
        let watched = watch(&model, &indices, &sink);
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
