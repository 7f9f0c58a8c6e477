//! Reads a rank's share of each global batch.

mod ahead;
mod assembly;
mod augment;
mod error;
mod plain;
mod weigh;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::prelude::*;
use everburn_profile::Recorder;

use self::ahead::Ahead;
pub use self::ahead::Prefetch;
use self::assembly::{Assembly, Order};
use self::augment::Augmentation;
pub use self::augment::{Augment, SampleRng};
pub use self::error::{BatchNumber, InputError};
pub use self::weigh::Weigh;
use crate::rank_weights::RankWeights;
use crate::sampler::{DistributedSampler, SamplerError};

/// Samples that go through the model together.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::MicroBatch;
///
/// let part = MicroBatch { batch: vec![0.5, 0.25], samples: 2, weight: 2, index: 0, indices: vec![5, 3] };
/// assert_eq!(part.batch.len(), part.samples);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch<B> {
    /// What the batcher made of them.
    pub batch: B,
    /// How many there are.
    pub samples: usize,
    /// How much the gradient of their mean loss counts beside that of others: as many as there are, or the sum of what
    /// [`DistributedLoader::weighing`] makes of each.
    pub weight: usize,
    /// Its number in the share. In a loader over logical shards those without samples have no
    /// micro-batch, and this is the number among the own ones.
    pub index: usize,
    /// The numbers of its samples in the data set that the loader reads.
    pub indices: Vec<usize>,
}

/// A rank's share of one global batch.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{MicroBatch, ShareOfBatch};
///
/// let part = MicroBatch { batch: vec![0.5, 0.25], samples: 2, weight: 2, index: 0, indices: vec![5, 3] };
/// let share = ShareOfBatch {
///     micro_batches: vec![part],
///     rounds: 1,
///     samples: 2,
///     weight: 2,
///     global_samples: 8,
/// };
/// assert_eq!(share.samples as f64 / share.global_samples as f64, 0.25);
/// ```
#[derive(Debug, Clone)]
pub struct ShareOfBatch<B> {
    /// The share, in one part or as many as [`DistributedLoader::in_micro_batches`] says; empty
    /// where no sample of the batch fell to this rank: it then joins the step with weight zero.
    pub micro_batches: Vec<MicroBatch<B>>,
    /// How many micro-batches the rank with the largest share has.
    pub rounds: usize,
    /// How many samples the share has.
    pub samples: usize,
    /// The weights of its micro-batches together.
    pub weight: usize,
    /// How many samples the global batch has, over all ranks.
    pub global_samples: usize,
}

/// A data loader over the share that a [`DistributedSampler`] deals to this rank.
///
/// `I` is what the data set yields, `B` what the batcher makes of several of them.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use std::sync::Arc;
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::data::dataset::InMemDataset;
/// use burn::prelude::*;
/// use everburn::distributed::{DistributedLoader, DistributedSampler, SamplerConfig, Tail};
///
/// struct Sum;
/// impl Batcher<i64, i64> for Sum {
///     fn batch(&self, items: Vec<i64>, _device: &Device) -> i64 {
///         items.iter().sum()
///     }
/// }
///
/// let config = SamplerConfig { num_samples: 5, batch_size: 4, shuffle: None, tail: Tail::Keep };
/// let sampler = DistributedSampler::new(config, 1, 2).unwrap();
/// let dataset = Arc::new(InMemDataset::new(vec![1, 2, 3, 4, 5]));
/// let loader = DistributedLoader::new(dataset, Arc::new(Sum), sampler, Device::flex());
/// let shares = loader.epoch(1).map(|share| share.unwrap().micro_batches).collect::<Vec<_>>();
/// assert_eq!(shares[0][0].batch, 3 + 4);
/// assert!(shares[1].is_empty());
/// ```
#[doc(alias = "DataLoader")]
pub struct DistributedLoader<I, B> {
    assembly: Assembly<I, B>,
    prefetch: Prefetch,
    /// Called when a thread assembles a batch.
    recorder: Option<Recorder>,
    /// Only for [`DataLoader::iter`], which gets no epoch.
    iterations: Arc<AtomicUsize>,
}

impl<I, B> Clone for DistributedLoader<I, B> {
    fn clone(&self) -> Self {
        Self {
            assembly: self.assembly.clone(),
            prefetch: self.prefetch,
            recorder: self.recorder.clone(),
            iterations: self.iterations.clone(),
        }
    }
}

impl<I, B> DistributedLoader<I, B> {
    /// A loader whose batches are put on `device`.
    ///
    /// # Panics
    /// Panics if the sampler was made for another number of samples than the data set has.
    pub fn new(
        dataset: Arc<dyn Dataset<I>>,
        batcher: Arc<dyn Batcher<I, B>>,
        sampler: DistributedSampler,
        device: Device,
    ) -> Self {
        assert_eq!(
            sampler.config().num_samples,
            dataset.len(),
            "the sampler was made for another data set"
        );
        Self {
            assembly: Assembly {
                dataset,
                batcher,
                sampler,
                device,
                micro_batches: 1,
                augmentation: None,
                weigh: None,
            },
            prefetch: Prefetch::default(),
            recorder: None,
            iterations: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// The same loader with each share cut into `count` micro-batches, as even as can be, or as
    /// many as the share has samples.
    #[must_use]
    pub fn in_micro_batches(mut self, count: usize) -> Self {
        self.assembly.micro_batches = count.max(1);
        self
    }

    /// The same loader with samples that are changed by `augment`, anew in each epoch. Threads that read ahead call it.
    #[must_use]
    pub fn augmenting(mut self, seed: u64, augment: Augment<I>) -> Self {
        self.assembly.augmentation = Some(Augmentation { seed, augment });
        self
    }

    /// The same loader with samples of unequal weight, as that of texts of which each has its own number of tokens to
    /// predict: see [`Weigh`].
    #[must_use]
    pub fn weighing(mut self, weigh: Weigh<I>) -> Self {
        self.assembly.weigh = Some(weigh);
        self
    }

    /// Whether samples have weights of their own.
    pub fn is_weighing(&self) -> bool {
        self.assembly.weigh.is_some()
    }

    /// The same loader with batches that are assembled ahead, by threads of its own: the same batches, in
    /// the same order. The threads begin when the first batch is asked for, and end with the iterator.
    ///
    /// A batcher that draws random numbers of the device is not repeatable any more.
    #[must_use]
    pub fn prefetching(self, prefetch: Prefetch) -> Self {
        Self { prefetch, ..self }
    }

    /// The same, whose threads report to `recorder` when they assemble a batch.
    #[must_use]
    pub fn recording(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// The loader of another rank, or of a rank in a world of another size: see
    /// [`DistributedSampler::on_rank`].
    ///
    /// # Errors
    /// As [`DistributedSampler::on_rank`].
    pub fn on_rank(mut self, rank: usize, world_size: usize) -> Result<Self, SamplerError> {
        self.assembly.sampler = self.assembly.sampler.on_rank(rank, world_size)?;
        Ok(self)
    }

    /// The loader of the same rank, where ranks share each global batch in proportion to `weights`: see
    /// [`DistributedSampler::balanced`]. An epoch is continued with other shares behind the batches that are done:
    /// [`EpochBatches::behind`].
    ///
    /// # Errors
    /// As [`DistributedSampler::balanced`].
    pub fn balanced(mut self, weights: RankWeights) -> Result<Self, SamplerError> {
        self.assembly.sampler = self.assembly.sampler.balanced(weights)?;
        Ok(self)
    }

    /// The same loader, whose batches are put on `device`.
    #[must_use]
    pub fn on_device(mut self, device: Device) -> Self {
        self.assembly.device = device;
        self
    }

    /// The samples.
    pub fn dataset(&self) -> &dyn Dataset<I> {
        &*self.assembly.dataset
    }

    /// The sampler that deals the samples.
    pub fn sampler(&self) -> &DistributedSampler {
        &self.assembly.sampler
    }

    /// A batch of one sample, for a rank whose samples have run out while others still compute
    /// statistics over all ranks ([`everburn::nn::without_samples`](everburn_nn::without_samples)).
    ///
    /// # Errors
    /// Those of the data set.
    pub fn stand_in(&self) -> Result<B, DatasetError> {
        let items = self.assembly.dataset.get_many(vec![0])?;
        Ok(self.assembly.batcher.batch(items, &self.assembly.device))
    }

    /// This rank's shares of the global batches of an epoch: as many on every rank.
    #[doc(alias = "set_epoch")]
    pub fn epoch(&self, epoch: usize) -> EpochBatches<'_, I, B> {
        let batches = self.sampler().batches(epoch).enumerate();
        let orders = batches.map(move |(batch, (indices, global_samples))| Order {
            number: BatchNumber {
                epoch,
                batch: batch + 1,
            },
            indices,
            global_samples,
        });
        EpochBatches {
            loader: self,
            left: self.sampler().num_batches(),
            source: Source::Orders(Box::new(orders)),
        }
    }
}

/// The iterator of [`DistributedLoader::epoch`].
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{DistributedLoader, EpochBatches, InputError};
///
/// /// How many samples this rank has in the rest of epoch 3, of which `done` batches are over.
/// fn left<I: 'static, B: Send + 'static>(
///     loader: &DistributedLoader<I, B>, done: usize,
/// ) -> Result<usize, InputError> {
///     let batches: EpochBatches<'_, I, B> = loader.epoch(3).behind(done);
///     batches.map(|share| share.map(|share| share.samples)).sum()
/// }
/// ```
pub struct EpochBatches<'a, I, B> {
    loader: &'a DistributedLoader<I, B>,
    /// How many batches are left.
    left: usize,
    source: Source<B>,
}

enum Source<B> {
    /// Nothing is read ahead, or nothing was asked for yet.
    Orders(Box<dyn Iterator<Item = Order> + Send>),
    /// The number of the next batch, and the threads that assemble it.
    Ahead(BatchNumber, Ahead<Order, Made<B>>),
}

type Made<B> = Result<ShareOfBatch<B>, InputError>;

impl<I, B> EpochBatches<'_, I, B> {
    /// The batches after the first `batches`, of which nothing is read.
    #[must_use]
    pub fn behind(mut self, batches: usize) -> Self {
        if let Source::Orders(orders) = &mut self.source {
            // Only numbers of samples are passed over.
            let passed = orders.take(batches).count();
            self.left -= passed;
        }
        self
    }
}

impl<I: 'static, B: Send + 'static> EpochBatches<'_, I, B> {
    fn made(&mut self) -> Option<Made<B>> {
        let prefetch = self.loader.prefetch;
        let orders = match &mut self.source {
            Source::Ahead(number, ahead) => {
                let waited_for = *number;
                number.batch += 1;
                return Some(ahead.take().unwrap_or_else(|waited| {
                    Err(InputError::TooLate {
                        rank: self.loader.sampler().rank(),
                        batch: waited_for,
                        waited,
                        workers: ahead.workers(),
                    })
                }));
            }
            Source::Orders(orders) if prefetch.workers == 0 => {
                return Some(self.loader.assembly.share(orders.next()?));
            }
            Source::Orders(orders) => std::mem::replace(orders, Box::new(std::iter::empty())),
        };
        let mut orders = orders.peekable();
        let first = orders.peek()?.number;
        let assembly = self.loader.assembly.clone();
        let recorder = self.loader.recorder.clone();
        let work = move |order| match &recorder {
            Some(recorder) => recorder.loading(|| assembly.share(order)),
            None => assembly.share(order),
        };
        match Ahead::begin(prefetch, orders, work) {
            Ok(ahead) => {
                self.source = Source::Ahead(first, ahead);
                self.made()
            }
            Err(error) => Some(Err(InputError::NoThread {
                reason: error.to_string(),
            })),
        }
    }
}

impl<I: 'static, B: Send + 'static> Iterator for EpochBatches<'_, I, B> {
    type Item = Result<ShareOfBatch<B>, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        self.made()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<I: 'static, B: Send + 'static> ExactSizeIterator for EpochBatches<'_, I, B> {}
