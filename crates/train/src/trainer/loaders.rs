//! Which samples per rank reads for what.

use std::sync::Arc;

use burn::data::dataset::Dataset;
use burn::data::dataset::transform::PartialDataset;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{
    DistributedLoader, DistributedSampler, Prefetch, SamplerConfig, Tail, VirtualRanks,
};

use super::Trainer;
use crate::config::balance::Balance;
use crate::error::TrainError;
use crate::model::erased::{AnyData, AnyItem, AnyLoader};

impl Trainer {
    /// The loaders of the samples to learn from and, where any are held out, to validate on.
    pub(super) fn split(
        &self,
        data: &AnyData,
        readers: &ProcessGroup,
    ) -> Result<(AnyLoader, Option<AnyLoader>), TrainError> {
        let all = data.train.len();
        let own = data.validation.as_ref();
        let own_samples = own.map(Dataset::len);
        self.config.check_validation(all, own_samples)?;
        let held_out = self.held_out(data);
        let part = |from: usize, to: usize| -> Arc<dyn Dataset<AnyItem>> {
            Arc::new(PartialDataset::new(data.train.clone(), from, to))
        };
        let config = SamplerConfig {
            num_samples: all - held_out,
            batch_size: self.config.batch_size,
            shuffle: Some(self.config.seed),
            tail: Tail::Keep,
        };
        let sampler = self.sampler(config, readers)?;
        let train = DistributedLoader::new(
            part(0, all - held_out),
            data.batcher.clone(),
            sampler,
            self.config
                .activation_checkpointing
                .autodiff(self.device.clone()),
        )
        .in_micro_batches(self.config.accumulate)
        .prefetching(self.prefetch());
        let train = match &data.augment {
            Some(augment) => train.augmenting(self.config.seed, augment.clone()),
            None => train,
        };
        let train = match &data.weigh {
            Some(weigh) => train.weighing(weigh.clone()),
            None => train,
        };
        let validation = own.cloned();
        let validation = validation.or_else(|| (held_out > 0).then(|| part(all - held_out, all)));
        let validation = validation.map(|set| self.ordered_loader(set, data, readers));
        let validation = validation.transpose()?;
        match &self.config.balance {
            Balance::Weights(weights) => Ok((
                train.balanced(weights.clone())?,
                validation
                    .map(|loader| loader.balanced(weights.clone()))
                    .transpose()?,
            )),
            Balance::Equal | Balance::Auto => Ok((train, validation)),
        }
    }

    /// How many of the samples to learn from are held out to validate on: none where there is a set for that.
    pub(super) fn held_out(&self, data: &AnyData) -> usize {
        match &data.validation {
            Some(_) => 0,
            None => self.config.held_out_of(data.train.len()),
        }
    }

    pub(super) fn ordered_loader(
        &self,
        dataset: Arc<dyn Dataset<AnyItem>>,
        data: &AnyData,
        readers: &ProcessGroup,
    ) -> Result<AnyLoader, TrainError> {
        let config = SamplerConfig {
            num_samples: dataset.len(),
            batch_size: self
                .evaluation_batch
                .max(self.config.virtual_ranks.unwrap_or(readers.world_size())),
            shuffle: None,
            tail: Tail::Keep,
        };
        let sampler = self.sampler(config, readers)?;
        let device = self.device.clone();
        let loader = DistributedLoader::new(dataset, data.batcher.clone(), sampler, device);
        Ok(loader.prefetching(self.prefetch()))
    }

    pub(super) fn prefetch(&self) -> Prefetch {
        let timeout = self.group.timeout();
        self.config.input.prefetch(&self.device, timeout)
    }

    /// The sampler of this rank, or of its logical shards.
    fn sampler(
        &self,
        config: SamplerConfig,
        readers: &ProcessGroup,
    ) -> Result<DistributedSampler, TrainError> {
        let (rank, world_size) = (readers.rank(), readers.world_size());
        let sampler = DistributedSampler::new(config, rank, world_size)?;
        let Some(count) = self.config.virtual_ranks else {
            return Ok(sampler);
        };
        let ranks = VirtualRanks::new(count, rank, world_size);
        let ranks = ranks.map_err(|error| TrainError::Config(error.to_string()))?;
        Ok(sampler.over_virtual(ranks))
    }
}
