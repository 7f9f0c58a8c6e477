//! Inputs, and what comes of them: values and gradients, to be compared.

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::{Gradients, TensorData};

/// Numbers without a pattern that the tests could fit by chance, in -1..1: SplitMix64.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

pub fn tensor<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let count = shape.iter().product();
    Tensor::from_data(TensorData::new(noise(seed, count), shape), device)
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.without_autodiff().into_data();
    data.iter::<f32>().collect()
}

/// Path and gradient of each parameter, in the order of the module; `None` for those without.
pub fn all_gradients<M: Module>(
    model: &M,
    gradients: &Gradients,
) -> Vec<(String, Option<Vec<f32>>)> {
    struct Collect<'a> {
        path: Vec<String>,
        gradients: &'a Gradients,
        found: Vec<(String, Option<Vec<f32>>)>,
    }
    impl ModuleVisitor for Collect<'_> {
        everburn_nn::walking! { path }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(self.gradients).map(values);
            self.found.push((self.path.join("."), gradient));
        }
    }
    let mut collect = Collect {
        path: Vec::new(),
        gradients,
        found: Vec::new(),
    };
    model.visit(&mut collect);
    collect.found
}

/// Equal within 1e-5, of each number or of 1.
#[track_caller]
pub fn assert_close(left: &[f32], right: &[f32]) {
    assert_eq!(left.len(), right.len());
    for (index, (a, b)) in left.iter().zip(right).enumerate() {
        let scale = a.abs().max(b.abs()).max(1.0);
        assert!((a - b).abs() <= 1e-5 * scale, "{a} and {b} at {index}");
    }
}
