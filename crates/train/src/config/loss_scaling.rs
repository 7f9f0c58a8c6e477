//! Losses multiplied, so that gradients fit into 16 bits.
//!
//! Most gradients of a training are far below what `f16` can hold (its least number is `2^-24`), and would
//! become zero. So the loss is multiplied by a power of two before the backward pass, and with it every
//! gradient; in `f32` they are divided again (Micikevicius et al. 2018, "Mixed Precision Training", section
//! 3.2). The factor is found by trying, as `torch.amp.GradScaler` does: a gradient that is not finite makes the
//! step be skipped and the factor halved; after [`GROWTH_INTERVAL`] steps without one it is doubled.
//!
//! What is looked at are the gradients that the ranks have added up, which have the same bits on all of them.
//! An infinity or a NaN survives each addition, so an overflow on one rank is in the sum: all ranks skip the
//! same step, and nobody has to ask. Only where each rank has its shards of the sum, they ask for the norm of all.

use std::cell::Cell;

use burn::prelude::*;
use serde::{Deserialize, Serialize};

/// The factor at the start: `2^16`, as in PyTorch.
const INITIAL_LOSS_SCALE: f64 = 65_536.0;

/// After how many steps without overflow the factor is doubled, as in PyTorch.
const GROWTH_INTERVAL: u32 = 2_000;

/// Below this, it is not the factor that makes gradients overflow: `2^-13`, about what fairseq gives up at.
const LEAST_LOSS_SCALE: f64 = 1.0 / 8_192.0;

/// A model whose gradients are all zero would let the factor grow for ever: `2^24`, as in NVIDIA's Apex.
const GREATEST_LOSS_SCALE: f64 = 16_777_216.0;

/// The factor that losses are multiplied by, and how it came to that. The same on all ranks, and part of each
/// checkpoint.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::LossScaling;
///
/// let mut scaling = LossScaling::default();
/// scaling.count(true);
/// assert_eq!((scaling.scale, scaling.skipped_steps), (32_768.0, 1));
/// (0..2_000).for_each(|_| scaling.count(false));
/// assert_eq!(scaling.scale, 65_536.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[doc(alias = "GradScaler")]
pub struct LossScaling {
    /// The factor, a power of two.
    pub scale: f64,
    /// How many steps have gone well since it last changed.
    pub good_steps: u32,
    /// How many steps were skipped since the training began.
    pub skipped_steps: u64,
}

impl Default for LossScaling {
    fn default() -> Self {
        Self {
            scale: INITIAL_LOSS_SCALE,
            good_steps: 0,
            skipped_steps: 0,
        }
    }
}

impl LossScaling {
    /// Counts a step in which gradients did not fit, or did.
    pub fn count(&mut self, overflowed: bool) {
        if overflowed {
            self.scale /= 2.0;
            self.good_steps = 0;
            self.skipped_steps += 1;
            return;
        }
        self.good_steps += 1;
        if self.good_steps >= GROWTH_INTERVAL {
            self.scale = (self.scale * 2.0).min(GREATEST_LOSS_SCALE);
            self.good_steps = 0;
        }
    }

    /// Whether no factor makes gradients fit.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.scale < LEAST_LOSS_SCALE
    }
}

thread_local! {
    /// What losses on this thread are multiplied by, where they are to be.
    static FACTOR: Cell<Option<f64>> = const { Cell::new(None) };
    /// How many were, since the newest [`ScaledLosses::begin`].
    static SCALED: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, [`scaled_loss`] multiplies on this thread.
#[derive(Debug)]
pub(crate) struct ScaledLosses;

impl ScaledLosses {
    pub(crate) fn begin(factor: f64) -> Self {
        FACTOR.set(Some(factor));
        SCALED.set(0);
        Self
    }

    /// How many losses were scaled.
    pub(crate) fn end(self) -> usize {
        SCALED.get()
    }
}

impl Drop for ScaledLosses {
    fn drop(&mut self) {
        FACTOR.set(None);
    }
}

/// The loss of which gradients are taken: `loss` times the present factor where a training scales losses, else
/// `loss` itself. [`Supervised`](crate::Supervised) calls it; a `TrainStep` of your own that is to be trained
/// with `--precision f16` does, too. What it reports is the loss itself.
///
/// # Shapes
/// - loss, output: `[1]`
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
///
/// let loss = Tensor::<1>::from_floats([0.5], &Device::flex());
/// // No training scales losses here.
/// assert_eq!(everburn::train::scaled_loss(loss).into_scalar::<f32>(), 0.5);
/// ```
#[must_use]
pub fn scaled_loss(loss: Tensor<1>) -> Tensor<1> {
    match FACTOR.get() {
        Some(factor) => {
            SCALED.set(SCALED.get() + 1);
            loss.mul_scalar(factor)
        }
        None => loss,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_overflows_halves_the_factor_until_there_is_none_left() {
        let mut scaling = LossScaling::default();
        (1..GROWTH_INTERVAL).for_each(|_| scaling.count(false));
        // One step before it would have grown.
        scaling.count(true);
        assert_eq!((scaling.scale, scaling.good_steps), (32_768.0, 0));
        let mut overflows = 1;
        while !scaling.is_exhausted() {
            scaling.count(true);
            overflows += 1;
        }
        // From 2^16 to 2^-14.
        assert_eq!((overflows, scaling.skipped_steps), (30, 30));
    }

    #[test]
    fn the_factor_grows_no_further_than_its_limit() {
        let mut scaling = LossScaling::default();
        for _ in 0..20 * GROWTH_INTERVAL {
            scaling.count(false);
        }
        assert_eq!(scaling.scale, GREATEST_LOSS_SCALE);
    }

    #[test]
    fn losses_are_scaled_while_a_step_wants_it_and_not_after() {
        let loss = || Tensor::<1>::from_floats([0.5], &Device::flex());
        let scaling = ScaledLosses::begin(8.0);
        assert_eq!(scaled_loss(loss()).into_scalar::<f32>(), 4.0);
        assert_eq!(scaling.end(), 1);
        assert_eq!(scaled_loss(loss()).into_scalar::<f32>(), 0.5);
        // One that is given up ends, too.
        drop(ScaledLosses::begin(8.0));
        assert_eq!(scaled_loss(loss()).into_scalar::<f32>(), 0.5);
    }
}
