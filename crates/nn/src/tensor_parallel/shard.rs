//! A linear layer's part, and what it sums over the ranks.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::prelude::*;

use super::all_reduce::ShardAllReduce;
use super::group::TensorGroup;
use super::rules::TensorShard;
use crate::all_reduce::unread;
use crate::checked_all_reduce::{LayerPlace, Pass};
use crate::group::SyncError;
use crate::rank_ops::RankOps;

/// A layer's place among the ranks.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub(crate) shard: TensorShard,
    group: Arc<dyn TensorGroup>,
    place: LayerPlace,
}

impl Membership {
    pub(crate) fn new(shard: TensorShard, group: Arc<dyn TensorGroup>, layer: u32) -> Self {
        Self {
            shard,
            group,
            place: LayerPlace::new(layer),
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.group.rank()
    }

    pub(crate) fn world_size(&self) -> usize {
        self.group.world_size()
    }

    fn next(&self) -> ShardAllReduce {
        ShardAllReduce {
            group: Arc::clone(&self.group),
            layer_call: self.place.next_call(),
        }
    }

    /// The input of column shards: itself, whose gradient is summed over the ranks.
    pub(crate) fn copy_to_ranks<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        Tensor::from_dispatch(<Dispatch as RankOps>::copy_to_ranks(
            input.into_dispatch(),
            self.next(),
        ))
    }

    /// The output of a row shard: the sum of the ranks' products. Where the all-reduce fails it is this
    /// rank's own; the group reports it to the step.
    pub(crate) fn reduce_from_ranks<const D: usize>(&self, own: Tensor<D>) -> Tensor<D> {
        match Self::sum(&own, &self.next()) {
            Ok(sum) => Tensor::from_dispatch(<Dispatch as RankOps>::reduce_from_ranks(
                own.into_dispatch(),
                sum.into_dispatch(),
            )),
            Err(_) => own,
        }
    }

    fn sum<const D: usize>(
        own: &Tensor<D>,
        all_reduce: &ShardAllReduce,
    ) -> Result<Tensor<D>, SyncError> {
        let own = own.clone().without_autodiff();
        if let Some(ranks) = all_reduce.group.on_device() {
            let shape = own.dims();
            let row = own.reshape([shape.iter().product::<usize>()]);
            let sum = all_reduce.sum_on_device(ranks, row, Pass::Forward)?;
            return Ok(sum.reshape(shape));
        }
        let (device, dtype) = (own.device(), own.dtype());
        let data = own.try_into_data();
        let data = data.map_err(|error| unread(&*all_reduce.group, &error))?;
        let sum = all_reduce.sum(data, Pass::Forward)?;
        Ok(Tensor::from_data(sum, (&device, dtype)))
    }
}
