//! Gradients between `GradientsParams` and buckets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;

use super::{Communication, SyncedGradients};
use crate::bucket::BucketPlan;
use crate::ddp::Shared;
use crate::host::HostBuffer;

/// Gradients of the unwatched kind, by parameter.
pub(super) struct Read {
    pub(super) shared: Arc<Shared>,
    pub(super) gradients: GradientsParams,
    pub(super) data: Vec<(usize, Result<TensorData, String>)>,
}

impl ModuleVisitor for Read {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(number) = self.shared.numbers().get(&param.id).copied() else {
            return;
        };
        // Tied weights are visited twice and have one gradient.
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let data = gradient.without_autodiff().try_into_data();
            self.data
                .push((number, data.map_err(|error| error.to_string())));
        }
    }
}

/// What all ranks agree on, still in buckets.
pub(super) struct Summed {
    pub(super) shared: Arc<Shared>,
    pub(super) plan: Arc<BucketPlan>,
    pub(super) buffers: Vec<Option<HostBuffer>>,
    pub(super) used: Vec<bool>,
    pub(super) samples: u64,
    pub(super) communication: Communication,
    pub(super) start: Instant,
}

impl Summed {
    /// Clips, and turns buckets into the gradients of `model`.
    pub(super) fn give<M: Module>(mut self, model: &M) -> SyncedGradients {
        // Alone there is nothing to wait for, only gradients to be moved.
        if self.shared.reducer().is_some() {
            self.communication.exposed = self.start.elapsed();
        }
        let norm = self.shared.config().max_gradient_norm.map(|max| {
            let norm = self.norm();
            let factor = f64::from(max) / (norm + 1e-6);
            if factor < 1.0 {
                for buffer in self.buffers.iter_mut().flatten() {
                    buffer.scale(factor);
                }
            }
            norm
        });
        let mut data = HashMap::new();
        for (bucket, buffer) in self.plan.buckets().iter().zip(&self.buffers) {
            let Some(buffer) = buffer else { continue };
            for (slot, number) in bucket.parameters().iter().enumerate() {
                if self.used[*number] {
                    let entry = &self.shared.parameters()[*number];
                    let values = buffer.tensor_data(bucket.range(slot), &entry.shape);
                    data.insert(entry.id, values);
                }
            }
        }
        self.shared.return_buffers(&self.plan, self.buffers);
        let mut give = Give {
            given: GradientsParams::new(),
            data,
        };
        model.visit(&mut give);
        SyncedGradients {
            gradients: give.given,
            samples: self.samples,
            norm,
            communication: self.communication,
        }
    }

    /// The norm of all gradients together, added up in the order of registration.
    fn norm(&self) -> f64 {
        let mut sum = 0.0;
        for (number, used) in self.used.iter().enumerate() {
            let (bucket, slot) = self.plan.place(number);
            if let (true, Some(buffer)) = (*used, &self.buffers[bucket]) {
                sum += buffer.sum_of_squares(self.plan.buckets()[bucket].range(slot));
            }
        }
        sum.sqrt()
    }
}

struct Give {
    given: GradientsParams,
    data: HashMap<ParamId, TensorData>,
}

impl ModuleVisitor for Give {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(data) = self.data.remove(&param.id) {
            let device = param.lazy_device().inner();
            let dtype = data.dtype();
            let gradient = Tensor::<D>::from_data(data, (&device, dtype));
            self.given.register(param.id, gradient);
        }
    }
}
