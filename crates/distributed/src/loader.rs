//! Reads a rank's share of each global batch.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::transform::PartialDataset;
use burn::data::dataset::{Dataset, DatasetError};
use burn::prelude::*;

use crate::sampler::{DistributedSampler, SamplerConfig, SamplerError, share_of};

/// Samples that go through the model together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch<B> {
    /// What the batcher made of them.
    pub batch: B,
    /// How many there are.
    pub samples: usize,
    /// Its number in the share. In a loader over virtual ranks those without samples have no
    /// micro-batch, and this is the number among the own ones.
    pub index: usize,
}

/// A rank's share of one global batch.
#[derive(Debug, Clone)]
pub struct ShareOfBatch<B> {
    /// The share, in one part or as many as [`DistributedLoader::in_micro_batches`] says; empty
    /// where no sample of the batch fell to this rank: it then joins the step with weight zero.
    pub micro_batches: Vec<MicroBatch<B>>,
    /// How many micro-batches the rank with the largest share has.
    pub rounds: usize,
    /// How many samples the share has.
    pub samples: usize,
    /// How many samples the global batch has, over all ranks.
    pub global_samples: usize,
}

/// A data loader over the share that a [`DistributedSampler`] deals to this rank.
///
/// `I` is what the data set yields, `B` what the batcher makes of several of them.
///
/// ```
/// use std::sync::Arc;
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::data::dataset::InMemDataset;
/// use burn::prelude::*;
/// use everburn_distributed::{DistributedLoader, DistributedSampler, SamplerConfig, Tail};
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
pub struct DistributedLoader<I, B> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, B>>,
    sampler: DistributedSampler,
    device: Device,
    micro_batches: usize,
    /// Only for [`DataLoader::iter`], which is not told the epoch.
    iterations: Arc<AtomicUsize>,
}

impl<I, B> Clone for DistributedLoader<I, B> {
    fn clone(&self) -> Self {
        Self {
            dataset: self.dataset.clone(),
            batcher: self.batcher.clone(),
            sampler: self.sampler.clone(),
            device: self.device.clone(),
            micro_batches: self.micro_batches,
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
            dataset,
            batcher,
            sampler,
            device,
            micro_batches: 1,
            iterations: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// The same loader with each share cut into `count` micro-batches, as even as can be, or as
    /// many as the share has samples.
    #[must_use]
    pub fn in_micro_batches(self, count: usize) -> Self {
        Self {
            micro_batches: count.max(1),
            ..self
        }
    }

    /// The loader of another rank, or of a rank in a world of another size: see
    /// [`DistributedSampler::on_rank`].
    ///
    /// # Errors
    /// As [`DistributedSampler::on_rank`].
    pub fn on_rank(self, rank: usize, world_size: usize) -> Result<Self, SamplerError> {
        Ok(Self {
            sampler: self.sampler.clone().on_rank(rank, world_size)?,
            ..self
        })
    }

    /// The sampler that deals the samples.
    pub fn sampler(&self) -> &DistributedSampler {
        &self.sampler
    }

    /// A batch of one sample, for a rank whose samples have run out while others still compute
    /// statistics over all ranks ([`everburn_nn::without_samples`]).
    ///
    /// # Errors
    /// Those of the data set.
    pub fn stand_in(&self) -> Result<B, DatasetError> {
        let items = self.dataset.get_many(vec![0])?;
        Ok(self.batcher.batch(items, &self.device))
    }

    /// This rank's shares of the global batches of an epoch: as many on every rank.
    pub fn epoch(&self, epoch: usize) -> EpochBatches<'_, I, B> {
        EpochBatches {
            loader: self,
            batches: Box::new(self.sampler.batches(epoch)),
        }
    }
}

/// The iterator of [`DistributedLoader::epoch`].
pub struct EpochBatches<'a, I, B> {
    loader: &'a DistributedLoader<I, B>,
    batches: Box<dyn ExactSizeIterator<Item = (Vec<usize>, usize)>>,
}

impl<I, B> EpochBatches<'_, I, B> {
    /// The batches behind the first `batches`, of which nothing is read.
    #[must_use]
    pub fn behind(mut self, batches: usize) -> Self {
        // Only numbers of samples are passed over.
        for _ in 0..batches.min(self.batches.len()) {
            self.batches.next();
        }
        self
    }
}

impl<I, B> Iterator for EpochBatches<'_, I, B> {
    type Item = Result<ShareOfBatch<B>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (indices, global_samples) = self.batches.next()?;
        let samples = indices.len();
        let parts: Vec<_> = match self.loader.sampler.virtual_ranks() {
            None => {
                let parts = self.loader.micro_batches.min(samples);
                let part = |part| share_of(samples, part, parts);
                (0..parts).map(part).enumerate().collect()
            }
            Some(ranks) => {
                let of = |virtual_rank| share_of(global_samples, virtual_rank, ranks.count());
                let first = of(ranks.own().start).start;
                let own = ranks.own().map(of);
                let own = own.map(|part| part.start - first..part.end - first);
                let own = own.enumerate();
                own.filter(|(_, part)| !part.is_empty()).collect()
            }
        };
        let read = |(index, part): (usize, Range<usize>)| {
            let indices = indices[part].to_vec();
            let samples = indices.len();
            let items = self.loader.dataset.get_many(indices)?;
            let batch = self.loader.batcher.batch(items, &self.loader.device);
            Ok(MicroBatch {
                batch,
                samples,
                index,
            })
        };
        let micro_batches = parts.into_iter().map(read).collect::<Result<_, _>>();
        let largest = share_of(global_samples, 0, self.loader.sampler.world_size()).len();
        let rounds = self.loader.micro_batches.min(largest);
        Some(micro_batches.map(|micro_batches| ShareOfBatch {
            micro_batches,
            rounds,
            samples,
            global_samples,
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.batches.size_hint()
    }
}

impl<I, B> ExactSizeIterator for EpochBatches<'_, I, B> {}

/// For strategies that only know Burn's loaders: each call of `iter` is the next epoch.
impl<I, B> DataLoader<B> for DistributedLoader<I, B>
where
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<B> + 'a> {
        let epoch = self.iterations.fetch_add(1, Ordering::Relaxed) + 1;
        Box::new(PlainBatches {
            shares: self.epoch(epoch),
            rest: Vec::new().into_iter(),
            processed: 0,
            total: self.num_items(),
        })
    }

    fn num_items(&self) -> usize {
        self.sampler.batches(1).map(|(share, _)| share.len()).sum()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<B>> {
        Arc::new(Self {
            device: device.clone(),
            ..self.clone()
        })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B>> {
        let dataset: Arc<dyn Dataset<I>> =
            Arc::new(PartialDataset::new(self.dataset.clone(), start, end));
        let config = SamplerConfig {
            num_samples: end - start,
            ..self.sampler.config().clone()
        };
        Arc::new(Self {
            sampler: self.sampler.clone().with_config(config),
            dataset,
            ..self.clone()
        })
    }
}

struct PlainBatches<'a, I, B> {
    shares: EpochBatches<'a, I, B>,
    rest: std::vec::IntoIter<MicroBatch<B>>,
    processed: usize,
    total: usize,
}

impl<I, B> Iterator for PlainBatches<'_, I, B> {
    type Item = Result<B, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(MicroBatch { batch, samples, .. }) = self.rest.next() {
                self.processed += samples;
                return Some(Ok(batch));
            }
            match self.shares.next()? {
                Err(error) => return Some(Err(error)),
                Ok(share) => self.rest = share.micro_batches.into_iter(),
            }
        }
    }
}

impl<I, B> DataLoaderIterator<B> for PlainBatches<'_, I, B> {
    fn progress(&self) -> Progress {
        Progress::new(self.processed, self.total, Some("items".to_string()))
    }
}
