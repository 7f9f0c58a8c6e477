//! The model that the tests of DDP share, and its gradients.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;

/// Two layers, of which the second is used by some ranks only.
#[derive(Module, Debug)]
pub struct Branchy {
    pub always: Linear,
    pub sometimes: Linear,
    pub never: Param<Tensor<1>>,
}

impl Branchy {
    pub fn new(device: &Device) -> Self {
        Self {
            always: LinearConfig::new(4, 3).init(device),
            sometimes: LinearConfig::new(3, 3).init(device),
            never: Param::from_tensor(Tensor::ones([5], device)),
        }
    }

    /// The sum of squares of each row's output: `[B, 4] -> [B]`.
    pub fn loss(&self, rows: Tensor<2>, take_branch: bool) -> Tensor<1> {
        let hidden = self.always.forward(rows);
        let output = if take_branch {
            self.sometimes.forward(hidden)
        } else {
            hidden
        };
        output.powf_scalar(2.0).sum_dim(1).squeeze_dim(1)
    }
}

pub fn rows(count: usize, device: &Device) -> Tensor<2> {
    let numbers = (0..count * 4)
        .map(|i| ((i * 37 % 19) as f32 - 9.0) / 7.0)
        .collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(numbers, [count, 4]), device)
}

/// The gradients of the mean loss over `rows`, without any other rank.
pub fn gradients_over(model: &Branchy, rows: Tensor<2>, take_branch: bool) -> GradientsParams {
    let loss = model.loss(rows, take_branch).mean();
    GradientsParams::from_grads(loss.backward(), model)
}

pub fn gradient<const D: usize>(
    gradients: &GradientsParams,
    param: &Param<Tensor<D>>,
) -> Option<Vec<f32>> {
    gradients.get::<D>(param.id).map(values)
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[track_caller]
pub fn assert_close(left: &[f32], right: &[f32]) {
    assert_eq!(left.len(), right.len());
    for (a, b) in left.iter().zip(right) {
        assert!(
            (a - b).abs() <= 1e-5 * a.abs().max(b.abs()).max(1.0),
            "{a} and {b}"
        );
    }
}
