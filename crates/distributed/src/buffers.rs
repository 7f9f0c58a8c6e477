//! Running statistics, which replicas compute from different samples.

use std::collections::HashMap;

use burn::module::Module;
use burn::tensor::TensorData;
use everburn_collectives::group::{CollectiveError, ReduceOp};
use everburn_collectives::sync::lock;

use crate::config::BufferSync;
use crate::ddp::Ddp;
use crate::error::DdpError;
use crate::replicas::{self, TensorDescription};

impl Ddp {
    /// Makes running statistics (batch norm's, say) equal on all ranks, as
    /// [`crate::DdpConfig::buffers`] says; done before validation and before a checkpoint.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the exchange fails.
    pub fn synchronize_buffers<M: Module>(&self, model: M) -> Result<M, DdpError> {
        match self.shared().config.buffers {
            BufferSync::Average => self.average_buffers(model),
            BufferSync::Broadcast => self.broadcast_buffers(model),
        }
    }

    /// Averages running statistics over the ranks, in f64, each weighted by the samples that it has
    /// had since the last time.
    ///
    /// What is equal on all ranks, frozen parameters say, is not sent and keeps its bits.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the exchange fails.
    pub fn average_buffers<M: Module>(&self, model: M) -> Result<M, DdpError> {
        let own = lock(&self.shared().plan).samples as f64;
        self.exchange_buffers(model, |buffers| {
            // If no rank has had a sample, all count alike.
            let mut weights = [own, 1.0];
            self.group()
                .all_reduce_in_place(&mut weights, ReduceOp::Sum)?;
            let share = if weights[0] > 0.0 {
                own / weights[0]
            } else {
                1.0 / weights[1]
            };
            buffers.iter_mut().for_each(|value| *value *= share);
            self.group().all_reduce_in_place(buffers, ReduceOp::Sum)
        })
    }

    /// Gives every rank the running statistics of rank 0.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the exchange fails.
    pub fn broadcast_buffers<M: Module>(&self, model: M) -> Result<M, DdpError> {
        self.exchange_buffers(model, |buffers| self.group().broadcast_in_place(buffers, 0))
    }

    fn exchange_buffers<M: Module>(
        &self,
        model: M,
        exchange: impl FnOnce(&mut [f64]) -> Result<(), CollectiveError>,
    ) -> Result<M, DdpError> {
        let state = self.different_buffers(&model)?;
        if !state.is_empty() {
            let mut flat: Vec<f64> = state
                .iter()
                .flat_map(|(_, data)| data.iter::<f64>())
                .collect();
            exchange(&mut flat)?;
            let mut rest = flat.as_slice();
            let mut values = HashMap::new();
            for (tensor, data) in state {
                let (own, others) = rest.split_at(tensor.shape.iter().product());
                rest = others;
                let mean = TensorData::new(own.to_vec(), tensor.shape.as_slice());
                values.insert(tensor.position, mean.convert_dtype(data.dtype()));
            }
            let model = replicas::replace_some(model, values);
            lock(&self.shared().plan).samples = 0;
            return Ok(model);
        }
        lock(&self.shared().plan).samples = 0;
        Ok(model)
    }

    /// What is neither trained nor the same on all ranks, with this rank's values. All ranks call it.
    pub(crate) fn different_buffers<M: Module>(
        &self,
        model: &M,
    ) -> Result<Vec<(TensorDescription, TensorData)>, DdpError> {
        if self.shared().reducer.is_none() {
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
        let tensors = replicas::read_buffers(model)?.into_iter();
        Ok(Self {
            tensors: tensors
                .map(|(description, data)| (description.position, data))
                .collect(),
        })
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
