//! Running statistics, which replicas compute from different samples.

use burn::module::Module;
use burn::tensor::TensorData;
use everburn_collectives::group::{ProcessGroup, ReduceOp};
use everburn_collectives::sync::lock;

use crate::config::BufferSync;
use crate::ddp::Ddp;
use crate::error::DdpError;
use crate::replicas::{self, TensorDescription};

impl Ddp {
    /// Makes running statistics (batch norm's, say) equal on all ranks, as
    /// [`crate::DdpConfig::buffers`] says; done before validation and before a checkpoint.
    ///
    /// What is equal on all ranks, frozen parameters say, is not sent and keeps its bits.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if a collective fails.
    pub fn synchronize_buffers<M: Module>(&self, model: M) -> Result<M, DdpError> {
        let buffers = Buffers::of(self.different_buffers(&model)?);
        let model = match buffers.is_empty() {
            true => model,
            false => {
                let (how, share) = (self.shared().config.buffers, || self.share_of_samples());
                buffers.synchronized(how, share, self.group())?.write(model)
            }
        };
        lock(&self.shared().plan).samples = 0;
        Ok(model)
    }

    /// This rank's part of the samples of all ranks since running statistics were last made equal.
    fn share_of_samples(&self) -> Result<f64, DdpError> {
        let own = lock(&self.shared().plan).samples as f64;
        // If no rank has had a sample, all count alike.
        let mut weights = [own, 1.0];
        self.group()
            .all_reduce_in_place(&mut weights, ReduceOp::Sum)?;
        Ok(match weights[0] > 0.0 {
            true => own / weights[0],
            false => 1.0 / weights[1],
        })
    }

    /// What is neither trained nor the same on all ranks, with this rank's values. All ranks call it.
    pub(crate) fn different_buffers<M: Module>(
        &self,
        model: &M,
    ) -> Result<Vec<(TensorDescription, TensorData)>, DdpError> {
        if self.group().world_size() == 1 {
            replicas::flush_running_statistics(model);
            return Ok(Vec::new());
        }
        let mut state = replicas::read_buffers(model)?;
        let hashes: Vec<u8> = state
            .iter()
            .flat_map(|(_, data)| replicas::fingerprint(data))
            .collect();
        let all = self.group().all_gather(hashes).wait()?;
        let mut position = 0..state.len();
        state.retain(|_| {
            let start = position.next().unwrap_or_default() * replicas::FINGERPRINT_BYTES;
            let range = start..start + replicas::FINGERPRINT_BYTES;
            all.iter()
                .any(|hashes| hashes[range.clone()] != all[0][range.clone()])
        });
        Ok(state)
    }
}

/// The numbers of a model that are not trained: running statistics, say, or what is frozen.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::nn::BatchNormConfig;
/// use burn::prelude::*;
/// use everburn::distributed::Buffers;
///
/// let norm = BatchNormConfig::new(2).init(&Device::flex().autodiff());
/// let buffers = Buffers::read(&norm)?;
/// assert_eq!(buffers.values(), [0.0, 0.0, 1.0, 1.0]); // means, then variances
/// let norm = buffers.with_values(&[0.5, 0.5, 2.0, 2.0]).write(norm);
/// assert_eq!(norm.running_mean.value().into_data().iter::<f32>().sum::<f32>(), 1.0);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Buffers {
    /// With each tensor's number in visiting order.
    tensors: Vec<(usize, TensorData)>,
}

impl Buffers {
    /// Those of `model`.
    ///
    /// # Errors
    /// [`DdpError::Read`] if a device does not give them.
    pub fn read<M: Module>(model: &M) -> Result<Self, DdpError> {
        replicas::read_buffers(model).map(Self::of)
    }

    fn of(tensors: Vec<(TensorDescription, TensorData)>) -> Self {
        let tensors = tensors.into_iter();
        Self {
            tensors: tensors
                .map(|(description, data)| (description.position, data))
                .collect(),
        }
    }

    /// The same on all ranks of `group`, which have buffers of the same shapes: rank 0's, or their mean, in f64, in which
    /// this rank's count by its `share`.
    pub(crate) fn synchronized(
        &self,
        how: BufferSync,
        share: impl FnOnce() -> Result<f64, DdpError>,
        group: &ProcessGroup,
    ) -> Result<Self, DdpError> {
        let mut values = self.values();
        match how {
            BufferSync::Broadcast => group.broadcast_in_place(&mut values, 0)?,
            BufferSync::Average => {
                let share = share()?;
                values.iter_mut().for_each(|value| *value *= share);
                group.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
            }
        }
        Ok(self.with_values(&values))
    }

    /// `model` with these values. Running statistics are changed in all its clones.
    #[must_use]
    pub fn write<M: Module>(&self, model: M) -> M {
        if self.tensors.is_empty() {
            return model;
        }
        replicas::replace_some(model, self.tensors.iter().cloned().collect())
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        let lengths = self.tensors.iter().map(|(_, data)| data.num_elements());
        lengths.sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All numbers, one tensor after the other.
    pub fn values(&self) -> Vec<f64> {
        let tensors = self.tensors.iter();
        tensors.flat_map(|(_, data)| data.iter::<f64>()).collect()
    }

    /// Buffers of the same shapes and types with these numbers.
    ///
    /// # Panics
    /// Panics if there are not [`len`](Self::len) numbers.
    #[must_use]
    pub fn with_values(&self, values: &[f64]) -> Self {
        assert_eq!(values.len(), self.len(), "numbers of other buffers");
        let mut rest = values;
        let tensors = self.tensors.iter().map(|(position, old)| {
            let (own, others) = rest.split_at(old.num_elements());
            rest = others;
            let new = TensorData::new(own.to_vec(), old.shape().clone());
            (*position, new.convert_dtype(old.dtype()))
        });
        let tensors = tensors.collect();
        Self { tensors }
    }
}
