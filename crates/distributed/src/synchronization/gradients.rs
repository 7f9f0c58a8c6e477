//! Gradients between `GradientsParams` and buckets.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;

use super::norm::total_norm;
use super::{Communication, SyncedGradients};
use crate::bucket::BucketPlan;
use crate::error::DdpError;
use crate::gradient::{Gradient, take_for_parameters};
use crate::host::{HostBuffer, scaled, sum_of_squares};
use crate::reducer::{Outcome, Report};
use crate::shared::Shared;

/// The gradients of `model`'s parameters by their numbers, last layer first, as a backward pass
/// would have finished them.
pub(super) fn gradients_of<M: Module>(
    model: &M,
    gradients: GradientsParams,
    shared: &Shared,
) -> Result<Vec<(usize, Gradient)>, DdpError> {
    struct Take<'a> {
        numbers: &'a HashMap<ParamId, usize>,
        gradients: GradientsParams,
        taken: Vec<(usize, Gradient)>,
    }
    impl ModuleVisitor for Take<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(number) = self.numbers.get(&param.id).copied() else {
                return;
            };
            // Tied weights are visited twice and have one gradient.
            if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                self.taken.push((number, Gradient::of_tensor(gradient)));
            }
        }
    }
    let mut visitor = Take {
        numbers: &shared.numbers,
        gradients,
        taken: Vec::new(),
    };
    model.visit(&mut visitor);
    if !visitor.gradients.is_empty() {
        return Err(shared.other_model(model));
    }
    visitor
        .taken
        .sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    Ok(visitor.taken)
}

/// What all ranks agree on, still in buckets.
pub(super) struct Summed {
    pub(super) shared: Arc<Shared>,
    pub(super) plan: Arc<BucketPlan>,
    pub(super) buffers: Vec<Option<HostBuffer>>,
    /// By bucket: the sum of squares of each of its parameters, where the reducer has formed it.
    pub(super) squares: Vec<Vec<f64>>,
    pub(super) used: Vec<bool>,
    /// By parameter: memory for its gradient, where there is some.
    pub(super) spent: Vec<Option<TensorData>>,
    /// Whether the buckets tell which parameters some rank used.
    pub(super) with_flags: bool,
    /// By parameter: its mean gradient, where it was taken out of its bucket already.
    pub(super) ready: Vec<Option<TensorData>>,
    pub(super) samples: u64,
    pub(super) communication: Communication,
}

impl Summed {
    /// Takes what the reducer reports; `order` gets rank 0's order of parameters.
    pub(super) fn take(&mut self, report: Report, order: &mut Vec<i32>) -> Result<(), DdpError> {
        self.communication.busy += report.busy;
        match report.outcome? {
            Outcome::Samples(samples) => self.samples = samples,
            Outcome::Bucket {
                index,
                buffer,
                squares,
            } => {
                self.communication.bytes += report.bytes;
                if self.shared.config.max_gradient_norm.is_none() {
                    self.take_out(index, &buffer);
                }
                self.buffers[index] = Some(buffer);
                self.squares[index] = squares;
            }
            Outcome::Order(offered) => *order = offered,
            // Buckets in host memory tell it themselves.
            Outcome::Used(_) | Outcome::Segment { .. } => {}
        }
        Ok(())
    }

    /// Takes the gradients out of a bucket while others are still on their way.
    fn take_out(&mut self, index: usize, buffer: &HostBuffer) {
        let bucket = &self.plan.buckets()[index];
        for (slot, number) in bucket.parameters().iter().enumerate() {
            if !self.with_flags || buffer.flag(bucket.len() + slot) {
                let shape = &self.shared.parameters[*number].shape;
                let spent = self.spent[*number].take();
                let values = buffer.tensor_data(bucket.range(slot), shape, 1.0, spent);
                self.ready[*number] = Some(values);
            }
        }
    }

    /// Reads from the buckets which parameters some rank used, where they tell.
    pub(super) fn read_flags(&mut self) {
        if !self.with_flags {
            return;
        }
        for (bucket, buffer) in self.plan.buckets().iter().zip(&self.buffers) {
            let Some(buffer) = buffer else { continue };
            for (slot, number) in bucket.parameters().iter().enumerate() {
                self.used[*number] = buffer.flag(bucket.len() + slot);
            }
        }
    }

    pub(super) fn return_buffers(self) {
        self.shared.return_buffers(&self.plan, self.buffers);
    }

    /// Clips, and turns buckets into the gradients of `model`.
    pub(super) fn give<M: Module>(mut self, model: &M) -> Result<SyncedGradients, DdpError> {
        let (mut norm, mut factor) = (None, 1.0);
        if let Some(max) = self.shared.config.max_gradient_norm {
            let parameters = &self.shared.parameters;
            let (found, clips) = total_norm(self.sums_of_squares(), parameters, max)?;
            (norm, factor) = (Some(found), clips);
        }
        let mut data = HashMap::new();
        for (bucket, buffer) in self.plan.buckets().iter().zip(&self.buffers) {
            let Some(buffer) = buffer else { continue };
            for (slot, number) in bucket.parameters().iter().enumerate() {
                if self.used[*number] {
                    let entry = &self.shared.parameters[*number];
                    let (ready, spent) = (self.ready[*number].take(), self.spent[*number].take());
                    let values = ready.unwrap_or_else(|| {
                        let range = bucket.range(slot);
                        buffer.tensor_data(range, &entry.shape, factor, spent)
                    });
                    data.insert(entry.id, values);
                }
            }
        }
        let given = take_for_parameters(model, &mut data, Gradient::of_data);
        if !data.is_empty() {
            return Err(self.shared.other_model(model));
        }
        let synced = SyncedGradients {
            gradients: given,
            samples: self.samples,
            norm,
            communication: self.communication,
        };
        self.return_buffers();
        Ok(synced)
    }

    /// By the number of its parameter, in the order of registration: the sum of squares of each gradient.
    fn sums_of_squares(&self) -> impl Iterator<Item = (usize, f64)> {
        let used = self.used.iter().enumerate().filter(|(_, used)| **used);
        used.filter_map(move |(number, _)| {
            let (bucket, slot) = self.plan.place(number);
            let buffer = self.buffers[bucket].as_ref()?;
            let squares = match self.squares[bucket].get(slot) {
                Some(squares) => *squares,
                None => buffer.sum_of_squares(self.plan.buckets()[bucket].range(slot)),
            };
            Some((number, squares))
        })
    }
}

/// What a rank that is alone makes of its gradients over `samples` samples: they are clipped to the norm `max`, and
/// never in buckets.
pub(crate) fn clipped_alone<M: Module>(
    model: &M,
    gradients: GradientsParams,
    samples: usize,
    max: f32,
    shared: &Shared,
) -> Result<SyncedGradients, DdpError> {
    let parameters = &shared.parameters;
    let mut read = Vec::new();
    for (number, gradient) in gradients_of(model, gradients, shared)? {
        let data = gradient.read();
        let data = data.map_err(|reason| shared.unread(number, reason))?;
        read.push((number, data));
    }
    read.sort_by_key(|(number, _)| *number);
    let squares = read
        .iter()
        .map(|(number, data)| (*number, sum_of_squares(data).unwrap_or(f64::NAN)));
    let (norm, factor) = total_norm(squares, parameters, max)?;
    let scaled =
        |(number, data): (usize, TensorData)| (parameters[number].id, scaled(data, factor));
    let mut data = read.into_iter().map(scaled).collect();
    Ok(SyncedGradients {
        gradients: take_for_parameters(model, &mut data, Gradient::of_data),
        samples: samples as u64,
        norm: Some(norm),
        communication: Communication::default(),
    })
}
