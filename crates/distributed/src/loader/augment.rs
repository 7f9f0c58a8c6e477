//! Random changes of samples.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// The random numbers of one sample in one epoch: they depend on the seed, the epoch and the sample's number alone, so
/// they are the same on any number of ranks and after a resume. Any function that takes a random number generator of
/// `rand` takes them.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::SampleRng;
/// use rand_chacha::rand_core::Rng;
///
/// fn coin(rng: &mut SampleRng) -> bool {
///     rng.next_u32() % 2 == 0
/// }
/// ```
pub type SampleRng = ChaCha8Rng;

/// A random change of a sample, such as a flip of an image.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use std::sync::Arc;
/// use everburn::distributed::Augment;
/// use rand_chacha::rand_core::Rng;
///
/// let noise: Augment<f32> = Arc::new(|sample, rng| sample + rng.next_u32() as f32 / u32::MAX as f32);
/// ```
pub type Augment<I> = Arc<dyn Fn(I, &mut SampleRng) -> I + Send + Sync>;

/// What distinguishes these random numbers from those of the sampler, which have the same seed.
const PURPOSE: u8 = 1;

/// A change of the samples of each epoch.
pub(super) struct Augmentation<I> {
    pub(super) seed: u64,
    pub(super) augment: Augment<I>,
}

impl<I> Clone for Augmentation<I> {
    fn clone(&self) -> Self {
        Self {
            seed: self.seed,
            augment: Arc::clone(&self.augment),
        }
    }
}

impl<I> Augmentation<I> {
    /// The samples with these numbers, changed for this epoch.
    pub(super) fn apply(&self, items: Vec<I>, numbers: &[usize], epoch: usize) -> Vec<I> {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..16].copy_from_slice(&(epoch as u64).to_le_bytes());
        key[16] = PURPOSE;
        let items = items.into_iter().zip(numbers);
        let changed = items.map(|(item, number)| {
            let mut rng = ChaCha8Rng::from_seed(key);
            rng.set_stream(*number as u64);
            (self.augment)(item, &mut rng)
        });
        changed.collect()
    }
}
