//! Distributed data parallelism: one replica of the model a rank.

use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::{ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::bucket::{BucketEntry, BucketPlan};
use crate::error::DdpError;
use crate::host::HostBuffer;
use crate::replicas::{self, TensorDescription, TensorKind};

/// The size of a bucket unless another is given: 25 MiB, as in PyTorch.
pub const DEFAULT_BUCKET_BYTES: usize = 25 * 1024 * 1024;

/// How gradients are synchronised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DdpConfig {
    /// The largest size of a bucket of gradients, in bytes.
    pub bucket_bytes: usize,
}

impl Default for DdpConfig {
    fn default() -> Self {
        Self {
            bucket_bytes: DEFAULT_BUCKET_BYTES,
        }
    }
}

/// What [`Ddp::sync_gradients`] yields.
#[derive(Debug)]
pub struct SyncedGradients {
    /// The mean gradient over the samples of all ranks: equal to the bit on every rank. A parameter
    /// that no rank used has no gradient.
    pub gradients: GradientsParams,
    /// How many samples all ranks together had.
    pub samples: u64,
    /// How long this rank waited for the exchange.
    pub waited: Duration,
}

/// Keeps the replicas of a model equal, one a rank.
///
/// It stands beside the model and does not wrap it. Accumulating gradients over several
/// micro-batches is simply not calling [`Ddp::sync_gradients`] until the last of them.
///
/// See the [crate's example](crate).
#[derive(Debug, Clone)]
pub struct Ddp {
    group: ProcessGroup,
    plan: BucketPlan,
}

impl Ddp {
    /// Gives `model` the values of rank 0's parameters and buffers, on every rank, and checks by
    /// hash that they have arrived.
    ///
    /// # Errors
    /// [`DdpError::DifferentModels`], on every rank, if the ranks have built different models;
    /// [`DdpError::Collective`] if the exchange fails.
    pub fn new<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
    ) -> Result<(Self, M), DdpError> {
        let tensors = replicas::describe(&model);
        check_equal_structure(&group, &tensors)?;
        let model = broadcast_state(model, &group, config.bucket_bytes)?;
        // A parameter that a model holds twice (tied weights) has one gradient.
        let mut known = std::collections::HashSet::new();
        let trainable = tensors
            .into_iter()
            .filter(|tensor| tensor.kind == TensorKind::Trainable && known.insert(tensor.id))
            .map(|tensor| BucketEntry {
                path: tensor.path,
                id: tensor.id,
                shape: tensor.shape,
                dtype: tensor.dtype,
            })
            .collect();
        let ddp = Self {
            group,
            plan: BucketPlan::new(trainable, config.bucket_bytes),
        };
        ddp.verify_replicas(&model)?;
        Ok((ddp, model))
    }

    /// The process group over which the replicas are kept equal.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Which gradients travel together.
    pub fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// Averages gradients over the samples of all ranks.
    ///
    /// `gradients` are those of this rank's *mean* loss over its `samples`; the result is the
    /// gradient of the mean loss over all samples of all ranks, whatever their shares. A rank
    /// without samples joins with empty gradients and `samples == 0`. A parameter that was used on
    /// some ranks only counts as zero on the others.
    ///
    /// # Errors
    /// [`DdpError::NoSamples`] if no rank had one; [`DdpError::Collective`] if the exchange fails.
    pub fn sync_gradients<M: Module>(
        &self,
        model: &M,
        gradients: GradientsParams,
        samples: usize,
    ) -> Result<SyncedGradients, DdpError> {
        if self.group.world_size() == 1 && samples > 0 {
            return Ok(SyncedGradients {
                gradients,
                samples: samples as u64,
                waited: Duration::ZERO,
            });
        }
        let mut local = Taken::from(model, gradients)?;

        // The ledger tells how many samples there are and who used which parameter. It travels
        // while the buckets are being packed.
        let mut ledger = vec![samples as f64];
        ledger.extend(self.plan.entries().map(|entry| f64::from(local.has(entry))));
        let ledger = self.group.all_reduce(ledger, ReduceOp::Sum);
        let mut buckets = Vec::with_capacity(self.plan.buckets().len());
        for bucket in self.plan.buckets() {
            buckets.push(pack(bucket, &mut local)?);
        }

        let mut waited = Duration::ZERO;
        let start = std::time::Instant::now();
        let ledger = ledger.wait()?;
        waited += start.elapsed();
        let total = ledger[0];
        if total == 0.0 {
            return Err(DdpError::NoSamples);
        }

        // Scaled before the sum, so that half-precision gradients cannot overflow in it. A rank
        // that has all the samples multiplies by exactly one.
        let share = samples as f64 / total;
        let pending = buckets
            .into_iter()
            .map(|mut bucket| {
                if share != 1.0 {
                    bucket.scale(share);
                }
                bucket.all_reduce(&self.group)
            })
            .collect::<Vec<_>>();

        let mut used = ledger[1..].iter().map(|count| *count > 0.0);
        let mut synced = Taken::default();
        for (bucket, work) in self.plan.buckets().zip(pending) {
            let start = std::time::Instant::now();
            let sum = work.wait()?;
            waited += start.elapsed();
            let mut offset = 0;
            for entry in bucket {
                if used.next() == Some(true) {
                    synced.insert(entry, sum.tensor_data(offset, &entry.shape));
                }
                offset += entry.num_elements();
            }
        }
        Ok(SyncedGradients {
            gradients: synced.into_gradients(model),
            samples: total as u64,
            waited,
        })
    }

    /// Averages running statistics (batch norm's, say) over the ranks, in f64.
    ///
    /// Replicas see different samples, so their statistics drift apart; this is done before
    /// validation and before a checkpoint. Ranks count alike: their shares of a batch differ by one
    /// sample at the most. Frozen parameters, equal on all ranks, keep their bits.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the exchange fails.
    pub fn average_buffers<M: Module>(&self, model: M) -> Result<M, DdpError> {
        if self.group.world_size() == 1 {
            replicas::flush_running_statistics(&model);
            return Ok(model);
        }
        let state = replicas::read(&model)?;
        let is_buffer = |tensor: &TensorDescription| tensor.kind == TensorKind::FixedFloat;
        let flat = state
            .iter()
            .filter(|(tensor, _)| is_buffer(tensor))
            .flat_map(|(_, data)| data.iter::<f64>())
            .collect::<Vec<_>>();
        if flat.is_empty() {
            return Ok(model);
        }
        let mean = self.group.all_reduce(flat, ReduceOp::Mean).wait()?;
        let mut rest = mean.as_slice();
        let values = state
            .into_iter()
            .map(|(tensor, data)| {
                if !is_buffer(&tensor) {
                    return data;
                }
                let (own, others) = rest.split_at(tensor.shape.iter().product());
                rest = others;
                TensorData::new(own.to_vec(), tensor.shape.as_slice()).convert_dtype(tensor.dtype)
            })
            .collect();
        Ok(replicas::replace(model, values))
    }

    /// Checks by hash that every rank holds the same parameters and buffers.
    ///
    /// # Errors
    /// [`DdpError::Diverged`], on every rank, naming the first rank and parameter that differ from
    /// rank 0's; [`DdpError::Collective`] if the exchange fails.
    pub fn verify_replicas<M: Module>(&self, model: &M) -> Result<(), DdpError> {
        if self.group.world_size() == 1 {
            return Ok(());
        }
        let state = replicas::read(model)?;
        let hashes = state
            .iter()
            .flat_map(|(_, data)| replicas::fingerprint(data))
            .collect::<Vec<u8>>();
        let all = self.group.all_gather(hashes).wait()?;
        for (rank, theirs) in all.iter().enumerate() {
            let different = all[0]
                .chunks(32)
                .zip(theirs.chunks(32))
                .position(|(a, b)| a != b);
            if let Some(position) = different {
                return Err(DdpError::Diverged {
                    rank,
                    parameter: state[position].0.path.clone(),
                });
            }
        }
        Ok(())
    }
}

/// All ranks exchange what they have built, and all reach the same verdict.
fn check_equal_structure(
    group: &ProcessGroup,
    tensors: &[TensorDescription],
) -> Result<(), DdpError> {
    if group.world_size() == 1 {
        return Ok(());
    }
    let text = tensors.iter().map(|t| format!("{t}\n")).collect::<String>();
    let all = group.all_gather_varied(text.into_bytes()).wait()?;
    let all = all
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes))
        .collect::<Vec<_>>();
    for (rank, theirs) in all.iter().enumerate() {
        if *theirs == all[0] {
            continue;
        }
        let (mut ours, mut theirs) = (all[0].lines(), theirs.lines());
        let mut position = 0;
        loop {
            let pair = (ours.next(), theirs.next());
            if pair.0 != pair.1 || pair.0.is_none() {
                let name = |line: Option<&str>| line.unwrap_or("missing").to_string();
                return Err(DdpError::DifferentModels {
                    rank,
                    position,
                    ours: name(pair.0),
                    theirs: name(pair.1),
                });
            }
            position += 1;
        }
    }
    Ok(())
}

/// Rank 0's tensors replace everybody's, a bucket's worth of bytes at a time.
fn broadcast_state<M: Module>(
    model: M,
    group: &ProcessGroup,
    bucket_bytes: usize,
) -> Result<M, DdpError> {
    if group.world_size() == 1 {
        return Ok(model);
    }
    let state = replicas::read(&model)?;
    let mut works = Vec::new();
    let mut chunk = Vec::new();
    for (index, (_, data)) in state.iter().enumerate() {
        chunk.extend_from_slice(data.as_bytes());
        if chunk.len() >= bucket_bytes || index + 1 == state.len() {
            works.push(group.broadcast(std::mem::take(&mut chunk), 0));
        }
    }
    let mut bytes = Vec::new();
    for work in works {
        bytes.extend(work.wait()?);
    }
    let mut rest = bytes.as_slice();
    let values = state
        .into_iter()
        .map(|(_, data)| {
            let (own, others) = rest.split_at(data.as_bytes().len());
            rest = others;
            TensorData::from_bytes_vec(own.to_vec(), data.shape().clone(), data.dtype())
        })
        .collect();
    Ok(replicas::replace(model, values))
}

/// Gradients by parameter, in host memory.
#[derive(Default)]
struct Taken {
    values: std::collections::HashMap<burn::module::ParamId, TensorData>,
}

impl Taken {
    fn from<M: Module>(model: &M, gradients: GradientsParams) -> Result<Self, DdpError> {
        struct Take {
            gradients: GradientsParams,
            taken: Taken,
            error: Option<String>,
        }
        impl ModuleVisitor for Take {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                    match gradient.without_autodiff().try_into_data() {
                        Ok(data) => drop(self.taken.values.insert(param.id, data)),
                        Err(error) => self.error = Some(error.to_string()),
                    }
                }
            }
        }
        let mut visitor = Take {
            gradients,
            taken: Self::default(),
            error: None,
        };
        model.visit(&mut visitor);
        match visitor.error {
            Some(reason) => Err(DdpError::Read {
                parameter: "a gradient".to_string(),
                reason,
            }),
            None => Ok(visitor.taken),
        }
    }

    fn has(&self, entry: &BucketEntry) -> bool {
        self.values.contains_key(&entry.id)
    }

    fn insert(&mut self, entry: &BucketEntry, data: TensorData) {
        self.values.insert(entry.id, data);
    }

    fn into_gradients<M: Module>(self, model: &M) -> GradientsParams {
        struct Give {
            given: GradientsParams,
            taken: Taken,
        }
        impl ModuleVisitor for Give {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(data) = self.taken.values.remove(&param.id) {
                    let device = param.lazy_device().inner();
                    let dtype = data.dtype();
                    let gradient = Tensor::<D>::from_data(data, (&device, dtype));
                    self.given.register(param.id, gradient);
                }
            }
        }
        let mut visitor = Give {
            given: GradientsParams::new(),
            taken: self,
        };
        model.visit(&mut visitor);
        visitor.given
    }
}

fn pack(bucket: &[BucketEntry], gradients: &mut Taken) -> Result<HostBuffer, DdpError> {
    let elements = bucket.iter().map(BucketEntry::num_elements).sum();
    let unsupported = |entry: &BucketEntry| DdpError::UnsupportedType {
        parameter: entry.path.clone(),
        dtype: format!("{:?}", entry.dtype),
    };
    let mut buffer = HostBuffer::with_capacity(bucket[0].dtype, elements)
        .ok_or_else(|| unsupported(&bucket[0]))?;
    for entry in bucket {
        match gradients.values.remove(&entry.id) {
            None => buffer.extend_with_zeros(entry.num_elements()),
            Some(data) => buffer.extend(&data).map_err(|reason| DdpError::Read {
                parameter: entry.path.clone(),
                reason,
            })?,
        }
    }
    Ok(buffer)
}
