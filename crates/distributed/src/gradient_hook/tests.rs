//! Tests of `gradient_hook`.

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

/// The order in which the backward pass reaches hooks.
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
/// (It is a hook on a copy, added at weight zero, so that the gradient continues.)
fn clock(rows: Tensor<2>, moments: &Arc<Moments>, name: &'static str) -> Tensor<2> {
    let sink: Arc<dyn GradientSink> = Arc::new(Moment(moments.clone(), name));
    let anchor = Tensor::<1>::zeros([1], &rows.device());
    let hook = GradientHook {
        sink,
        index: 0,
        recorder: None,
    };
    let hooked = <Dispatch as HookOperations>::hook_gradient(
        rows.clone().into_dispatch(),
        anchor.into_dispatch(),
        hook,
    );
    rows + Tensor::<2>::from_dispatch(hooked) * 0.0
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
    let (watched, _) = with_hooks(&layers, &indices, &sink, None, None);
    let mut rows = Tensor::<2>::ones([2, 3], &device).require_grad();
    for (layer, name) in watched.iter().zip(["input 0", "input 1", "input 2"]) {
        rows = layer.forward(clock(rows, &moments, name)).tanh();
    }
    drop(rows.mean().backward());
    // The clock of a layer's input is deeper than its anchor of 0, so it runs after the layer.
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
    drop(with_hooks(&linear, &indices, &sink, None, None));
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
    let (watched, found) = with_hooks(&model, &indices, &sink, None, None);
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
