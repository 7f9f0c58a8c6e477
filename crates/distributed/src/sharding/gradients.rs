//! A rank's shards of the mean gradients of a step.

use crate::host::{HostBuffer, Put};
use crate::synchronization::Communication;

/// This rank's shards of mean gradients, in host memory: the result of [`finish_sharded`].
///
/// The micro-batches of a step are exchanged one after another, so that no rank ever holds full gradients, and
/// combined by [`add`](Self::add).
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Ddp, DdpConfig, GradientShards, ShardStage};
///
/// let device = Device::flex().autodiff();
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let config = DdpConfig { shard: Some(ShardStage::Gradients), ..DdpConfig::default() };
/// let (ddp, model) = Ddp::new(LinearConfig::new(3, 1).init(&device), group, config)?;
/// let mut shards = GradientShards::default();
/// for samples in [2, 1] {
///     let step = ddp.begin(samples)?;
///     let rows = Tensor::<2>::ones([samples, 3], &device);
///     step.with_hooks(&model, samples).forward(rows).mean().backward();
///     shards.add(step.finish_sharded()?);
/// }
/// assert_eq!((shards.samples(), shards.num_bytes()), (3, 4 * 4));
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
///
/// [`finish_sharded`]: crate::Synchronization::finish_sharded
#[derive(Debug, Default)]
pub struct GradientShards {
    /// By parameter; `None` where no rank used it.
    pub(crate) shards: Vec<Option<HostBuffer>>,
    pub(crate) samples: u64,
    pub(crate) communication: Communication,
}

impl GradientShards {
    /// The number of samples over all ranks.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// The cost of the exchange on this rank.
    #[must_use]
    pub const fn communication(&self) -> Communication {
        self.communication
    }

    /// The size of the shards in bytes.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        let shards = self.shards.iter().flatten();
        shards.map(|shard| shard.num_bytes() as u64).sum()
    }

    /// Combines with `other`, gradients of the same model: the result is the mean over the samples of both.
    pub fn add(&mut self, other: Self) {
        self.communication.exposed += other.communication.exposed;
        self.communication.busy += other.communication.busy;
        self.communication.bytes += other.communication.bytes;
        if self.samples == 0 {
            self.samples = other.samples;
            self.shards = other.shards;
            return;
        }
        let all = self.samples + other.samples;
        let (share, others) = (
            self.samples as f64 / all as f64,
            other.samples as f64 / all as f64,
        );
        self.samples = all;
        for (own, other) in self.shards.iter_mut().zip(other.shards) {
            match (own.as_mut(), other) {
                (None, None) => {}
                (Some(own), None) => own.scale(0..own.len(), share),
                (None, Some(mut other)) => {
                    other.scale(0..other.len(), others);
                    *own = Some(other);
                }
                (Some(own), Some(other)) => {
                    let length = own.len();
                    own.scale(0..length, share);
                    let other = other.tensor_data(0..length, &[length], 1.0, None);
                    let added = own.put(0..length, &other, others, Put::Add);
                    added.expect("shards of one parameter have one type and length");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, TensorData};

    use super::*;

    fn shards(samples: u64, of: [Option<[f32; 2]>; 3]) -> GradientShards {
        let buffer = |values: [f32; 2]| {
            let mut buffer = HostBuffer::zeroed(DType::F32, 2).unwrap();
            let data = TensorData::from(values);
            buffer.put(0..2, &data, 1.0, Put::Replace).unwrap();
            buffer
        };
        GradientShards {
            shards: of.map(|values| values.map(buffer)).into_iter().collect(),
            samples,
            communication: Communication::default(),
        }
    }

    #[test]
    fn means_are_joined_by_samples_and_what_only_one_used_counts_as_zero_in_the_other() {
        let mut sum = GradientShards::default();
        sum.add(shards(3, [Some([4.0, 8.0]), None, Some([4.0, 0.0])]));
        sum.add(shards(1, [Some([0.0, 16.0]), Some([8.0, 4.0]), None]));
        assert_eq!(sum.samples(), 4);
        let found = sum.shards.iter().map(|shard| {
            let data = shard.as_ref().unwrap().tensor_data(0..2, &[2], 1.0, None);
            data.iter::<f32>().collect::<Vec<_>>()
        });
        assert_eq!(
            found.collect::<Vec<_>>(),
            [vec![3.0, 10.0], vec![2.0, 1.0], vec![3.0, 0.0]]
        );
    }
}
