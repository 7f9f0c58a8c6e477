//! Random changes of samples.

use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

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

/// A random change of a sample, such as a flip of an image, and a mixture of it with another one, such as mixup.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::Augment;
/// use rand_chacha::rand_core::Rng;
///
/// let noise = Augment::new(|sample: f32, rng| sample + rng.next_u32() as f32 / u32::MAX as f32);
/// let mixup = noise.mixed_by(|sample, partner, _rng| 0.75 * sample + 0.25 * partner);
/// assert!(mixup.mixes());
/// ```
pub struct Augment<I> {
    change: Change<I>,
    mix: Option<Mix<I>>,
}

type Change<I> = Arc<dyn Fn(I, &mut SampleRng) -> I + Send + Sync>;

type Mix<I> = Arc<dyn Fn(I, I, &mut SampleRng) -> I + Send + Sync>;

impl<I> Augment<I> {
    /// A change of each sample by itself.
    pub fn new(change: impl Fn(I, &mut SampleRng) -> I + Send + Sync + 'static) -> Self {
        Self {
            change: Arc::new(change),
            mix: None,
        }
    }

    /// The same change, and then a mixture of each sample with a partner. The partner is any sample of the set, drawn with
    /// the random numbers of the sample, and changed as it is in this epoch itself. It is read for this: each sample costs
    /// two.
    #[must_use]
    pub fn mixed_by(self, mix: impl Fn(I, I, &mut SampleRng) -> I + Send + Sync + 'static) -> Self {
        Self {
            mix: Some(Arc::new(mix)),
            ..self
        }
    }

    /// Whether samples are mixed with others.
    pub fn mixes(&self) -> bool {
        self.mix.is_some()
    }

    /// The same for another type of samples.
    #[must_use]
    pub fn map<J>(
        self,
        open: impl Fn(J) -> I + Clone + Send + Sync + 'static,
        close: impl Fn(I) -> J + Clone + Send + Sync + 'static,
    ) -> Augment<J>
    where
        I: 'static,
        J: 'static,
    {
        let Self { change, mix } = self;
        let mix = mix.map(|mix| -> Mix<J> {
            let (open, close) = (open.clone(), close.clone());
            Arc::new(move |sample, partner, rng| close(mix(open(sample), open(partner), rng)))
        });
        Augment {
            change: Arc::new(move |sample, rng| close(change(open(sample), rng))),
            mix,
        }
    }
}

impl<I> Clone for Augment<I> {
    fn clone(&self) -> Self {
        Self {
            change: Arc::clone(&self.change),
            mix: self.mix.clone(),
        }
    }
}

/// What distinguishes these random numbers from those of the sampler, which have the same seed.
const CHANGE: u8 = 1;

/// The same for mixtures: they do not depend on how many numbers the change has drawn.
const MIX: u8 = 2;

/// A change of the samples of each epoch.
pub(super) struct Augmentation<I> {
    pub(super) seed: u64,
    pub(super) augment: Augment<I>,
}

impl<I> Clone for Augmentation<I> {
    fn clone(&self) -> Self {
        Self {
            seed: self.seed,
            augment: self.augment.clone(),
        }
    }
}

impl<I> Augmentation<I> {
    /// The samples with these numbers, changed for this epoch, and mixed with samples of `set`.
    pub(super) fn apply(
        &self,
        items: Vec<I>,
        numbers: &[usize],
        epoch: usize,
        set: &dyn Dataset<I>,
    ) -> Result<Vec<I>, DatasetError> {
        let changed = self.changed(items, numbers, epoch);
        let Some(mix) = &self.augment.mix else {
            return Ok(changed);
        };
        let mut rngs: Vec<_> = numbers
            .iter()
            .map(|number| self.rng(MIX, epoch, *number))
            .collect();
        let partners: Vec<_> = rngs.iter_mut().map(|rng| below(rng, set.len())).collect();
        let read = set.get_many(partners.clone())?;
        let read = self.changed(read, &partners, epoch);
        let pairs = changed.into_iter().zip(read).zip(&mut rngs);
        Ok(pairs
            .map(|((item, partner), rng)| mix(item, partner, rng))
            .collect())
    }

    /// The partners of these samples in this epoch; none where samples are not mixed.
    pub(super) fn partners(&self, numbers: &[usize], epoch: usize, len: usize) -> Vec<usize> {
        match self.augment.mixes() {
            false => Vec::new(),
            true => numbers
                .iter()
                .map(|number| below(&mut self.rng(MIX, epoch, *number), len))
                .collect(),
        }
    }

    fn changed(&self, items: Vec<I>, numbers: &[usize], epoch: usize) -> Vec<I> {
        let items = items.into_iter().zip(numbers);
        let change = |(item, number): (I, &usize)| {
            (self.augment.change)(item, &mut self.rng(CHANGE, epoch, *number))
        };
        items.map(change).collect()
    }

    fn rng(&self, purpose: u8, epoch: usize, number: usize) -> SampleRng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..16].copy_from_slice(&(epoch as u64).to_le_bytes());
        key[16] = purpose;
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(number as u64);
        rng
    }
}

/// Uniform among `0..count`; the bias, `count` / 2^64, is of no consequence.
fn below(rng: &mut SampleRng, count: usize) -> usize {
    ((u128::from(rng.next_u64()) * count as u128) >> 64) as usize
}
