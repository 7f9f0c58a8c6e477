//! Causal self-attention (Vaswani et al. 2017, section 3.2).

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::TensorData;

use everburn_nn::{Dropout, causal_softmax, matmul, rope};

use super::layer::Linear;

/// How fast the angles of rotary positions fall from one pair of numbers to the next (Su et al. 2021,
/// section 3.2.2).
const ROTARY_BASE: f64 = 10_000.0;

/// Each token looks at itself and at those before it, in several heads.
///
/// How many heads there are is read from the weights: a part of the layer with the columns of some
/// heads (and the rows of `out` that belong to them) computes those heads.
#[derive(Module, Debug)]
pub struct Attention {
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) out: Linear,
    pub(super) dropout: Dropout,
    pub(super) head_width: usize,
    pub(super) rotary: bool,
}

impl Attention {
    /// # Shapes
    /// - x, output: `[B, T, E]`
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, length, _] = x.dims();
        let device = x.device();
        let heads = self.q.weight.dims()[1] / self.head_width;
        let split = |x: Tensor<3>| -> Tensor<4> {
            x.reshape([batch, length, heads, self.head_width])
                .swap_dims(1, 2) // [B, heads, T, width of a head]
        };
        let layers = [&self.q, &self.k, &self.v];
        let [mut q, mut k, v] = Linear::forward_each(layers, x).map(split);
        if self.rotary {
            let angles = Rotation::new(length, self.head_width, &device);
            (q, k) = (angles.turn(q), angles.turn(k));
        }
        let scale = (self.head_width as f64).sqrt().recip();
        let shares = causal_softmax(matmul(q, k.swap_dims(2, 3)), scale); // [B, heads, T, T]
        let shares = self.dropout.forward(shares);
        let looked_up = matmul(shares, v).swap_dims(1, 2); // [B, T, heads, width of a head]
        self.out
            .forward(looked_up.reshape([batch, length, heads * self.head_width]))
    }
}

/// Turns pairs of numbers by angles that grow with the position. Number `i` of the first half of a
/// head goes with number `i` of the second half.
struct Rotation {
    cos: Tensor<4>,
    sin: Tensor<4>,
}

impl Rotation {
    fn new(length: usize, head_width: usize, device: &Device) -> Self {
        let half = head_width / 2;
        let angle = |index: usize| {
            let (position, pair) = (index / half, index % half);
            position as f64 / ROTARY_BASE.powf(pair as f64 / half as f64)
        };
        let table = |f: fn(f64) -> f64| {
            let values = (0..length * half).map(|index| f(angle(index)) as f32);
            let values = values.collect::<Vec<_>>();
            Tensor::from_data(TensorData::new(values, [1, 1, length, half]), device)
        };
        Self {
            cos: table(f64::cos),
            sin: table(f64::sin),
        }
    }

    /// # Shapes
    /// - x, output: `[B, heads, T, width of a head]`
    fn turn(&self, x: Tensor<4>) -> Tensor<4> {
        rope(x, self.cos.clone(), self.sin.clone())
    }
}
