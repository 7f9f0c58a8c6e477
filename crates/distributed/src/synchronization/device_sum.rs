//! The mean gradients of a step on their device.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::DType;

use super::device_buckets::PendingSums;
use super::norm::{GradientNorm, clip_coefficient_on_device};
use super::scatter::{not_sharded, only_shards};
use super::step::{Contents, Step};
use super::{Communication, SyncedGradients};
use crate::bucket::BucketPlan;
use crate::device::{FlatLayout, views};
use crate::error::DdpError;
use crate::gradient::{Gradient, take_for_parameters, wide};
use crate::sharding::layout::ShardedBucket;
use crate::sharding::{GradientShard, GradientShards};
use crate::shared::Shared;

/// The summed gradients, on the device.
pub(super) struct DeviceSum {
    shared: Arc<Shared>,
    plan: Arc<BucketPlan>,
    /// By parameter: its gradient, if it was in no flat buffer.
    held: Vec<Option<Gradient>>,
    /// By bucket: the sum under way.
    under_way: PendingSums,
    /// By bucket: the sum, a flat buffer.
    sums: Vec<Option<Tensor<1>>>,
    pub(super) used: Vec<bool>,
    samples: u64,
    step: u64,
    pub(super) communication: Communication,
}

impl DeviceSum {
    /// Sends the remaining buckets; all ranks together have `samples`.
    pub(super) fn of(step: &mut Step, samples: u64) -> Result<Self, DdpError> {
        step.launch_rest()?;
        let used = step.used().to_vec();
        let (held, under_way) = match &mut step.contents {
            Contents::Device(device) => device.take(),
            Contents::Host(_) | Contents::Scatter(_) => (Vec::new(), Vec::new()),
        };
        Ok(Self {
            shared: step.shared.clone(),
            plan: step.plan.clone(),
            held,
            sums: under_way.iter().map(|_| None).collect(),
            under_way,
            used,
            samples,
            step: step.shared.step(),
            communication: Communication::default(),
        })
    }

    /// Takes the sums. The device waits for them; the host waits only where it must.
    pub(super) fn collect(&mut self) -> Result<(), DdpError> {
        let under_way = std::mem::take(&mut self.under_way);
        let mut bytes = 0;
        for (index, sum) in under_way.into_iter().enumerate() {
            let Some(sum) = sum else { continue };
            let bucket = &self.plan.buckets()[index];
            let length = match self.shared.config.shards_gradients() {
                true => ShardedBucket::of(bucket, self.shared.shard_layout()).gradients(),
                false => FlatLayout::of(bucket).len(),
            };
            bytes += (length * bucket.dtype().size()) as u64;
            self.sums[index] = Some(sum.collect()?);
        }
        let Some(communicator) = self.shared.communicator() else {
            return Ok(());
        };
        self.communication.bytes += communicator.take_bytes().unwrap_or(bytes);
        communicator.check()
    }

    /// Hands out this rank's shards of the gradients.
    pub(super) fn give_shards(self) -> Result<GradientShards, DdpError> {
        if !self.shared.config.shards_gradients() {
            return Err(not_sharded());
        }
        let mut shards: Vec<Option<GradientShard>> = self.used.iter().map(|_| None).collect();
        for (sum, bucket) in self.sums.iter().zip(self.plan.buckets()) {
            let Some(sum) = sum else { continue };
            let layout = ShardedBucket::of(bucket, self.shared.shard_layout());
            for (slot, number) in bucket.parameters().iter().enumerate() {
                let shard = layout.shard(slot);
                if self.used[*number] {
                    let shard = match shard.is_empty() {
                        true => Tensor::zeros([0], (&sum.device(), sum.dtype())),
                        false => sum.clone().slice([shard]),
                    };
                    shards[*number] = Some(GradientShard::of_tensor(shard));
                }
            }
        }
        Ok(GradientShards {
            shards,
            samples: self.samples,
            communication: self.communication,
        })
    }

    /// Clips, and hands out the gradients of `model`.
    pub(super) fn give<M: Module>(mut self, model: &M) -> Result<SyncedGradients, DdpError> {
        if self.shared.config.shards_gradients() {
            return Err(only_shards());
        }
        let max = self.shared.config.max_gradient_norm;
        let norm = max.and_then(|max| self.clip(f64::from(max)));
        let mut gradients = HashMap::new();
        for (flat, bucket) in self.sums.iter_mut().zip(self.plan.buckets()) {
            let Some(flat) = flat.take() else { continue };
            let entries = bucket.parameters().iter();
            let shapes: Vec<&[usize]> = entries
                .map(|number| &*self.shared.parameters[*number].shape)
                .collect();
            let views = views(&flat, &FlatLayout::of(bucket), &shapes);
            for (number, view) in bucket.parameters().iter().zip(views) {
                self.held[*number] = Some(view);
            }
        }
        let own = self.held.iter_mut().zip(&self.used);
        for ((held, used), entry) in own.zip(&self.shared.parameters) {
            if let (Some(gradient), true) = (held.take(), *used) {
                gradients.insert(entry.id, gradient);
            }
        }
        let given = take_for_parameters(model, &mut gradients, |gradient, _| gradient);
        if !gradients.is_empty() {
            return Err(self.shared.other_model(model));
        }
        Ok(SyncedGradients {
            gradients: given,
            samples: self.samples,
            norm,
            communication: self.communication,
        })
    }

    /// Scales all flat buffers down if the norm of all gradients is above `max`, without reading it on the host.
    /// Padding and missing gradients are zero.
    fn clip(&mut self, max: f64) -> Option<GradientNorm> {
        let squares = self.sums.iter().flatten().map(|flat| {
            let flat = wide(flat.clone());
            (flat.clone() * flat).sum().cast(DType::F32)
        });
        let norm = squares.reduce(|sum, squares| sum + squares)?.sqrt();
        let factor = clip_coefficient_on_device(norm.clone(), max);
        for flat in self.sums.iter_mut().flatten() {
            let dtype = flat.dtype();
            let numbers = wide(flat.clone());
            let factor = factor.clone().cast(numbers.dtype());
            *flat = (numbers * factor).cast(dtype);
        }
        Some(GradientNorm::on_device(norm, self.step))
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;

    use super::*;
    use crate::config::DdpConfig;
    use crate::ddp::Ddp;

    fn loss(model: &Linear, device: &Device) -> Tensor<1> {
        let rows = Tensor::<2>::from_floats([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], device);
        model.forward(rows).powf_scalar(2.0).mean()
    }

    fn numbers(model: &Linear, gradients: &GradientsParams) -> Vec<f32> {
        let weight = gradients.get::<2>(model.weight.id).unwrap().into_data();
        weight.iter::<f32>().collect()
    }

    /// A single rank on a GPU synchronizes nothing and copies nothing to the host.
    #[test]
    fn a_rank_that_is_alone_adds_up_and_clips_on_its_device() {
        let device = Device::flex().autodiff();
        let model: Linear = LinearConfig::new(3, 2).init(&device);
        let plain = GradientsParams::from_grads(loss(&model, &device).backward(), &model);
        let plain = numbers(&model, &plain);
        let norm = |numbers: &[f32]| numbers.iter().map(|g| g * g).sum::<f32>().sqrt();
        for max in [None, Some(0.25)] {
            let config = DdpConfig {
                max_gradient_norm: max,
                ..DdpConfig::default()
            };
            let (ddp, model) = Ddp::alone_on_device(model.clone(), config).unwrap();
            assert!(!ddp.synchronizes_gradients());
            let step = ddp.begin(4).unwrap();
            drop(loss(&step.with_hooks_no_sync(&model, 2), &device).backward());
            drop(loss(&step.with_hooks(&model, 2), &device).backward());
            let synced = step.finish(&model).unwrap();
            assert_eq!((synced.samples, synced.communication.bytes), (4, 0));
            let found = numbers(&model, &synced.gradients);
            let scale = norm(&found) / norm(&plain);
            match &synced.norm {
                None => assert!((scale - 1.0).abs() < 1e-6, "{scale}"),
                Some(all) => {
                    let expected = 0.25 / all.read().unwrap() as f32;
                    assert!((scale - expected).abs() < 1e-5, "{scale} and {expected}");
                }
            }
        }
    }
}
