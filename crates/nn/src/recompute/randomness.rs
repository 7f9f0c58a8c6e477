//! The same random numbers, twice.
//!
//! Burn's back ends have one generator for the whole process, which can be seeded and neither read nor put
//! back. So a segment gets a seed of its own, drawn from the generator: what the generator gives after the
//! segment follows from what it gave before it, and a run that is repeated draws the same numbers. They
//! are other numbers than without checkpointing.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::prelude::*;
use burn::tensor::{Distribution, Int, try_read_sync};

/// Whether a segment draws random numbers, as dropout does.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::Randomness;
///
/// assert_eq!(Randomness::default(), Randomness::Replayed);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Randomness {
    /// It may: the recomputation draws the same numbers again. Costs three draws of a few whole numbers a
    /// segment, which are read from the device.
    #[default]
    Replayed,
    /// It does not, by the caller's word: the generator is left alone.
    Unused,
}

/// A segment's random numbers, to be drawn again.
#[derive(Debug)]
pub(crate) struct Draws {
    device: Device,
    seed: u64,
    /// What the generator gave after the segment.
    next: u64,
    /// A sum of the first output: the last word where `next` does not come again.
    outcome: Option<u64>,
}

/// A segment under way for the first time.
#[derive(Debug)]
pub(crate) struct Recording {
    device: Device,
    seed: u64,
    /// What the generator gives after a segment that draws nothing.
    untouched: u64,
}

impl Recording {
    pub(crate) fn start(device: Device) -> Self {
        let seed = draw(&device);
        device.seed(seed);
        let untouched = draw(&device);
        device.seed(seed);
        Self {
            device,
            seed,
            untouched,
        }
    }

    /// Back to where the segment began.
    pub(crate) fn rewind(&self) {
        self.device.seed(self.seed);
    }

    /// What must be drawn again; `None` if nothing was drawn.
    pub(crate) fn finish(self, output: Option<&DispatchTensor>) -> Option<Draws> {
        let next = draw(&self.device);
        (next != self.untouched).then(|| Draws {
            outcome: output.and_then(sum_of),
            device: self.device,
            seed: self.seed,
            next,
        })
    }
}

impl Draws {
    /// Runs `segment` with the same random numbers, and leaves the generator where it would be without.
    ///
    /// # Panics
    /// Panics if another thread has drawn from the generator in one of the two runs, and the output is
    /// another: gradients of another function than the one that was computed would be wrong in silence.
    pub(crate) fn replay<T>(
        self,
        segment: impl FnOnce() -> T,
        first_output: impl FnOnce(&T) -> Option<DispatchTensor>,
    ) -> T {
        let after = draw(&self.device);
        self.device.seed(self.seed);
        let output = segment();
        let next = draw(&self.device);
        self.device.seed(after);
        let same = next == self.next
            || first_output(&output).and_then(|output| sum_of(&output)) == self.outcome;
        assert!(
            same,
            "a checkpointed segment drew other random numbers when it was recomputed than in the forward \
             pass, and its output is another: most likely another thread used the generator, which the \
             whole process shares; run each rank as a process, or do without dropout or without activation \
             checkpointing"
        );
        output
    }
}

/// 60 random bits. In four parts, so that they fit into any type of whole numbers that a device may have.
fn draw(device: &Device) -> u64 {
    let parts = Tensor::<1, Int>::random([4], Distribution::Uniform(0.0, 32767.0), device);
    let parts = parts.into_data();
    parts
        .iter::<i64>()
        .fold(0, |bits, part| (bits << 15) | (part as u64 & 0x7fff))
}

/// The bits of the sum of a tensor's elements; `None` if it cannot be read.
fn sum_of(tensor: &DispatchTensor) -> Option<u64> {
    let sum = Dispatch::float_sum(super::graph::untracked(tensor.clone()));
    let data = try_read_sync(Dispatch::float_into_data(sum))?.ok()?;
    data.iter::<f64>().next().map(f64::to_bits)
}
