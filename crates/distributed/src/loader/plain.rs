//! The loader as Burn's own strategies know one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::data::dataset::transform::PartialDataset;
use burn::prelude::*;

use super::{DistributedLoader, EpochBatches, MicroBatch};
use crate::sampler::SamplerConfig;

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
        self.sampler()
            .batches(1)
            .map(|(share, _)| share.len())
            .sum()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<B>> {
        Arc::new(self.clone().on_device(device.clone()))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B>> {
        let config = SamplerConfig {
            num_samples: end - start,
            ..self.sampler().config().clone()
        };
        let mut loader = self.clone();
        let assembly = &mut loader.assembly;
        assembly.sampler = assembly.sampler.clone().with_config(config);
        assembly.dataset = Arc::new(PartialDataset::new(
            Arc::clone(&assembly.dataset),
            start,
            end,
        ));
        Arc::new(loader)
    }
}

struct PlainBatches<'a, I, B> {
    shares: EpochBatches<'a, I, B>,
    rest: std::vec::IntoIter<MicroBatch<B>>,
    processed: usize,
    total: usize,
}

impl<I: 'static, B: Send + 'static> Iterator for PlainBatches<'_, I, B> {
    type Item = Result<B, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(MicroBatch { batch, samples, .. }) = self.rest.next() {
                self.processed += samples;
                return Some(Ok(batch));
            }
            match self.shares.next()? {
                Err(error) => return Some(Err(DatasetError::new(error))),
                Ok(share) => self.rest = share.micro_batches.into_iter(),
            }
        }
    }
}

impl<I: 'static, B: Send + 'static> DataLoaderIterator<B> for PlainBatches<'_, I, B> {
    fn progress(&self) -> Progress {
        Progress::new(self.processed, self.total, Some("items".to_string()))
    }
}
