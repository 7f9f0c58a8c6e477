//! Adam and AdamW, which on CPUs take a step in one pass over memory.

use burn::optim::{
    Adam as BurnsAdam, AdamState, AdamW as BurnsAdamW, AdamWState, AdaptiveMomentumState,
    LearningRate, Optimizer,
};
use burn::prelude::*;

/// The numbers that an optimizer's steps have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    pub(super) betas: [f32; 2],
    pub(super) epsilon: f32,
    pub(super) weight_decay: f32,
}

/// Whether weight decay acts on the parameter, as in AdamW, or in its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decays {
    Gradient,
    Parameter,
}

macro_rules! in_one_pass {
    ($(
        $(#[$doc:meta])*
        $name:ident: $burns:ident, $state:ident, $decays:ident;
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone)]
        pub(super) struct $name {
            burns: $burns,
            /// `None` where only Burn has the update: with AMSGrad, and with cautious weight decay.
            numbers: Option<Numbers>,
        }

        impl $name {
            pub(super) fn new(burns: $burns, numbers: Option<Numbers>) -> Self {
                Self { burns, numbers }
            }
        }

        impl Optimizer for $name {
            type State<const D: usize> = $state<D>;

            fn step<const D: usize>(
                &self,
                lr: LearningRate,
                tensor: Tensor<D>,
                grad: Tensor<D>,
                state: Option<Self::State<D>>,
            ) -> (Tensor<D>, Option<Self::State<D>>) {
                let momentum = state.as_ref().map(|state| &state.momentum);
                let step = self.numbers.and_then(|numbers| {
                    one_pass(numbers, Decays::$decays, lr, [&tensor, &grad], momentum)
                });
                match step {
                    Some((tensor, momentum)) => (tensor, Some($state::new(momentum))),
                    None => self.burns.step(lr, tensor, grad, state),
                }
            }

            fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
                $burns::to_device(state, device)
            }
        }
    )*};
}

in_one_pass! {
    /// Burn's [`BurnsAdam`], to the bit except where numbers would be subnormal. Its states and records are Burn's.
    Adam: BurnsAdam, AdamState, Gradient;
    /// Burn's [`BurnsAdamW`], to the bit except where numbers would be subnormal. Its states and records are Burn's.
    AdamW: BurnsAdamW, AdamWState, Parameter;
}

/// A parameter and its moments after a step; `None` where Burn's own operations are to make it.
#[cfg(feature = "flex")]
fn one_pass<const D: usize>(
    numbers: Numbers,
    decays: Decays,
    learning_rate: LearningRate,
    [tensor, grad]: [&Tensor<D>; 2],
    momentum: Option<&AdaptiveMomentumState<D>>,
) -> Option<(Tensor<D>, AdaptiveMomentumState<D>)> {
    use everburn_nn::WeightDecay;

    let time = momentum.map_or(0, |momentum| momentum.time) + 1;
    let step = everburn_nn::Adam {
        betas: numbers.betas,
        epsilon: numbers.epsilon,
        learning_rate,
        weight_decay: numbers.weight_decay,
        decays: match decays {
            Decays::Gradient => WeightDecay::Gradient,
            Decays::Parameter => WeightDecay::Parameter,
        },
        time: i32::try_from(time).ok()?,
    };
    let moments =
        momentum.map(|momentum| [&momentum.moment_1, &momentum.moment_2].map(Tensor::clone));
    let [tensor, first, second] = everburn_nn::adam(&step, tensor.clone(), grad.clone(), moments)?;
    Some((tensor, AdaptiveMomentumState::new(time, first, second)))
}

#[cfg(not(feature = "flex"))]
fn one_pass<const D: usize>(
    _: Numbers,
    _: Decays,
    _: LearningRate,
    _: [&Tensor<D>; 2],
    _: Option<&AdaptiveMomentumState<D>>,
) -> Option<(Tensor<D>, AdaptiveMomentumState<D>)> {
    None
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::decay::WeightDecayConfig;
    use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer};
    use burn::tensor::{Distribution, TensorData};

    use super::*;

    /// The parameters after each of five steps along gradients that change with the step.
    fn steps(mut optimizer: ModuleOptimizer, layer: &Linear) -> Vec<Vec<f32>> {
        let device = Device::flex().autodiff();
        let mut model = layer.clone();
        let steps = (0..5).map(|step| {
            let inputs = (0..7 * 37).map(|index| ((index * (step + 3)) as f32).sin());
            let inputs = TensorData::new(inputs.collect::<Vec<_>>(), [7, 37]);
            let output = model.forward(Tensor::<2>::from_data(inputs, &device));
            let gradients = output.powi_scalar(2).mean().backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            let rate = 0.01 / (step + 1) as f64;
            let next = optimizer.step(rate, model.clone(), gradients);
            model = next;
            let bias = model.bias.as_ref().map(Param::val).unwrap().into_data();
            let weight = model.weight.val().into_data();
            weight.iter::<f32>().chain(bias.iter::<f32>()).collect()
        });
        steps.collect()
    }

    #[test]
    fn the_bits_are_those_of_burn_over_several_steps() {
        let device = Device::flex().autodiff();
        let mut layer = LinearConfig::new(37, 53).init(&device);
        let noise = Tensor::random([53], Distribution::Normal(0.0, 1.0), &device);
        layer.bias = Some(Param::from_tensor(noise));
        for weight_decay in [0.0, 0.1_f32] {
            let numbers = Numbers {
                betas: [0.8, 0.99],
                epsilon: 1e-8,
                weight_decay,
            };
            let penalty = (weight_decay > 0.0).then(|| WeightDecayConfig::new(weight_decay));
            let adam = AdamConfig::new()
                .with_beta_1(0.8)
                .with_beta_2(0.99)
                .with_epsilon(1e-8)
                .with_weight_decay(penalty);
            let adam_w = AdamWConfig::new()
                .with_beta_1(0.8)
                .with_beta_2(0.99)
                .with_epsilon(1e-8)
                .with_weight_decay(weight_decay);
            let ours = Adam::new(adam.build(), Some(numbers)).into();
            assert_eq!(steps(ours, &layer), steps(adam.init(), &layer));
            let ours = AdamW::new(adam_w.build(), Some(numbers)).into();
            assert_eq!(steps(ours, &layer), steps(adam_w.init(), &layer));
        }
    }

    #[test]
    fn a_step_on_this_device_is_in_one_pass() {
        let device = Device::flex();
        let numbers = Numbers {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 0.0,
        };
        let ones = Tensor::<2>::ones([3, 4], &device);
        let step = one_pass(numbers, Decays::Parameter, 0.1, [&ones, &ones], None);
        let (tensor, momentum) = step.unwrap();
        assert_eq!(momentum.time, 1);
        let changed = tensor.into_data().iter::<f32>().collect::<Vec<_>>();
        assert!(changed.iter().all(|value| (value - 0.9).abs() < 1e-6));
    }
}
