//! When the passes come to each parameter, where gradients are exchanged behind the backward pass or not at all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::optim::GradientsParams;
use everburn_collectives::sync::lock;
use everburn_profile::Recorder;

use crate::ddp::Ddp;
use crate::gradient::{Gradient, take_for_parameters};
use crate::gradient_hook::{GradientSink, with_hooks};
use crate::shared::Shared;

/// Reports to a [`Recorder`] when a forward and backward pass comes to each parameter, and keeps the gradients.
///
/// Where [`Ddp::begin`] starts a step, its watched copies report to the recorder themselves.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; pub use everburn_profile as profile; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Ddp, DdpConfig};
/// use everburn::profile::{Facts, Phase, Recorder};
///
/// let device = Device::flex().autodiff();
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let model = LinearConfig::new(3, 1).init(&device);
/// let (ddp, model) = Ddp::new(model, group, DdpConfig::default())?;
/// assert!(ddp.probe().is_none(), "there is no recorder");
///
/// let recorder = Recorder::new(Facts::default());
/// ddp.record_into(&recorder);
/// let probe = ddp.probe().unwrap();
/// recorder.begin_step(1);
/// recorder.enter(Phase::Forward);
/// let loss = probe.with_hooks(&model).forward(Tensor::<2>::ones([2, 3], &device)).mean();
/// loss.backward();
/// assert_eq!(probe.gradients(&model).len(), 2);
/// let recording = recorder.finish();
/// assert_eq!(recording.parameters, ["weight", "bias"]);
/// // Each forward and backward.
/// assert_eq!(recording.marks.len(), 4);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug)]
pub struct Probe {
    shared: Arc<Shared>,
    kept: Arc<Kept>,
}

/// Finished gradients by the number of their parameter.
#[derive(Debug, Default)]
struct Kept(Mutex<HashMap<usize, Gradient>>);

impl GradientSink for Kept {
    fn take(&self, index: usize, gradient: Gradient) {
        lock(&self.0).insert(index, gradient);
    }
}

impl Ddp {
    /// Reports to `recorder` from now on when passes come to parameters and when buckets travel; the first recorder stays.
    pub fn record_into(&self, recorder: &Recorder) {
        let parameters = self.parameters().iter();
        recorder.name_parameters(parameters.map(|entry| entry.path.clone()));
        // A second one would see half of a training.
        let _ = self.shared().recorder.set(recorder.clone());
    }

    /// A probe for one forward and backward pass; `None` unless [`Ddp::record_into`] has named a recorder.
    pub fn probe(&self) -> Option<Probe> {
        self.shared().recorder()?;
        Some(Probe {
            shared: self.shared().clone(),
            kept: Arc::new(Kept::default()),
        })
    }
}

impl Probe {
    /// A copy of `model` for the pass. `Gradients` of its backward pass holds none of its parameters: they are
    /// [`Probe::gradients`].
    pub fn with_hooks<M: Module>(&self, model: &M) -> M {
        let sink: Arc<dyn GradientSink> = self.kept.clone();
        let (numbers, recorder) = (&self.shared.numbers, self.shared.recorder());
        with_hooks(model, numbers, &sink, recorder, None).0
    }

    /// The gradients of the pass, of the parameters of `model`, of which the watched copy was made.
    pub fn gradients<M: Module>(self, model: &M) -> GradientsParams {
        let parameters = &self.shared.parameters;
        let kept = std::mem::take(&mut *lock(&self.kept.0)).into_iter();
        let kept = kept.map(|(number, gradient)| (parameters[number].id, gradient));
        take_for_parameters(model, &mut kept.collect(), |gradient, _| gradient)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::prelude::*;
    use everburn_collectives::group::{GroupOptions, ProcessGroup};
    use everburn_profile::{Facts, Pass, Phase};

    use super::*;
    use crate::DdpConfig;

    #[test]
    fn probed_gradients_are_those_of_the_model_itself() {
        let device = Device::flex().autodiff();
        let linear = || LinearConfig::new(3, 3).init(&device);
        let model: Vec<Linear> = vec![linear(), linear()];
        let group = ProcessGroup::alone(GroupOptions::default());
        let (ddp, model) = Ddp::new(model, group, DdpConfig::default()).unwrap();
        let recorder = Recorder::new(Facts::default());
        ddp.record_into(&recorder);
        let rows = Tensor::<2>::from_floats([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], &device);
        let loss = |model: &Vec<Linear>| {
            let hidden = model[0].forward(rows.clone()).tanh();
            model[1].forward(hidden).powf_scalar(2.0).mean()
        };
        let plain = GradientsParams::from_grads(loss(&model).backward(), &model);
        recorder.begin_step(1);
        recorder.enter(Phase::Forward);
        let probe = ddp.probe().unwrap();
        drop(loss(&probe.with_hooks(&model)).backward());
        let probed = probe.gradients(&model);
        for layer in &model {
            let of = |gradients: &GradientsParams| {
                gradients.get::<2>(layer.weight.id).unwrap().into_data()
            };
            assert_eq!(of(&probed), of(&plain));
        }
        let recording = recorder.finish();
        let backward = recording
            .marks
            .iter()
            .filter(|mark| mark.pass == Pass::Backward);
        let last_layer_first = backward.map(|mark| mark.parameter / 2).collect::<Vec<_>>();
        assert_eq!(last_layer_first, [1, 1, 0, 0]);
    }
}
