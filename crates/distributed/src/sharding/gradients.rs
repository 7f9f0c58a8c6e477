//! A rank's shards of the mean gradients of a step.

use burn::prelude::*;
use burn::tensor::DType;

use crate::error::DdpError;
use crate::gradient::{Gradient, moved, wide};
use crate::host::{HostBuffer, Put};
use crate::synchronization::Communication;

/// This rank's shard of a gradient.
#[derive(Debug)]
pub(crate) enum GradientShard {
    Host(HostBuffer),
    Device(Box<Gradient>),
}

impl GradientShard {
    pub(crate) fn of_tensor(shard: Tensor<1>) -> Self {
        Self::Device(Box::new(Gradient::of_tensor(shard)))
    }

    fn num_bytes(&self) -> usize {
        match self {
            Self::Host(shard) => shard.num_bytes(),
            Self::Device(shard) => shard.shape().iter().product::<usize>() * shard.dtype().size(),
        }
    }

    fn times(self, factor: f64) -> Self {
        match self {
            Self::Host(mut shard) => {
                shard.scale(0..shard.len(), factor);
                Self::Host(shard)
            }
            Self::Device(shard) => Self::Device(Box::new(shard.times(factor))),
        }
    }

    /// The sum of this shard and `factor` times `other`, which is in the same memory.
    fn plus(self, other: Self, factor: f64) -> Self {
        match (self, other) {
            (Self::Host(mut own), Self::Host(other)) => {
                let length = own.len();
                let other = other.tensor_data(0..length, &[length], 1.0, None);
                let added = own.put(0..length, &other, factor, Put::Add);
                added.expect("shards of one parameter have one type and length");
                Self::Host(own)
            }
            (Self::Device(own), Self::Device(other)) => {
                Self::Device(Box::new(own.plus(*other, factor)))
            }
            _ => unreachable!("shards of one step are in one kind of memory"),
        }
    }

    /// `factor` times the shard, on `device`.
    pub(crate) fn tensor(self, factor: f64, device: &Device) -> Tensor<1> {
        match self {
            Self::Host(shard) => {
                let length = shard.len();
                let data = shard.tensor_data(0..length, &[length], factor, None);
                Tensor::from_data(data, (device, shard.dtype()))
            }
            Self::Device(shard) => moved(shard.times(factor).flat(), device),
        }
    }
}

/// This rank's shards of mean gradients, in host memory or on the device that summed them: the result of [`finish_sharded`].
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
    pub(crate) shards: Vec<Option<GradientShard>>,
    pub(crate) samples: u64,
    pub(crate) communication: Communication,
}

impl GradientShards {
    /// The number of samples over all ranks.
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// The cost of the exchange on this rank.
    pub const fn communication(&self) -> Communication {
        self.communication
    }

    /// The size of the shards in bytes.
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
            *own = match (own.take(), other) {
                (None, None) => None,
                (Some(own), None) => Some(own.times(share)),
                (None, Some(other)) => Some(other.times(others)),
                (Some(own), Some(other)) => Some(own.times(share).plus(other, others)),
            };
        }
    }

    /// By parameter, the sum of squares of this rank's shard; zero without one. Of shards on a device it waits for all of
    /// them.
    pub(crate) fn sums_of_squares(&self) -> Result<Vec<f64>, DdpError> {
        let mut squares = vec![0.0; self.shards.len()];
        let (mut numbers, mut on_device) = (Vec::new(), Vec::new());
        for (number, shard) in self.shards.iter().enumerate() {
            match shard {
                Some(GradientShard::Host(shard)) => {
                    squares[number] = shard.sum_of_squares(0..shard.len());
                }
                Some(shard @ GradientShard::Device(gradient)) if shard.num_bytes() > 0 => {
                    let shard = wide(Gradient::clone(gradient).flat());
                    numbers.push(number);
                    on_device.push((shard.clone() * shard).sum().cast(DType::F32));
                }
                Some(GradientShard::Device(_)) | None => {}
            }
        }
        if on_device.is_empty() {
            return Ok(squares);
        }
        let found = Gradient::of_tensor(Tensor::cat(on_device, 0)).read();
        let found = found.map_err(|reason| DdpError::Read {
            parameter: "the norm of the gradients".to_string(),
            reason,
        })?;
        for (number, found) in numbers.into_iter().zip(found.iter::<f64>()) {
            squares[number] = found;
        }
        Ok(squares)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn shards(samples: u64, of: [Option<[f32; 2]>; 3]) -> GradientShards {
        let buffer = |values: [f32; 2]| {
            let mut buffer = HostBuffer::zeroed(DType::F32, 2).unwrap();
            let data = TensorData::from(values);
            buffer.put(0..2, &data, 1.0, Put::Replace).unwrap();
            buffer
        };
        GradientShards {
            shards: of
                .map(|values| values.map(|values| GradientShard::Host(buffer(values))))
                .into_iter()
                .collect(),
            samples,
            communication: Communication::default(),
        }
    }

    fn on_device(shards: GradientShards) -> GradientShards {
        let tensor = |shard: GradientShard| shard.tensor(1.0, &Device::flex());
        let moved = shards.shards.into_iter();
        let moved = moved.map(|shard| Some(GradientShard::of_tensor(tensor(shard?))));
        GradientShards {
            shards: moved.collect(),
            samples: shards.samples,
            communication: shards.communication,
        }
    }

    #[test]
    fn means_are_joined_by_samples_and_what_only_one_used_counts_as_zero_in_the_other() {
        let stay = |shards: GradientShards| shards;
        for place in [stay as fn(GradientShards) -> GradientShards, on_device] {
            let mut sum = GradientShards::default();
            sum.add(place(shards(3, [Some([4.0, 8.0]), None, Some([4.0, 0.0])])));
            sum.add(place(shards(
                1,
                [Some([0.0, 16.0]), Some([8.0, 4.0]), None],
            )));
            assert_eq!((sum.samples(), sum.num_bytes()), (4, 3 * 8));
            assert_eq!(sum.sums_of_squares().unwrap(), [109.0, 5.0, 9.0]);
            let found = sum.shards.into_iter().map(|shard| {
                let data = shard.unwrap().tensor(1.0, &Device::flex()).into_data();
                data.iter::<f32>().collect::<Vec<_>>()
            });
            assert_eq!(
                found.collect::<Vec<_>>(),
                [vec![3.0, 10.0], vec![2.0, 1.0], vec![3.0, 0.0]]
            );
        }
    }
}
