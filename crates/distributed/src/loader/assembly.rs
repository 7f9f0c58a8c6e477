//! How a rank's share of a batch is made of samples.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::prelude::*;
use everburn_collectives::worker::message_of;

use super::augment::Augmentation;
use super::error::{BatchNumber, InputError};
use super::weigh::Weigh;
use super::{MicroBatch, ShareOfBatch};
use crate::sampler::{DistributedSampler, share_of};

/// Which samples a share is made of.
pub(super) struct Order {
    pub(super) number: BatchNumber,
    pub(super) indices: Vec<usize>,
    pub(super) global_samples: usize,
}

/// All that a share is made with; whichever thread makes it, it is the same.
pub(super) struct Assembly<I, B> {
    pub(super) dataset: Arc<dyn Dataset<I>>,
    pub(super) batcher: Arc<dyn Batcher<I, B>>,
    pub(super) sampler: DistributedSampler,
    pub(super) device: Device,
    pub(super) micro_batches: usize,
    pub(super) augmentation: Option<Augmentation<I>>,
    pub(super) weigh: Option<Weigh<I>>,
}

impl<I, B> Clone for Assembly<I, B> {
    fn clone(&self) -> Self {
        Self {
            dataset: self.dataset.clone(),
            batcher: self.batcher.clone(),
            sampler: self.sampler.clone(),
            device: self.device.clone(),
            micro_batches: self.micro_batches,
            augmentation: self.augmentation.clone(),
            weigh: self.weigh.clone(),
        }
    }
}

impl<I, B> Assembly<I, B> {
    /// Reads the samples and makes batches of them.
    pub(super) fn share(&self, order: Order) -> Result<ShareOfBatch<B>, InputError> {
        let Order {
            number,
            indices,
            global_samples,
        } = order;
        let samples = indices.len();
        let parts = self.parts(samples, global_samples);
        let read = |(index, part): (usize, Range<usize>)| {
            let indices = indices[part].to_vec();
            let samples = indices.len();
            let (batch, weight) = self.batch(indices.clone(), number)?;
            Ok(MicroBatch {
                batch,
                samples,
                weight,
                index,
                indices,
            })
        };
        let micro_batches = parts.into_iter().map(read);
        let micro_batches = micro_batches.collect::<Result<Vec<_>, _>>()?;
        let largest = self.sampler.largest_part(global_samples);
        Ok(ShareOfBatch {
            weight: micro_batches.iter().map(|part| part.weight).sum(),
            micro_batches,
            rounds: self.micro_batches.min(largest),
            samples,
            global_samples,
        })
    }

    /// The micro-batches, each with its number and its part of the share.
    fn parts(&self, samples: usize, global_samples: usize) -> Vec<(usize, Range<usize>)> {
        match self.sampler.virtual_ranks() {
            None => {
                let parts = self.micro_batches.min(samples);
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
        }
    }

    /// The batch of these samples, and their weight.
    fn batch(&self, indices: Vec<usize>, number: BatchNumber) -> Result<(B, usize), InputError> {
        let attempt = catch_unwind(AssertUnwindSafe(|| {
            let items = self.dataset.get_many(indices.clone());
            items.and_then(|items| {
                let items = match &self.augmentation {
                    Some(augmentation) => {
                        augmentation.apply(items, &indices, number.epoch, &*self.dataset)?
                    }
                    None => items,
                };
                let weight = match &self.weigh {
                    Some(weigh) => items.iter().map(|item| weigh(item)).sum(),
                    None => items.len(),
                };
                Ok((self.batcher.batch(items, &self.device), weight))
            })
        }));
        let reason = match attempt {
            Ok(Ok(batch)) => return Ok(batch),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => message_of(&*panic).to_string(),
        };
        Err(self.culprit(indices, number, reason))
    }

    /// Which sample it was. Each is read once more, by itself: a data set says only that one of many cannot
    /// be read.
    fn culprit(&self, indices: Vec<usize>, batch: BatchNumber, reason: String) -> InputError {
        let len = self.dataset.len();
        let partners = self.augmentation.as_ref();
        let partners =
            partners.map(|augmentation| augmentation.partners(&indices, batch.epoch, len));
        for &sample in indices.iter().chain(partners.iter().flatten()) {
            match catch_unwind(AssertUnwindSafe(|| self.dataset.get(sample).map(drop))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let reason = error.to_string();
                    return InputError::Sample {
                        batch,
                        sample,
                        reason,
                    };
                }
                Err(panic) => {
                    let message = message_of(&*panic);
                    return InputError::SamplePanicked {
                        batch,
                        sample,
                        message: message.to_string(),
                    };
                }
            }
        }
        InputError::Batch {
            batch,
            samples: indices,
            reason,
        }
    }
}
