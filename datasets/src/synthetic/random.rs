//! Random numbers keyed by what they are for.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Split;
use crate::draw::Draw;

/// What a stream of random numbers decides.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Labels,
    Digit,
    Backdrop,
}

/// A stream of random numbers that is independent of every other seed, split, purpose and index.
pub(super) type Stream = Draw<ChaCha8Rng>;

impl Stream {
    pub(super) fn new(seed: u64, split: Split, purpose: Purpose, index: usize) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8] = match split {
            Split::Train => 0,
            Split::Test => 1,
        };
        key[9] = match purpose {
            Purpose::Labels => 0,
            Purpose::Digit => 1,
            Purpose::Backdrop => 2,
        };
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(index as u64);
        Self(generator)
    }

    /// Uniform in `-1..1`.
    pub(super) fn signed(&mut self) -> f32 {
        self.between(-1.0, 1.0)
    }

    /// Bell-shaped in `-1..1` with standard deviation 1/3: the mean of three uniform numbers.
    pub(super) fn bell(&mut self) -> f32 {
        (self.signed() + self.signed() + self.signed()) / 3.0
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}
