//! Causal self-attention (Vaswani et al. 2017, section 3.2).

use burn::module::Module;
use burn::prelude::*;
use everburn_nn::Dropout;

use super::layer::Linear;
use crate::decoder::{LayerCache, RotaryScaling, Rotation, attend, heads};

/// How fast the angles of rotary positions fall from one pair of numbers to the next (Su et al. 2021,
/// section 3.2.2).
const ROTARY_BASE: f64 = 10_000.0;

/// Each token looks at itself and at those before it, in several heads.
///
/// How many heads there are is read from the weights: a part of the layer with the columns of some
/// heads (and the rows of `out` that belong to them) computes those heads.
#[doc(hidden)]
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
    pub(super) fn forward(&self, x: Tensor<3>, cache: Option<&mut LayerCache>) -> Tensor<3> {
        let (device, length) = (x.device(), x.dims()[1]);
        let layers = [&self.q, &self.k, &self.v];
        let [mut q, mut k, v] = Linear::forward_each(layers, x).map(|x| heads(x, self.head_width));
        if self.rotary {
            let place = (cache.as_ref().map_or(0, |cache| cache.tokens()), length);
            let angles = Rotation::new(
                place,
                self.head_width,
                ROTARY_BASE,
                RotaryScaling::None,
                &device,
            );
            (q, k) = (angles.turn(q), angles.turn(k));
        }
        self.out.forward(attend(q, [k, v], &self.dropout, cache))
    }
}
