//! Sharded parameters: each rank updates its local shards.

mod averaging;

use std::sync::Arc;
use std::time::Duration;

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::sync::lock;

use super::device_gather::DeviceChunk;
use super::gather::{Chunk, Gatherer, chunks};
use super::module_shards::{self, ParamMappers};
use super::pass::{Pass, ShardedPass};
use super::pending_parameters::{GatherContext, PendingChunk, PendingParameters};
use super::prefetcher::Prefetcher;
use super::{HeldBytes, ShardStage, layout::ShardLayout};
use crate::bucket::BucketEntry;
use crate::ddp::Ddp;
use crate::device::DeviceCommunicator;
use crate::error::DdpError;
use crate::gradient::moved;
use crate::placement::device_of_parameters;
use crate::worker_timeout::WorkerTimeout;

/// This rank's shards of all trained parameters, in the order of registration, each with its parameter's id: a
/// module that an optimizer can update.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::LocalShards;
///
/// /// How many numbers the optimizer of this rank updates.
/// fn numbers(shards: &LocalShards) -> usize {
///     shards.iter().map(|shard| shard.val().dims()[0]).sum()
/// }
/// ```
pub type LocalShards = Vec<Param<Tensor<1>>>;

/// The fewest chunks of a large model: with fewer, the first one, for which the forward pass waits, is a large part of
/// the model.
const FEWEST_CHUNKS: usize = 16;

/// The smallest chunk in bytes, unless the model is smaller: below it, latency costs more than overlap gains.
const SMALLEST_CHUNK: usize = 256 << 10;

/// Shards optimizer state, gradients and parameters over the ranks ([`ShardStage`]).
///
/// It accompanies the model, as [`Ddp`] does. After each step an optimizer updates this rank's shards
/// ([`update`](Self::update)), and the model's parameters are gathered from all ranks; the forward pass waits for each
/// where it first uses it.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::optim::AdamWConfig;
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Ddp, DdpConfig, ParameterShards, ShardStage};
///
/// let groups = ProcessGroup::over_threads(2, GroupOptions::default());
/// let ranks = groups.into_iter().map(|group| {
///     std::thread::spawn(move || -> Result<u64, everburn::distributed::DdpError> {
///         let device = Device::flex().autodiff();
///         let shard = Some(ShardStage::Parameters);
///         let config = DdpConfig { shard, ..DdpConfig::default() };
///         let (ddp, model) = Ddp::new(LinearConfig::new(4, 2).init(&device), group, config)?;
///         let mut optimizer = AdamWConfig::new().init();
///         let (mut shards, mut model) = ParameterShards::new(model, &ddp, None)?;
///         for _ in 0..2 {
///             model = shards.open(model)?;
///             let step = ddp.begin(1)?;
///             let rows = Tensor::<2>::ones([1, 4], &device);
///             step.with_hooks(&model, 1).forward(rows).mean().backward();
///             let synced = shards.average(step.finish_sharded()?)?;
///             model = shards.update(model, synced.gradients, |local, gradients| {
///                 optimizer.step(0.1, local, gradients)
///             })?;
///         }
///         let model = shards.settle(model)?;
///         ddp.verify_replicas(&model)?;
///         Ok(shards.held().parameters)
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap()?, (4 * 2 + 2) / 2 * 4);
/// }
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[doc(alias = "ZeroRedundancyOptimizer")]
#[doc(alias = "FullyShardedDataParallel")]
pub struct ParameterShards {
    ddp: Ddp,
    stage: ShardStage,
    /// The device of the shards that the optimizer updates; with autodiff.
    home: Device,
    /// The shards are kept between steps, not sliced from the model each time.
    keeps: bool,
    local_shards: Option<LocalShards>,
    mappers: ParamMappers,
    chunks: Arc<Vec<Chunk>>,
    context: Arc<GatherContext>,
    gathers: Gathers,
    /// The model's parameters are gathered or being gathered.
    open: bool,
    held: HeldBytes,
}

/// Who gathers full parameters from shards.
enum Gathers {
    /// A thread, in host memory.
    Thread(Gatherer),
    /// A communicator, on the device of the model.
    Device(Arc<dyn DeviceCommunicator>, Device),
}

impl ParameterShards {
    /// Shards the parameters of `model`, which `ddp` keeps equal, by [`DdpConfig::shard`](crate::DdpConfig::shard)
    /// (default: [`ShardStage::Optimizer`]). The shards and the optimizer state live on the device `offload` if given,
    /// otherwise on the model's. Every rank calls it.
    ///
    /// # Errors
    /// [`DdpError::Backend`] if the parameters are on several devices; [`DdpError::Collective`] if the exchange
    /// fails; [`DdpError::Read`] if a tensor cannot be read.
    pub fn new<M: Module>(
        model: M,
        ddp: &Ddp,
        offload: Option<Device>,
    ) -> Result<(Self, M), DdpError> {
        let shared = ddp.shared();
        let device = device_of_parameters(&model).ok_or_else(|| DdpError::Backend {
            wanted: "`training.ddp.shard`".to_string(),
            reason: "the parameters of the model are on several devices, and a rank has one"
                .to_string(),
        })?;
        let stage = shared.config.shard.unwrap_or(ShardStage::Optimizer);
        let communicator = shared
            .communicator()
            .filter(|communicator| communicator.has_collectives() && !stage.shards_parameters());
        let group = ddp.group();
        let gathers = match communicator {
            Some(communicator) => Gathers::Device(communicator.clone(), device.clone()),
            None => {
                let own = group.duplicate("parameters")?;
                Gathers::Thread(Gatherer::start(own, shared.recorder().cloned())?)
            }
        };
        let parameters = &shared.parameters;
        let bytes: usize = parameters.iter().map(BucketEntry::num_bytes).sum();
        let limits = shared.config.bucket_limits();
        let limit = (bytes / FEWEST_CHUNKS)
            .max(SMALLEST_CHUNK)
            .min(limits.others);
        let chunks = Arc::new(chunks(parameters, limits.first.min(limit), limit));
        let context = GatherContext::new(
            parameters.to_vec(),
            shared.shard_layout(),
            chunks.clone(),
            WorkerTimeout::with(group),
        );
        let keeps = stage.shards_parameters() || offload.is_some();
        let mut shards = Self {
            ddp: ddp.clone(),
            stage,
            home: offload.unwrap_or(device).autodiff(),
            keeps,
            local_shards: None,
            mappers: ParamMappers::of(&model, &shared.numbers),
            chunks,
            context: Arc::new(context),
            gathers,
            open: true,
            held: HeldBytes::default(),
        };
        if keeps {
            shards.local_shards = Some(shards.local_shards_of(&model)?);
        }
        let model = shards.close(model);
        Ok((shards, model))
    }

    /// The [`Ddp`] that keeps the parameters equal.
    pub fn ddp(&self) -> &Ddp {
        &self.ddp
    }

    /// The sharding stage.
    pub fn stage(&self) -> ShardStage {
        self.stage
    }

    /// The model with its parameters gathered or being gathered: call it before a forward pass, and before anything
    /// else reads them. Every rank calls it. An open model is returned as it is.
    ///
    /// # Errors
    /// [`DdpError::Gather`] if an earlier gather has failed.
    pub fn open<M: Module>(&mut self, model: M) -> Result<M, DdpError> {
        self.check()?;
        match self.local_shards.clone() {
            Some(local_shards) if !self.open => {
                self.open = true;
                self.with_pending_parameters(model, &local_shards)
            }
            _ => Ok(model),
        }
    }

    /// The model without its parameters, of which this rank keeps shards: call it before a pass. Without parameter
    /// sharding the model is returned as it is.
    #[must_use]
    pub fn close<M: Module>(&mut self, model: M) -> M {
        if !self.stage.shards_parameters() {
            return model;
        }
        self.open = false;
        self.mappers
            .replaced(model, &self.ddp.shared().numbers, None)
    }

    /// Begins a pass of a closed model, whose parameters are gathered as they are used: one per [`Ddp::begin`], on
    /// every rank, also those without samples. `twice`, on all ranks, if the backward pass recomputes segments of the
    /// model. `None` without parameter sharding.
    ///
    /// # Errors
    /// [`DdpError::Gather`] if an earlier gather has failed.
    pub fn pass(&self, twice: bool) -> Result<Option<ShardedPass>, DdpError> {
        self.check()?;
        let (Some(local_shards), false, Gathers::Thread(gatherer)) =
            (&self.local_shards, self.open, &self.gathers)
        else {
            return Ok(None);
        };
        let of = |number: &usize| local_shards[*number].val().without_autodiff();
        let chunks = self.chunks.iter();
        let local_shards = chunks.map(|chunk| chunk.numbers.iter().map(of).collect::<Vec<_>>());
        let prefetcher = Arc::new(Prefetcher::new(
            self.context.clone(),
            local_shards.collect(),
            twice,
        ));
        gatherer.follow(&prefetcher);
        let numbers = self.ddp.shared().numbers.clone();
        let pass = Arc::new(Pass::new(self.context.clone(), prefetcher, numbers));
        Ok(Some(ShardedPass { pass }))
    }

    /// Lets `step` update this rank's shards with their gradients, and begins to gather the updated parameters into
    /// `model` ([`ShardStage::Parameters`]: once it is [opened](Self::open)). Every rank calls it.
    ///
    /// # Errors
    /// [`DdpError::Gather`] and [`DdpError::Collective`] if the parameters that the gradients belong to had not
    /// been gathered: then nothing is updated. [`DdpError::DeviceMemory`] if the updated shards cannot be gathered on their
    /// device: the other ranks fail then, too.
    pub fn update<M: Module>(
        &mut self,
        model: M,
        gradients: GradientsParams,
        step: impl FnOnce(LocalShards, GradientsParams) -> LocalShards,
    ) -> Result<M, DdpError> {
        self.check()?;
        let local_shards = match self.local_shards.take() {
            Some(local_shards) => local_shards,
            None => self.local_shards_of(&model)?,
        };
        // Taking shards of the model has waited for parameters not used yet.
        self.check()?;
        let model = self.close(model);
        self.held.parameters = module_shards::held_bytes(&model);
        let local_shards = step(local_shards, gradients);
        let model = match self.stage.shards_parameters() {
            true => model,
            false => self.with_pending_parameters(model, &local_shards)?,
        };
        if self.keeps {
            self.held.parameters += module_shards::bytes_of(&local_shards);
            self.local_shards = Some(local_shards);
        }
        Ok(model)
    }

    /// The model with all its parameters gathered: at the end of a training. Every rank calls it.
    ///
    /// # Errors
    /// If parameters could not be gathered.
    pub fn settle<M: Module>(&mut self, model: M) -> Result<M, DdpError> {
        let model = self.open(model)?;
        module_shards::wait_for_all(&model);
        self.check()?;
        if let Gathers::Device(communicator, _) = &self.gathers {
            // The device has waited for parameters, and not this thread.
            communicator.settle()?;
        }
        Ok(model)
    }

    /// How long the training thread has waited for parameters since the last call.
    pub fn take_waited(&self) -> Duration {
        self.context.take_waited()
    }

    /// Checks that no gather has failed.
    ///
    /// # Errors
    /// The error of the failed gather.
    pub fn check(&self) -> Result<(), DdpError> {
        let failure = self.context.failure();
        let reason = failure.as_ref().map(DdpError::to_string);
        match (&self.gathers, &reason) {
            (Gathers::Thread(gatherer), Some(reason)) => gatherer.abort(reason),
            (Gathers::Device(communicator, _), Some(reason)) => communicator.abort(reason),
            (Gathers::Device(communicator, _), None) => communicator.check()?,
            (Gathers::Thread(_), None) => {}
        }
        failure.map_or(Ok(()), Err)
    }

    /// How many bytes this rank holds, without the optimizer state.
    pub fn held(&self) -> HeldBytes {
        HeldBytes {
            gradient_buckets: self.ddp.shared().gradient_buckets.peak(),
            gathered: self.context.gathered.peak(),
            ..self.held
        }
    }

    /// This rank's shard of `full`, a tensor of a parameter's shape.
    pub fn local_shard(&self, full: &TensorData) -> TensorData {
        let (layout, size) = (self.layout(), full.dtype().size());
        let bytes = layout.bytes(layout.rank, full.as_bytes(), size);
        let length = bytes.len() / size;
        TensorData::from_bytes_vec(bytes, vec![length], full.dtype())
    }

    fn layout(&self) -> ShardLayout {
        self.ddp.shared().shard_layout()
    }

    fn local_shards_of<M: Module>(&self, model: &M) -> Result<LocalShards, DdpError> {
        let shared = self.ddp.shared();
        let kept = self.keeps.then_some(&self.home);
        let layout = shared.shard_layout();
        let values = lock(&shared.initial).take();
        let known = match &values {
            None => Vec::new(),
            Some(values) => {
                let parameters = &shared.parameters;
                let values = &**values;
                module_shards::initial_shards(
                    parameters,
                    layout,
                    &self.home,
                    values,
                    self.ddp.group(),
                )?
            }
        };
        module_shards::local_shards(model, &shared.numbers, layout, kept, known)
    }

    /// `model` with parameters that are being gathered. Where this rank cannot begin that, it aborts the communicator: it would
    /// begin the next one while the others are still at this.
    fn with_pending_parameters<M: Module>(
        &self,
        model: M,
        local_shards: &LocalShards,
    ) -> Result<M, DdpError> {
        let chunks = self.chunks.iter().enumerate().map(|(number, chunk)| {
            let of = |number: &usize| local_shards[*number].val().without_autodiff();
            let own = chunk.numbers.iter().map(of);
            Ok(match &self.gathers {
                Gathers::Device(communicator, device) => {
                    let own = own.map(|shard| moved(shard, device)).collect();
                    let begun = DeviceChunk::begin(&**communicator, chunk, own);
                    let begun = begun.inspect_err(|error| communicator.abort(&error.to_string()));
                    PendingChunk::Device(Arc::new(begun?))
                }
                Gathers::Thread(gatherer) => {
                    PendingChunk::Host(gatherer.gather(number, own.collect()))
                }
            })
        });
        let pending = PendingParameters {
            chunks: chunks.collect::<Result<Vec<_>, DdpError>>()?,
            context: self.context.clone(),
        };
        let numbers = &self.ddp.shared().numbers;
        Ok(self.mappers.replaced(model, numbers, Some(&pending)))
    }
}
