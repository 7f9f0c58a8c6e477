//! Distributed data parallelism: one replica of the model a rank.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, TensorData};
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::bucket::{BucketEntry, BucketLimits, BucketPlan};
use crate::communication_hook::{CommunicationHook, CommunicationHookConfig};
use crate::error::DdpError;
use crate::host::HostBuffer;
use crate::initial_state::{broadcast_state, check_equal_structure};
use crate::reducer::{Reducer, lock};
use crate::replicas::{self, TensorKind};
use crate::synchronization::{Communication, SyncedGradients, Synchronization};

/// The size of a bucket unless another is given: 25 MiB, as in PyTorch.
pub const DEFAULT_BUCKET_BYTES: usize = 25 * 1024 * 1024;

/// The size of the first bucket unless another is given: 1 MiB, as in PyTorch.
pub const DEFAULT_FIRST_BUCKET_BYTES: usize = 1024 * 1024;

/// What is done with running statistics (batch norm's, say), which replicas compute from different
/// samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferSync {
    /// Every rank gets the mean of all ranks' ones.
    #[default]
    Average,
    /// Every rank gets rank 0's, as in PyTorch.
    Broadcast,
}

impl FromStr for BufferSync {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "average" => Ok(Self::Average),
            "broadcast" => Ok(Self::Broadcast),
            _ => Err(format!("`{text}` is neither `average` nor `broadcast`")),
        }
    }
}

impl std::fmt::Display for BufferSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Average => "average",
            Self::Broadcast => "broadcast",
        })
    }
}

/// How gradients are synchronised; the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DdpConfig {
    /// The largest size of a bucket of gradients, in bytes.
    pub bucket_bytes: usize,
    /// The largest size of the bucket that leaves first, in bytes.
    pub first_bucket_bytes: usize,
    /// Every step uses the same parameters on every rank. Saves the exchange of which parameters
    /// were used; a step that uses others is refused.
    pub static_graph: bool,
    /// Gradients whose norm, over all parameters together, is larger are scaled down to it
    /// (Pascanu et al. 2013, algorithm 1).
    pub max_gradient_norm: Option<f32>,
    /// How buckets travel.
    pub communication: CommunicationHookConfig,
    /// What becomes of running statistics.
    pub buffers: BufferSync,
}

impl Default for DdpConfig {
    fn default() -> Self {
        Self {
            bucket_bytes: DEFAULT_BUCKET_BYTES,
            first_bucket_bytes: DEFAULT_FIRST_BUCKET_BYTES,
            static_graph: false,
            max_gradient_norm: None,
            communication: CommunicationHookConfig::default(),
            buffers: BufferSync::default(),
        }
    }
}

impl DdpConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`DdpError::Config`] naming the first that is out of range.
    pub fn validate(&self) -> Result<(), DdpError> {
        if self.bucket_bytes == 0 {
            return Err(DdpError::Config(
                "--bucket-mib must be at least 1".to_string(),
            ));
        }
        match self.max_gradient_norm {
            Some(norm) if !(norm.is_finite() && norm > 0.0) => Err(DdpError::Config(format!(
                "--max-gradient-norm must be a positive number, not {norm}"
            ))),
            _ => Ok(()),
        }
    }

    /// The sizes of buckets.
    pub fn bucket_limits(&self) -> BucketLimits {
        BucketLimits {
            first: self.first_bucket_bytes.min(self.bucket_bytes),
            others: self.bucket_bytes,
        }
    }
}

/// Keeps the replicas of a model equal, one a rank.
///
/// It stands beside the model and does not wrap it, so parameter paths never change.
///
/// - [`Ddp::begin`] starts a step whose gradients travel while the backward pass goes on.
/// - [`Ddp::sync_gradients`] exchanges gradients after the backward pass.
///
/// See the [crate's example](crate).
#[derive(Debug, Clone)]
pub struct Ddp {
    shared: Arc<Shared>,
}

/// What a [`Ddp`] shares with its steps.
#[derive(Debug)]
pub(crate) struct Shared {
    group: ProcessGroup,
    config: DdpConfig,
    /// In order of registration.
    parameters: Vec<BucketEntry>,
    numbers: HashMap<ParamId, usize>,
    /// The model holds a parameter more than once.
    tied: bool,
    /// `None` for a rank that is alone.
    reducer: Option<Reducer>,
    plan: Mutex<Plan>,
}

#[derive(Debug)]
struct Plan {
    buckets: Arc<BucketPlan>,
    /// Those of the last step, to be filled again.
    buffers: Option<Vec<HostBuffer>>,
    /// The buckets follow an order that a backward pass has shown.
    ordered: bool,
    /// In a static model, the parameters in use.
    used: Option<Vec<bool>>,
    /// A step has been begun and not ended.
    open: bool,
    /// How many samples this rank has had since running statistics were last made equal.
    samples: u64,
}

impl Ddp {
    /// Gives `model` the values of rank 0's parameters and buffers, on every rank, and checks by
    /// hash that they have arrived.
    ///
    /// # Errors
    /// [`DdpError::DifferentModels`], on every rank, if the ranks have built different models or
    /// configurations; [`DdpError::Config`] if a number is out of range;
    /// [`DdpError::NothingToTrain`] if no parameter requires a gradient;
    /// [`DdpError::UnsupportedType`] if a parameter's type cannot be averaged;
    /// [`DdpError::Collective`] if the exchange fails.
    pub fn new<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
    ) -> Result<(Self, M), DdpError> {
        let hook = match config.communication {
            CommunicationHookConfig::None => None,
            other => Some(other.build()),
        };
        Self::build(model, group, config, hook)
    }

    /// As [`Ddp::new`], with a communication hook of the caller's own in place of the
    /// configuration's. All ranks must hand in the same.
    ///
    /// # Errors
    /// As [`Ddp::new`].
    pub fn with_hook<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
        hook: Box<dyn CommunicationHook>,
    ) -> Result<(Self, M), DdpError> {
        Self::build(model, group, config, Some(hook))
    }

    fn build<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
        hook: Option<Box<dyn CommunicationHook>>,
    ) -> Result<(Self, M), DdpError> {
        config.validate()?;
        let tensors = replicas::describe(&model);
        let hook_name = hook.as_ref().map(|hook| hook.name());
        check_equal_structure(&group, &tensors, &format!("{config:?} {hook_name:?}"))?;
        let model = broadcast_state(model, &group, config.bucket_bytes)?;
        // A parameter that a model holds twice (tied weights) has one gradient.
        let mut known = HashSet::new();
        let mut tied = false;
        let parameters: Vec<_> = tensors
            .into_iter()
            .filter(|tensor| tensor.kind == TensorKind::Trainable)
            .filter(|tensor| {
                let new = known.insert(tensor.id);
                tied |= !new;
                new
            })
            .map(|tensor| BucketEntry {
                path: tensor.path,
                id: tensor.id,
                shape: tensor.shape,
                dtype: tensor.dtype,
            })
            .collect();
        check_types(&parameters, hook.is_some())?;
        let ranks: Vec<usize> = (0..group.world_size()).collect();
        let reducer = match ranks.len() {
            1 => None,
            // A group of its own, because its thread's collectives run beside all others.
            _ => match group.subgroup(&ranks)? {
                Some(own) => Some(Reducer::start(own, hook)?),
                None => None,
            },
        };
        let numbers = parameters.iter().enumerate();
        let shared = Shared {
            numbers: numbers.map(|(number, entry)| (entry.id, number)).collect(),
            plan: Mutex::new(Plan {
                buckets: Arc::new(BucketPlan::in_reverse(&parameters, config.bucket_limits())),
                buffers: None,
                ordered: reducer.is_none(),
                used: None,
                open: false,
                samples: 0,
            }),
            group,
            config,
            parameters,
            tied,
            reducer,
        };
        let ddp = Self {
            shared: Arc::new(shared),
        };
        ddp.verify_replicas(&model)?;
        Ok((ddp, model))
    }

    /// The process group over which the replicas are kept equal.
    pub fn group(&self) -> &ProcessGroup {
        &self.shared.group
    }

    /// The parameters whose gradients are exchanged, in order of registration.
    pub fn parameters(&self) -> &[BucketEntry] {
        &self.shared.parameters
    }

    /// Which gradients travel together, at present.
    pub fn plan(&self) -> Arc<BucketPlan> {
        lock(&self.shared.plan).buckets.clone()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Begins a step in which this rank has `samples` samples: see [`Synchronization`]. Every rank
    /// begins it, those without samples too.
    ///
    /// # Errors
    /// [`DdpError::StepOpen`] if the step before it has not been finished or dropped.
    pub fn begin(&self, samples: usize) -> Result<Synchronization, DdpError> {
        Synchronization::begin(self, samples)
    }

    /// Averages gradients over the samples of all ranks, after the backward pass.
    ///
    /// `gradients` are those of this rank's *mean* loss over its `samples`; the result is the
    /// gradient of the mean loss over all samples of all ranks, whatever their shares. A rank
    /// without samples joins with empty gradients and `samples == 0`. A parameter that was used on
    /// some ranks only counts as zero on the others.
    ///
    /// # Errors
    /// As [`Synchronization::finish`].
    pub fn sync_gradients<M: Module>(
        &self,
        model: &M,
        gradients: GradientsParams,
        samples: usize,
    ) -> Result<SyncedGradients, DdpError> {
        let nothing_to_do = self.shared.reducer.is_none()
            && samples > 0
            && self.shared.config.max_gradient_norm.is_none();
        if nothing_to_do {
            return Ok(SyncedGradients {
                gradients,
                samples: samples as u64,
                norm: None,
                communication: Communication::default(),
            });
        }
        let mut step = self.begin(samples)?;
        if samples > 0 {
            step.hand_in(model, gradients, samples);
        }
        step.finish(model)
    }

    /// Makes the places of tied weights equal again: Burn's optimizers change the first place of a
    /// parameter that a model holds more than once, and leave the others as they were. Called after
    /// each optimizer step; gives other models back as they are.
    #[must_use]
    pub fn tie<M: Module>(&self, model: M) -> M {
        if self.shared.tied {
            replicas::tie(model)
        } else {
            model
        }
    }

    /// Makes running statistics (batch norm's, say) equal on all ranks, as
    /// [`DdpConfig::buffers`] says; done before validation and before a checkpoint.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the exchange fails.
    pub fn synchronize_buffers<M: Module>(&self, model: M) -> Result<M, DdpError> {
        match self.shared.config.buffers {
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
        let own = lock(&self.shared.plan).samples as f64;
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
        if self.shared.reducer.is_none() {
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
            lock(&self.shared.plan).samples = 0;
            return Ok(model);
        }
        lock(&self.shared.plan).samples = 0;
        Ok(model)
    }

    /// Checks by hash that every rank holds the same parameters and buffers.
    ///
    /// # Errors
    /// [`DdpError::Diverged`], on every rank, naming the first rank and parameter that differ from
    /// rank 0's; [`DdpError::Collective`] if the exchange fails.
    pub fn verify_replicas<M: Module>(&self, model: &M) -> Result<(), DdpError> {
        if self.shared.reducer.is_none() {
            return Ok(());
        }
        let state = replicas::read(model)?;
        let hashes = state
            .iter()
            .flat_map(|(_, data)| replicas::fingerprint(data))
            .collect::<Vec<u8>>();
        let all = self.group().all_gather(hashes).wait()?;
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

impl Shared {
    pub(crate) fn parameters(&self) -> &[BucketEntry] {
        &self.parameters
    }

    /// The number of each parameter.
    pub(crate) fn numbers(&self) -> &HashMap<ParamId, usize> {
        &self.numbers
    }

    pub(crate) fn config(&self) -> &DdpConfig {
        &self.config
    }

    pub(crate) fn reducer(&self) -> Option<&Reducer> {
        self.reducer.as_ref()
    }

    pub(crate) fn is_first(&self) -> bool {
        self.group.rank() == 0
    }

    /// Opens a step: the plan, and a buffer for each of its buckets; what they hold means nothing.
    pub(crate) fn take_plan(&self) -> Result<(Arc<BucketPlan>, Vec<HostBuffer>), DdpError> {
        let mut plan = lock(&self.plan);
        if std::mem::replace(&mut plan.open, true) {
            return Err(DdpError::StepOpen);
        }
        if let Some(buffers) = plan.buffers.take() {
            return Ok((plan.buckets.clone(), buffers));
        }
        let buffers = plan.buckets.buckets().iter().map(|bucket| {
            let unsupported = || DdpError::UnsupportedType {
                parameter: bucket.slots()[0].path.clone(),
                dtype: format!("{:?}", bucket.dtype()),
            };
            HostBuffer::zeroed(bucket.dtype(), bucket.length_with_flags()).ok_or_else(unsupported)
        });
        let buffers = buffers.collect::<Result<_, _>>()?;
        Ok((plan.buckets.clone(), buffers))
    }

    /// Ends the step that [`Shared::take_plan`] has opened.
    pub(crate) fn end_step(&self) {
        lock(&self.plan).open = false;
    }

    /// Counts samples of this rank, by which its running statistics are weighted.
    pub(crate) fn count_samples(&self, samples: usize) {
        lock(&self.plan).samples += samples as u64;
    }

    /// Keeps the buffers of a step for the next one, if its plan is still the same.
    pub(crate) fn return_buffers(&self, of: &Arc<BucketPlan>, buffers: Vec<Option<HostBuffer>>) {
        let mut plan = lock(&self.plan);
        if Arc::ptr_eq(&plan.buckets, of) {
            plan.buffers = buffers.into_iter().collect();
        }
    }

    /// Whether no backward pass has shown yet in which order gradients are finished.
    pub(crate) fn wants_order(&self) -> bool {
        !lock(&self.plan).ordered
    }

    /// Leaves the buckets as they are for good.
    pub(crate) fn keep_order(&self) {
        lock(&self.plan).ordered = true;
    }

    /// Packs the buckets anew, once: gradients that are finished together travel together.
    pub(crate) fn rebuild(&self, order: &[usize]) {
        let mut plan = lock(&self.plan);
        let limits = self.config.bucket_limits();
        plan.buckets = Arc::new(BucketPlan::in_order(&self.parameters, order, limits));
        plan.buffers = None;
        plan.ordered = true;
    }

    /// Whether the ranks need not tell each other which parameters they used.
    pub(crate) fn knows_used(&self) -> bool {
        lock(&self.plan).used.is_some()
    }

    /// Refuses a step of a static model that used other parameters than the steps before.
    pub(crate) fn check_static(&self, used: &[bool]) -> Result<(), DdpError> {
        match &lock(&self.plan).used {
            Some(known) => self.compare_used(known, used),
            None => Ok(()),
        }
    }

    /// The parameters used by some rank: in a static model, what the first step has shown, in
    /// which every rank that had samples (`own`) must have used the same.
    pub(crate) fn remember_used(
        &self,
        used: Vec<bool>,
        own: Option<&[bool]>,
    ) -> Result<Vec<bool>, DdpError> {
        if !self.config.static_graph {
            return Ok(used);
        }
        let mut plan = lock(&self.plan);
        let known = plan.used.get_or_insert(used);
        match own {
            Some(own) => self.compare_used(known, own).map(|()| known.clone()),
            None => Ok(known.clone()),
        }
    }

    /// How `model` differs from the one that [`Ddp::new`] was given.
    pub(crate) fn other_model<M: Module>(&self, model: &M) -> DdpError {
        let found = replicas::describe(model);
        let missing = self.parameters.iter().find(|entry| {
            let id = entry.id;
            !found.iter().any(|tensor| tensor.id == id)
        });
        let new = found.iter().find(|tensor| {
            tensor.kind == TensorKind::Trainable && !self.numbers.contains_key(&tensor.id)
        });
        DdpError::OtherModel {
            difference: match (missing, new) {
                (Some(entry), _) => format!("it has lost the parameter `{}`", entry.path),
                (None, Some(tensor)) => format!("`{}` requires a gradient now", tensor.path),
                (None, None) => "gradients of parameters that are not its own came".to_string(),
            },
        }
    }

    fn compare_used(&self, known: &[bool], used: &[bool]) -> Result<(), DdpError> {
        let mut pairs = known.iter().zip(used);
        match pairs.position(|(known, used)| known != used) {
            None => Ok(()),
            Some(number) => Err(DdpError::StaticGraph {
                parameter: self.parameters[number].path.clone(),
                used: used[number],
            }),
        }
    }
}

/// Refuses what cannot be averaged.
fn check_types(parameters: &[BucketEntry], hooked: bool) -> Result<(), DdpError> {
    if parameters.is_empty() {
        return Err(DdpError::NothingToTrain);
    }
    for entry in parameters {
        if HostBuffer::zeroed(entry.dtype, 0).is_none() {
            return Err(DdpError::UnsupportedType {
                parameter: entry.path.clone(),
                dtype: format!("{:?}", entry.dtype),
            });
        }
    }
    let plain = parameters.iter().find(|entry| entry.dtype != DType::F32);
    if let (true, Some(entry)) = (hooked, plain) {
        tracing::warn!(
            parameter = entry.path,
            dtype = ?entry.dtype,
            "communication hooks take f32 gradients; this one and its like go as they are"
        );
    }
    Ok(())
}
