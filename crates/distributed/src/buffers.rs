//! Running statistics, which replicas compute from different samples.

use std::collections::HashMap;

use burn::module::Module;
use burn::tensor::TensorData;
use everburn_collectives::group::{CollectiveError, ReduceOp};

use crate::config::BufferSync;
use crate::ddp::Ddp;
use crate::error::DdpError;
use crate::reducer::lock;
use crate::replicas::{self, TensorKind};

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
        if self.shared().reducer.is_none() {
            replicas::flush_running_statistics(&model);
            return Ok(model);
        }
        let mut state = replicas::read(&model)?;
        state.retain(|(tensor, _)| tensor.kind == TensorKind::FixedFloat);
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
}
