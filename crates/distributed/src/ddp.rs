//! Distributed data parallelism: one replica of the model a rank.

mod reduction;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};

use burn::module::Module;
use burn::optim::GradientsParams;
use everburn_collectives::group::ProcessGroup;
use everburn_collectives::sync::lock;

pub(crate) use self::reduction::Reduction;
use self::reduction::{check_types, start_reducer, trained};
use crate::bucket::{BucketEntry, BucketPlan};
use crate::communication_hook::CommunicationHook;
use crate::config::DdpConfig;
use crate::device::DeviceCommunicator;
use crate::divergence::{Divergence, find_divergence};
use crate::error::DdpError;
use crate::initial_state::{InitialValues, begin_with, broadcast_state, compare_models};
use crate::placement::device_of_parameters;
use crate::replicas;
use crate::sharding::MemoryTracker;
use crate::shared::{Plan, Shared};
use crate::synchronization::{
    Communication, SpareSums, SyncedGradients, Synchronization, clipped_alone,
};
use crate::virtual_ranks::VirtualRanks;

/// Keeps the replicas of a model equal, one per rank.
///
/// It accompanies the model and does not wrap it, so parameter paths never change.
///
/// - [`Ddp::begin`] starts a step whose gradients travel while the backward pass continues.
/// - [`Ddp::sync_gradients`] averages gradients after the backward pass.
///
/// See the [crate's example](crate).
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Ddp, DdpConfig};
///
/// let model = LinearConfig::new(3, 1).init(&Device::flex().autodiff());
/// let alone = ProcessGroup::alone(GroupOptions::default());
/// let (ddp, model) = Ddp::new(model, alone, DdpConfig::default())?;
/// ddp.verify_replicas(&model)?;
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[doc(alias = "DistributedDataParallel")]
#[derive(Debug, Clone)]
pub struct Ddp {
    shared: Arc<Shared>,
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
    /// [`DdpError::Collective`] if a collective fails.
    pub fn new<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
    ) -> Result<(Self, M), DdpError> {
        Self::build(model, group, config, Reduction::Automatic, None)
    }

    /// As [`Ddp::new`], with gradients that stay on the device of the parameters and are added up by
    /// `communicator`. All ranks must hand in the same kind.
    ///
    /// ```
    /// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
    /// use std::sync::Arc;
    /// use burn::nn::LinearConfig;
    /// use burn::prelude::*;
    /// use everburn::collectives::group::{GroupOptions, ProcessGroup};
    /// use everburn::distributed::{Ddp, DdpConfig, HostCommunicator};
    ///
    /// let device = Device::flex().autodiff();
    /// let group = ProcessGroup::alone(GroupOptions::default());
    /// let communicator = HostCommunicator::start(ProcessGroup::alone(GroupOptions::default()))?;
    /// let model = LinearConfig::new(3, 1).init(&device);
    /// let (ddp, model) =
    ///     Ddp::with_communicator(model, group, DdpConfig::default(), Arc::new(communicator))?;
    /// let step = ddp.begin(2)?;
    /// let rows = Tensor::<2>::ones([2, 3], &device);
    /// step.with_hooks(&model, 2).forward(rows).mean().backward();
    /// assert_eq!(step.finish(&model)?.gradients.len(), 2);
    /// # Ok::<(), everburn_distributed::DdpError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Ddp::new`]; [`DdpError::Backend`] if the parameters are on several devices, or the
    /// configuration has a communication hook: for `fp16` and `bf16` there is
    /// [`HostCommunicator::with_hook`](crate::HostCommunicator::with_hook).
    pub fn with_communicator<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
        communicator: Arc<dyn DeviceCommunicator>,
    ) -> Result<(Self, M), DdpError> {
        Self::build(
            model,
            group,
            config,
            Reduction::Communicator(communicator),
            None,
        )
    }

    /// As [`Ddp::new`], with a communication hook of the caller's own in place of the
    /// configuration's. All ranks must hand in the same.
    ///
    /// # Errors
    /// As [`Ddp::new`].
    #[doc(alias = "register_comm_hook")]
    pub fn with_hook<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
        hook: Box<dyn CommunicationHook>,
    ) -> Result<(Self, M), DdpError> {
        Self::build(model, group, config, Reduction::Hook(hook), None)
    }

    /// As [`Ddp::new`], for ranks that keep their gradients to themselves, as in the local steps of an
    /// [`OuterLoop`](crate::OuterLoop): the model is made equal and compared, and nothing is ready to reduce gradients.
    ///
    /// # Errors
    /// As [`Ddp::new`].
    pub fn without_gradients<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
    ) -> Result<(Self, M), DdpError> {
        Self::build(model, group, config, Reduction::Nothing, None)
    }

    /// One rank whose gradients stay on their device, as on a GPU.
    #[cfg(test)]
    pub(crate) fn alone_on_device<M: Module>(
        model: M,
        config: DdpConfig,
    ) -> Result<(Self, M), DdpError> {
        let group = ProcessGroup::alone(everburn_collectives::group::GroupOptions::default());
        Self::build(model, group, config, Reduction::Alone, None)
    }

    pub(crate) fn build<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
        reduction: Reduction,
        values: Option<Arc<dyn InitialValues>>,
    ) -> Result<(Self, M), DdpError> {
        config.validate()?;
        let tensors = replicas::describe(&model);
        let is_alone = group.world_size() == 1;
        let state = match is_alone || values.is_some() {
            true => Vec::new(),
            false => replicas::read(&model)?,
        };
        let run = format!("{config:?} {reduction:?}");
        let are_equal = compare_models(&group, &tensors, &run, &state)?;
        let were_equal = are_equal && values.is_none();
        let model = match &values {
            None if is_alone => model,
            None if were_equal => {
                drop(state);
                replicas::tie(model)
            }
            None => broadcast_state(model, state, &group, config.bucket_bytes)?,
            Some(values) => begin_with(model, &group, config.bucket_bytes, &tensors, &**values)?,
        };
        let (parameters, tied) = trained(tensors);
        check_types(&parameters, reduction.is_hooked(&config))?;
        let reduces = !matches!(reduction, Reduction::Nothing);
        let (medium, hook) = reduction.medium(device_of_parameters(&model), &group, &config)?;
        let reducer = match reduces {
            true => start_reducer(&group, hook, &medium)?,
            false => None,
        };
        let bytes = parameters.iter().map(BucketEntry::num_bytes).sum();
        let limits = config.bucket_limits().for_model(bytes);
        let numbers = parameters.iter().enumerate();
        let shared = Shared {
            numbers: numbers.map(|(number, entry)| (entry.id, number)).collect(),
            plan: Mutex::new(Plan {
                buckets: Arc::new(BucketPlan::in_reverse(&parameters, limits)),
                buffers: None,
                spare_sums: SpareSums::default(),
                ordered: reducer.is_none(),
                used: None,
                open: false,
                samples: 0,
            }),
            group,
            config,
            limits,
            parameters,
            tied,
            finished: AtomicUsize::new(0),
            reducer,
            medium,
            gradient_buckets: MemoryTracker::default(),
            recorder: OnceLock::new(),
            initial: Mutex::new(values),
        };
        let ddp = Self {
            shared: Arc::new(shared),
        };
        if !were_equal {
            ddp.verify_first_values(&model)?;
        }
        Ok((ddp, model))
    }

    /// The process group over which the replicas are kept equal.
    pub fn group(&self) -> &ProcessGroup {
        &self.shared.group
    }

    /// The parameters whose gradients are synchronized, in order of registration.
    pub fn parameters(&self) -> &[BucketEntry] {
        &self.shared.parameters
    }

    /// Which gradients travel together, at present.
    pub fn plan(&self) -> Arc<BucketPlan> {
        lock(&self.shared.plan).buckets.clone()
    }

    /// Whether gradients go anywhere: `false` [without gradients](Self::without_gradients), and for a rank that is alone
    /// unless it was given a [`DeviceCommunicator`].
    pub fn synchronizes_gradients(&self) -> bool {
        self.shared.reducer.is_some() || self.shared.communicator().is_some()
    }

    /// Waits until the collectives on devices are over there, so that what was computed with it counts:
    /// before a checkpoint. Where gradients are in host memory, they have been waited for.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if one has failed.
    pub fn settle(&self) -> Result<(), DdpError> {
        match self.shared.communicator() {
            Some(communicator) => communicator.settle(),
            None => Ok(()),
        }
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

    /// Begins a step over logical shards: the mean gradients then have the same bits on any number of
    /// ranks. The own ones of this rank have `samples` each, of `all` samples of all ranks.
    ///
    /// Gradients are added up as they are: what [`DdpConfig::communication`] asks for is for other steps.
    ///
    /// ```
    /// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
    /// use burn::nn::LinearConfig;
    /// use burn::prelude::*;
    /// use everburn::collectives::group::{GroupOptions, ProcessGroup};
    /// use everburn::distributed::{Ddp, DdpConfig, VirtualRanks};
    ///
    /// let device = Device::flex().autodiff();
    /// let group = ProcessGroup::alone(GroupOptions::default());
    /// let model = LinearConfig::new(3, 1).init(&device);
    /// let (ddp, model) = Ddp::new(model, group, DdpConfig::default())?;
    /// let ranks = VirtualRanks::new(2, 0, 1).unwrap();
    /// let step = ddp.begin_virtual(ranks, &[2, 1], 3)?;
    /// for (own, samples) in [2, 1].into_iter().enumerate() {
    ///     let rows = Tensor::<2>::ones([samples, 3], &device);
    ///     step.with_hooks_virtual(&model, own).forward(rows).mean().backward();
    /// }
    /// assert_eq!(step.finish(&model)?.samples, 3);
    /// # Ok::<(), everburn_distributed::DdpError>(())
    /// ```
    ///
    /// # Errors
    /// [`DdpError::StepOpen`] if the step before it has not been finished or dropped;
    /// [`DdpError::MicroBatches`] if there are not as many numbers as own logical shards.
    pub fn begin_virtual(
        &self,
        ranks: VirtualRanks,
        samples: &[usize],
        all: usize,
    ) -> Result<Synchronization, DdpError> {
        Synchronization::begin_virtual(self, ranks, samples, all)
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
        let config = &self.shared.config;
        let is_alone = !self.synchronizes_gradients() && samples > 0;
        match config.max_gradient_norm {
            None if is_alone => {
                return Ok(SyncedGradients {
                    gradients,
                    samples: samples as u64,
                    norm: None,
                    communication: Communication::default(),
                });
            }
            Some(max) if is_alone && self.shared.is_in_host_memory() => {
                return clipped_alone(model, gradients, samples, max, &self.shared);
            }
            _ => {}
        }
        let mut step = self.begin(samples)?;
        if samples > 0 {
            step.hand_in(model, gradients, samples);
        }
        step.finish(model)
    }

    /// Makes the places of tied weights equal again: Burn's optimizers change only the first place of a
    /// parameter that a model holds more than once. Call it after each optimizer step:
    /// `model = ddp.tie(optimizer.step(rate, model, gradients))`. A model without tied weights comes back unchanged. A
    /// loop that forgets it gets [`DdpError::Untied`] from its second step.
    #[must_use]
    pub fn tie<M: Module>(&self, model: M) -> M {
        if self.shared.tied {
            replicas::tie(model)
        } else {
            model
        }
    }

    /// Compares the trained parameters of all ranks by hash, and returns the ranks that differ from most
    /// ranks; `None` where all are equal. Every rank calls it.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if a collective fails; [`DdpError::Read`] if a device does not give the
    /// numbers.
    pub fn find_divergence<M: Module>(&self, model: &M) -> Result<Option<Divergence>, DdpError> {
        if self.group().world_size() == 1 {
            return Ok(None);
        }
        find_divergence(model, self.group())
    }

    /// Checks by hash that every rank holds the same parameters and buffers.
    ///
    /// # Errors
    /// [`DdpError::Diverged`], on every rank, naming the first rank and parameter that differ from
    /// rank 0's; [`DdpError::Collective`] if a collective fails.
    pub fn verify_replicas<M: Module>(&self, model: &M) -> Result<(), DdpError> {
        if self.group().world_size() == 1 {
            return Ok(());
        }
        replicas::compare(&replicas::read(model)?, self.group())
    }
}
