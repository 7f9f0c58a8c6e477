//! The numbers of a model: read, and made.
//!
//! Burn has one generator of random numbers for all tests of a process, so that models whose numbers are to be
//! the same twice are not left with what it drew.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;

/// Those of each parameter and buffer, in visiting order.
pub fn parameters<M: Module>(model: &M) -> Vec<Vec<f32>> {
    struct Collect(Vec<Vec<f32>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().iter().collect());
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

/// The largest difference of two lists of numbers.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The model with `next` of a parameter's shape for each of its numbers. One whose numbers are all the same,
/// of a norm, stays.
pub fn filled<M: Module>(model: M, next: impl FnMut(&[usize]) -> f32) -> M {
    struct Fill<F>(F);
    impl<F: FnMut(&[usize]) -> f32> ModuleMapper for Fill<F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let old: Vec<f32> = param.val().into_data().iter().collect();
            if old.iter().all(|number| *number == old[0]) {
                return param;
            }
            param.map(|tensor| {
                let shape = tensor.dims();
                let numbers: Vec<f32> = old.iter().map(|_| (self.0)(&shape)).collect();
                Tensor::from_data(TensorData::new(numbers, shape), &tensor.device())
            })
        }
    }
    model.map(&mut Fill(next))
}

/// Filled with random numbers, those of a parameter at most `reach` of its shape from zero.
pub fn drawn_within<M: Module>(model: M, seed: u64, reach: impl Fn(&[usize]) -> f32) -> M {
    let mut state = seed;
    filled(model, |shape| {
        // Knuth's MMIX generator; its upper bits are the good ones.
        let step = state.wrapping_mul(6_364_136_223_846_793_005);
        state = step.wrapping_add(1_442_695_040_888_963_407);
        reach(shape) * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    })
}

/// Filled with numbers such as Burn's layers begin with, which are the same in every run.
pub fn drawn<M: Module>(model: M) -> M {
    drawn_within(model, 1, |shape| match shape {
        // A bias, as of a layer with 64 inputs: its shape does not tell them.
        [_] => 0.125,
        _ => inputs(shape).sqrt().recip(),
    })
}

/// How many inputs an output of a layer has, by the shape of its weight; of a bias, how many outputs.
pub fn inputs(shape: &[usize]) -> f32 {
    // A linear layer has its inputs first, a convolution its outputs.
    let count: usize = match shape {
        [inputs] | [inputs, _] => *inputs,
        [_, inputs @ ..] => inputs.iter().product(),
        [] => 1,
    };
    count as f32
}
