//! What a [`crate::Ddp`] and its steps know together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use burn::module::{Module, ParamId};
use burn::prelude::Device;
use everburn_collectives::group::ProcessGroup;
use everburn_collectives::sync::lock;
use everburn_profile::{Recorder, Track};

use crate::bucket::{BucketEntry, BucketLimits, BucketPlan};
use crate::config::DdpConfig;
use crate::device::DeviceCommunicator;
use crate::error::DdpError;
use crate::host::HostBuffer;
use crate::initial_state::InitialValues;
use crate::reducer::{Outcome, Reducer, Report};
use crate::replicas::{self, TensorKind};
use crate::sharding::MemoryTracker;
use crate::sharding::layout::ShardLayout;
use crate::synchronization::SpareSums;
use crate::ties;

/// Tied parameters are compared once, when the second step ends: a loop without [`crate::Ddp::tie`] shows itself after
/// its first optimizer step, and one comparison costs nothing in a long training.
const TIES_CHECKED: usize = 2;

/// What a [`crate::Ddp`] shares with its steps.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) group: ProcessGroup,
    pub(crate) config: DdpConfig,
    /// How large this model's buckets may become.
    pub(crate) limits: BucketLimits,
    /// In order of registration.
    pub(crate) parameters: Vec<BucketEntry>,
    pub(crate) numbers: HashMap<ParamId, usize>,
    /// The model holds a parameter more than once.
    pub(crate) tied: bool,
    /// Steps finished so far, up to [`TIES_CHECKED`].
    pub(crate) finished: AtomicUsize,
    /// `None` for a rank that is alone.
    pub(crate) reducer: Option<Reducer>,
    pub(crate) medium: Medium,
    pub(crate) plan: Mutex<Plan>,
    pub(crate) gradient_buckets: MemoryTracker,
    /// Records when passes reach parameters and buckets travel.
    pub(crate) recorder: OnceLock<Recorder>,
    /// Where trained parameters have their first values from, until shards of these are taken.
    pub(crate) initial: Mutex<Option<Arc<dyn InitialValues>>>,
}

/// Where gradients are while they are added up.
#[derive(Debug)]
pub(crate) enum Medium {
    /// In host memory, in which the reducer adds them up.
    Host,
    /// On the device of all parameters.
    Device {
        device: Device,
        /// `None` for a rank that is alone.
        communicator: Option<Arc<dyn DeviceCommunicator>>,
    },
}

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) buckets: Arc<BucketPlan>,
    /// Those of the last step, to be filled again.
    pub(crate) buffers: Option<Vec<HostBuffer>>,
    /// Memory for sums of logical shards.
    pub(crate) spare_sums: SpareSums,
    /// The buckets follow an order that a backward pass has shown.
    pub(crate) ordered: bool,
    /// In a static model, the parameters in use.
    pub(crate) used: Option<Vec<bool>>,
    /// A step has been begun and not ended.
    pub(crate) open: bool,
    /// How many samples this rank has had since running statistics were last made equal.
    pub(crate) samples: u64,
}

impl Shared {
    /// Counts a finished step of `model`, and refuses tied parameters that the optimizer has pulled apart.
    pub(crate) fn check_ties<M: Module>(&self, model: &M) -> Result<(), DdpError> {
        if !self.tied || self.finished.load(Ordering::Relaxed) >= TIES_CHECKED {
            return Ok(());
        }
        if self.finished.fetch_add(1, Ordering::Relaxed) + 1 < TIES_CHECKED {
            return Ok(());
        }
        match ties::untied(model)? {
            Some(parameter) => Err(DdpError::Untied { parameter }),
            None => Ok(()),
        }
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get()
    }

    /// Tells the recorder, if there is one, what a thread of the reducer did.
    pub(crate) fn record_reduction(&self, report: &Report) {
        let (Some(recorder), Ok(outcome)) = (self.recorder(), &report.outcome) else {
            return;
        };
        let bucket;
        let name = match outcome {
            Outcome::Samples(_) => "samples",
            Outcome::Bucket { index, .. } | Outcome::Segment { index, .. } => {
                bucket = format!("bucket {index}");
                &bucket
            }
            Outcome::Used(_) => "parameters in use",
            Outcome::Order(_) => "order of parameters",
        };
        recorder.background(
            Track::Reducer(report.worker),
            name,
            report.began,
            report.busy,
        );
    }

    /// Whether gradients are read into host memory, all of them.
    pub(crate) fn is_in_host_memory(&self) -> bool {
        matches!(self.medium, Medium::Host) && !self.config.shards_gradients()
    }

    /// How buckets that are on a device are added up, if they are.
    pub(crate) fn communicator(&self) -> Option<&Arc<dyn DeviceCommunicator>> {
        match &self.medium {
            Medium::Device { communicator, .. } => communicator.as_ref(),
            Medium::Host => None,
        }
    }

    /// The label of the training step.
    pub(crate) fn step(&self) -> u64 {
        self.group.step()
    }

    /// How parameters are sharded over the ranks.
    pub(crate) fn shard_layout(&self) -> ShardLayout {
        ShardLayout {
            rank: self.group.rank(),
            world_size: self.group.world_size(),
        }
    }

    pub(crate) fn is_first(&self) -> bool {
        self.group.rank() == 0
    }

    /// Opens a step: its plan.
    pub(crate) fn take_plan(&self) -> Result<Arc<BucketPlan>, DdpError> {
        let mut plan = lock(&self.plan);
        match std::mem::replace(&mut plan.open, true) {
            true => Err(DdpError::StepOpen),
            false => Ok(plan.buckets.clone()),
        }
    }

    /// A buffer in host memory for each bucket of the plan; what they hold means nothing.
    pub(crate) fn take_buffers(&self) -> Result<Vec<HostBuffer>, DdpError> {
        let mut plan = lock(&self.plan);
        if let Some(buffers) = plan.buffers.take() {
            return Ok(buffers);
        }
        let buffers = plan.buckets.buckets().iter().map(|bucket| {
            let unsupported = || DdpError::UnsupportedType {
                parameter: bucket.slots()[0].path.clone(),
                dtype: format!("{:?}", bucket.dtype()),
            };
            HostBuffer::zeroed(bucket.dtype(), bucket.length_with_flags()).ok_or_else(unsupported)
        });
        buffers.collect()
    }

    /// Memory of earlier steps for the sums of logical shards.
    pub(crate) fn spare_sums(&self) -> SpareSums {
        lock(&self.plan).spare_sums.clone()
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
        plan.buckets = Arc::new(BucketPlan::in_order(&self.parameters, order, self.limits));
        plan.buffers = None;
        plan.spare_sums = SpareSums::default();
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

    /// The error of the parameter with this number, whose gradient cannot be read.
    pub(crate) fn unread(&self, number: usize, reason: String) -> DdpError {
        let parameter = self.parameters[number].path.clone();
        DdpError::Read { parameter, reason }
    }

    /// How `model` differs from the one that [`crate::Ddp::new`] was given.
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
