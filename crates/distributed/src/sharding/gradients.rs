//! A rank's slices of the mean gradients of a step.

use crate::host::{HostBuffer, Put};
use crate::synchronization::Communication;

/// This rank's slices of mean gradients, in host memory: what [`finish_cut`] yields.
///
/// Several micro-batches of a step are exchanged one after the other, so that no rank ever holds all
/// gradients; their means are joined by [`add`](Self::add).
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn_collectives::group::{GroupOptions, ProcessGroup};
/// use everburn_distributed::{Ddp, DdpConfig, GradientSlices, ShardStage};
///
/// let device = Device::flex().autodiff();
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let config = DdpConfig { shard: Some(ShardStage::Gradients), ..DdpConfig::default() };
/// let (ddp, model) = Ddp::new(LinearConfig::new(3, 1).init(&device), group, config)?;
/// let mut slices = GradientSlices::default();
/// for samples in [2, 1] {
///     let step = ddp.begin(samples)?;
///     let rows = Tensor::<2>::ones([samples, 3], &device);
///     step.watch_last(&model, samples).forward(rows).mean().backward();
///     slices.add(step.finish_cut()?);
/// }
/// assert_eq!((slices.samples(), slices.num_bytes()), (3, 4 * 4));
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
///
/// [`finish_cut`]: crate::Synchronization::finish_cut
#[derive(Debug, Default)]
pub struct GradientSlices {
    /// By parameter; none of what no rank used.
    pub(crate) slices: Vec<Option<HostBuffer>>,
    pub(crate) samples: u64,
    pub(crate) communication: Communication,
}

impl GradientSlices {
    /// How many samples all ranks together had.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// What the exchange cost this rank.
    #[must_use]
    pub const fn communication(&self) -> Communication {
        self.communication
    }

    /// How many bytes the slices have.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        let slices = self.slices.iter().flatten();
        slices.map(|slice| slice.num_bytes() as u64).sum()
    }

    /// Makes it the mean over its own samples and those of `other`, gradients of the same model.
    pub fn add(&mut self, other: Self) {
        self.communication.exposed += other.communication.exposed;
        self.communication.busy += other.communication.busy;
        self.communication.bytes += other.communication.bytes;
        if self.samples == 0 {
            self.samples = other.samples;
            self.slices = other.slices;
            return;
        }
        let all = self.samples + other.samples;
        let (share, others) = (
            self.samples as f64 / all as f64,
            other.samples as f64 / all as f64,
        );
        self.samples = all;
        for (own, other) in self.slices.iter_mut().zip(other.slices) {
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
                    added.expect("slices of one parameter have one type and length");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, TensorData};

    use super::*;

    fn slices(samples: u64, of: [Option<[f32; 2]>; 3]) -> GradientSlices {
        let buffer = |values: [f32; 2]| {
            let mut buffer = HostBuffer::zeroed(DType::F32, 2).unwrap();
            let data = TensorData::from(values);
            buffer.put(0..2, &data, 1.0, Put::Replace).unwrap();
            buffer
        };
        GradientSlices {
            slices: of.map(|values| values.map(buffer)).into_iter().collect(),
            samples,
            communication: Communication::default(),
        }
    }

    #[test]
    fn means_are_joined_by_samples_and_what_only_one_used_counts_as_zero_in_the_other() {
        let mut sum = GradientSlices::default();
        sum.add(slices(3, [Some([4.0, 8.0]), None, Some([4.0, 0.0])]));
        sum.add(slices(1, [Some([0.0, 16.0]), Some([8.0, 4.0]), None]));
        assert_eq!(sum.samples(), 4);
        let found = sum.slices.iter().map(|slice| {
            let data = slice.as_ref().unwrap().tensor_data(0..2, &[2], 1.0, None);
            data.iter::<f32>().collect::<Vec<_>>()
        });
        assert_eq!(
            found.collect::<Vec<_>>(),
            [vec![3.0, 10.0], vec![2.0, 1.0], vec![3.0, 0.0]]
        );
    }
}
