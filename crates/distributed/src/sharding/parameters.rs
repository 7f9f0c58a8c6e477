//! Parameters of which every rank updates its slices.

use std::sync::Arc;
use std::time::Duration;

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::ReduceOp;

use super::gather::{Chunk, Gatherer, chunks};
use super::gradients::GradientSlices;
use super::memory::HeldBytes;
use super::pass::{CutPass, Pass};
use super::prefetcher::Prefetcher;
use super::slicing::{self, Forms};
use super::whole::{Common, Whole};
use super::{ShardStage, cut::Cut};
use crate::bucket::BucketEntry;
use crate::ddp::Ddp;
use crate::error::DdpError;
use crate::placement::device_of_parameters;
use crate::synchronization::{GradientNorm, NORM_EPSILON, SyncedGradients};

/// This rank's slices of all trained parameters, in the order of registration, each under the identity of its
/// parameter: a module that an optimizer can update.
pub type Slices = Vec<Param<Tensor<1>>>;

/// The fewest chunks that a model is cut into that is large enough: with fewer, the first one, for which the
/// forward pass waits, is a large part of the whole.
const FEWEST_CHUNKS: usize = 16;

/// Chunks are not made smaller than this for the sake of their number, in bytes: latency would cost more
/// than overlap gains.
const SMALLEST_CHUNK: usize = 256 << 10;

/// Leaves each rank its share of the optimizer's state, of gradients and of parameters ([`ShardStage`]).
///
/// It stands beside the model, as [`Ddp`] does. After each step an optimizer updates this rank's slices
/// ([`update`](Self::update)); what the model has in place of its parameters then is on its way from the other
/// ranks, and is waited for where the forward pass first asks for it.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::AdamWConfig;
/// use burn::prelude::*;
/// use everburn_collectives::group::{GroupOptions, ProcessGroup};
/// use everburn_distributed::{Ddp, DdpConfig, ParameterShards, ShardStage};
///
/// let groups = ProcessGroup::over_threads(2, GroupOptions::default());
/// let ranks = groups.into_iter().map(|group| {
///     std::thread::spawn(move || -> Result<u64, everburn_distributed::DdpError> {
///         let device = Device::flex().autodiff();
///         let shard = Some(ShardStage::Parameters);
///         let config = DdpConfig { shard, ..DdpConfig::default() };
///         let (ddp, model) = Ddp::new(LinearConfig::new(4, 2).init(&device), group, config)?;
///         let mut optimizer = AdamWConfig::new().init();
///         let (mut shards, mut model) = ParameterShards::cut(model, &ddp, None)?;
///         for _ in 0..2 {
///             model = shards.open(model)?;
///             let step = ddp.begin(1)?;
///             let rows = Tensor::<2>::ones([1, 4], &device);
///             step.watch_last(&model, 1).forward(rows).mean().backward();
///             let synced = shards.average(step.finish_cut()?)?;
///             model = shards.update(model, synced.gradients, |slices, gradients| {
///                 optimizer.step(0.1, slices, gradients)
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
pub struct ParameterShards {
    ddp: Ddp,
    stage: ShardStage,
    max_gradient_norm: Option<f32>,
    /// Where the slices are that the optimizer works on; with autodiff.
    home: Device,
    /// The slices are kept between steps, and not cut from the model each time.
    keeps: bool,
    slices: Option<Slices>,
    forms: Forms,
    chunks: Arc<Vec<Chunk>>,
    common: Arc<Common>,
    gatherer: Gatherer,
    /// The model's parameters are there or on their way.
    open: bool,
    held: HeldBytes,
}

impl ParameterShards {
    /// Cuts the parameters of `model`, which `ddp` keeps equal, as [`DdpConfig::shard`](crate::DdpConfig::shard)
    /// says (or [`ShardStage::Optimizer`]). The slices, and with them the optimizer's state, are on the device
    /// `offload`, where one is given, and stay there; else where the model is. Every rank calls it.
    ///
    /// # Errors
    /// [`DdpError::Backend`] if the parameters are on several devices; [`DdpError::Collective`] if the exchange
    /// fails; [`DdpError::Read`] if a device does not give the numbers.
    pub fn cut<M: Module>(
        model: M,
        ddp: &Ddp,
        offload: Option<Device>,
    ) -> Result<(Self, M), DdpError> {
        let shared = ddp.shared();
        let device = device_of_parameters(&model).ok_or_else(|| DdpError::Backend {
            wanted: "--shard".to_string(),
            reason:
                "the parameters of the model are on several devices, and a rank has one of them"
                    .to_string(),
        })?;
        let group = ddp.group();
        let ranks: Vec<usize> = (0..group.world_size()).collect();
        let own = group.subgroup(&ranks)?;
        let own = own.unwrap_or_else(|| group.clone());
        let gatherer = Gatherer::start(own, shared.recorder().cloned())?;
        let parameters = shared.parameters();
        let bytes: usize = parameters.iter().map(BucketEntry::num_bytes).sum();
        let limits = shared.config().bucket_limits();
        let limit = (bytes / FEWEST_CHUNKS)
            .max(SMALLEST_CHUNK)
            .min(limits.others);
        let chunks = Arc::new(chunks(parameters, limits.first.min(limit), limit));
        let stage = shared.config().shard.unwrap_or(ShardStage::Optimizer);
        let common = Common::new(
            parameters.to_vec(),
            shared.cut(),
            chunks.clone(),
            gatherer.patience(),
        );
        let keeps = stage.cuts_parameters() || offload.is_some();
        let mut shards = Self {
            ddp: ddp.clone(),
            stage,
            max_gradient_norm: shared.config().max_gradient_norm,
            home: offload.unwrap_or(device).autodiff(),
            keeps,
            slices: None,
            forms: Forms::of(&model, shared.numbers()),
            chunks,
            common: Arc::new(common),
            gatherer,
            open: true,
            held: HeldBytes::default(),
        };
        if keeps {
            shards.slices = Some(shards.slices_of(&model)?);
        }
        let model = shards.close(model);
        Ok((shards, model))
    }

    /// What keeps the parameters equal that are cut.
    pub fn ddp(&self) -> &Ddp {
        &self.ddp
    }

    /// What is cut.
    pub fn stage(&self) -> ShardStage {
        self.stage
    }

    /// The model whose parameters are there or on their way: before a forward pass, and before anything else
    /// looks at them. Every rank calls it. Gives a model back as it is that has them already.
    ///
    /// # Errors
    /// [`DdpError::Gather`] if an earlier exchange has failed.
    pub fn open<M: Module>(&mut self, model: M) -> Result<M, DdpError> {
        self.check()?;
        match self.slices.clone() {
            Some(slices) if !self.open => {
                self.open = true;
                Ok(self.spread(model, &slices))
            }
            _ => Ok(model),
        }
    }

    /// The model without its parameters, of which this rank has slices: before a pass. Gives a model back as it
    /// is where each rank has all parameters.
    #[must_use]
    pub fn close<M: Module>(&mut self, model: M) -> M {
        if !self.stage.cuts_parameters() {
            return model;
        }
        self.open = false;
        self.forms
            .without_values(model, self.ddp.shared().numbers())
    }

    /// Begins a pass of a model that is not open, whose parameters are gathered as they are asked for: one for
    /// each [`Ddp::begin`], on every rank, those without samples too. Where segments of the model are
    /// recomputed in the backward pass, `twice` on all ranks. `None` where each rank has all parameters.
    ///
    /// # Errors
    /// [`DdpError::Gather`] if an earlier exchange has failed.
    pub fn pass(&self, twice: bool) -> Result<Option<CutPass>, DdpError> {
        self.check()?;
        let (Some(slices), false) = (&self.slices, self.open) else {
            return Ok(None);
        };
        let of = |number: &usize| slices[*number].val().without_autodiff();
        let chunks = self.chunks.iter();
        let slices = chunks.map(|chunk| chunk.numbers.iter().map(of).collect::<Vec<_>>());
        let prefetcher = Arc::new(Prefetcher::new(
            self.common.clone(),
            slices.collect(),
            twice,
        ));
        self.gatherer.follow(&prefetcher);
        let numbers = self.ddp.shared().numbers().clone();
        let pass = Arc::new(Pass::new(self.common.clone(), prefetcher, numbers));
        Ok(Some(CutPass { pass }))
    }

    /// This rank's slices of gradients that all ranks have whole.
    ///
    /// # Errors
    /// [`DdpError::Read`] if a device does not give the numbers.
    pub fn cut_gradients<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
    ) -> Result<GradientsParams, DdpError> {
        let (shared, home) = (self.ddp.shared(), self.home.clone().inner());
        let numbers = shared.numbers();
        let (cut, bytes) = slicing::cut_gradients(model, gradients, numbers, shared.cut(), &home)?;
        self.held.gradients = self.held.gradients.max(bytes);
        Ok(cut)
    }

    /// The gradients of a step, of this rank's slices: clipped by the norm over all ranks' ones, where that is
    /// asked for ([`DdpConfig::max_gradient_norm`](crate::DdpConfig::max_gradient_norm)). Every rank calls it.
    ///
    /// # Errors
    /// [`DdpError::GradientNotFinite`], on all ranks, if the norm is not a number; [`DdpError::Collective`] if
    /// the exchange fails.
    pub fn average(&mut self, slices: GradientSlices) -> Result<SyncedGradients, DdpError> {
        self.held.gradients = self.held.gradients.max(slices.num_bytes());
        let (mut norm, mut factor) = (None, 1.0);
        if let Some(max) = self.max_gradient_norm {
            let found = self.norm(&slices)?;
            factor = (f64::from(max) / (found + NORM_EPSILON)).min(1.0);
            norm = Some(GradientNorm::known(found));
        }
        let device = self.home.clone().inner();
        let mut gradients = GradientsParams::new();
        let parameters = self.ddp.parameters().iter();
        for (entry, slice) in parameters.zip(slices.slices) {
            let Some(slice) = slice else { continue };
            let length = slice.len();
            let data = slice.tensor_data(0..length, &[length], factor, None);
            let gradient = Tensor::<1>::from_data(data, (&device, entry.dtype));
            gradients.register(entry.id, gradient);
        }
        Ok(SyncedGradients {
            gradients,
            samples: slices.samples,
            norm,
            communication: slices.communication,
        })
    }

    /// The norm of all gradients together. All ranks add up the same numbers in the same order.
    fn norm(&self, slices: &GradientSlices) -> Result<f64, DdpError> {
        let squares = slices.slices.iter().map(|slice| match slice {
            Some(slice) => slice.sum_of_squares(0..slice.len()),
            None => 0.0,
        });
        let mut squares = squares.collect::<Vec<f64>>();
        let group = self.ddp.group();
        group.all_reduce_in_place(&mut squares, ReduceOp::Sum)?;
        match squares.iter().position(|squares| !squares.is_finite()) {
            Some(number) => Err(DdpError::GradientNotFinite {
                parameter: self.ddp.parameters()[number].path.clone(),
            }),
            None => Ok(squares.iter().sum::<f64>().sqrt()),
        }
    }

    /// Lets `step` update this rank's slices by their gradients, and begins to gather the others': after it
    /// `model` has the updated parameters, as soon as they are asked for ([`ShardStage::Parameters`]: as soon
    /// as it is [opened](Self::open)). Every rank calls it.
    ///
    /// # Errors
    /// [`DdpError::Gather`] and [`DdpError::Collective`] if the parameters that the gradients belong to had not
    /// been gathered: then nothing is updated.
    pub fn update<M: Module>(
        &mut self,
        model: M,
        gradients: GradientsParams,
        step: impl FnOnce(Slices, GradientsParams) -> Slices,
    ) -> Result<M, DdpError> {
        self.check()?;
        let slices = match self.slices.take() {
            Some(slices) => slices,
            None => self.slices_of(&model)?,
        };
        // Cutting has waited for parameters that nobody had asked for.
        self.check()?;
        let model = self.close(model);
        self.held.parameters = slicing::held_bytes(&model);
        let slices = step(slices, gradients);
        let model = match self.stage.cuts_parameters() {
            true => model,
            false => self.spread(model, &slices),
        };
        if self.keeps {
            self.held.parameters += slicing::bytes_of(&slices);
            self.slices = Some(slices);
        }
        Ok(model)
    }

    /// The model with all its parameters in place, of its own: at the end of a training. Every rank calls it.
    ///
    /// # Errors
    /// If parameters could not be gathered.
    pub fn settle<M: Module>(&mut self, model: M) -> Result<M, DdpError> {
        let model = self.open(model)?;
        slicing::wait_for_all(&model);
        self.check()?;
        Ok(model)
    }

    /// How long the training thread has stood still for parameters since this was last asked.
    pub fn take_waited(&self) -> Duration {
        self.common.take_waited()
    }

    /// Whether all that was asked for has come.
    ///
    /// # Errors
    /// Why it has not.
    pub fn check(&self) -> Result<(), DdpError> {
        match self.common.trouble() {
            Some(error) => {
                self.gatherer.abort(&error.to_string());
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// How many bytes this rank holds, of what is known here: not of the optimizer's state.
    pub fn held(&self) -> HeldBytes {
        HeldBytes {
            gradient_buckets: self.ddp.shared().gradient_buckets.peak(),
            gathered: self.common.gathered.peak(),
            ..self.held
        }
    }

    /// This rank's slice of a tensor that has a number for each of a parameter's.
    pub fn slice(&self, whole: &TensorData) -> TensorData {
        let (cut, size) = (self.cut_of_ranks(), whole.dtype().size());
        let bytes = cut.bytes(cut.rank, whole.as_bytes(), size);
        let length = bytes.len() / size;
        TensorData::from_bytes_vec(bytes, vec![length], whole.dtype())
    }

    fn cut_of_ranks(&self) -> Cut {
        self.ddp.shared().cut()
    }

    fn slices_of<M: Module>(&self, model: &M) -> Result<Slices, DdpError> {
        let shared = self.ddp.shared();
        let kept = self.keeps.then_some(&self.home);
        slicing::slices_of(model, shared.numbers(), shared.cut(), kept)
    }

    /// `model` with parameters that are on their way.
    fn spread<M: Module>(&self, model: M, slices: &Slices) -> M {
        let promises = self.chunks.iter().enumerate().map(|(number, chunk)| {
            let of = |number: &usize| slices[*number].val().without_autodiff();
            let own = chunk.numbers.iter().map(of).collect::<Vec<_>>();
            self.gatherer.gather(number, own)
        });
        let whole = Whole {
            promises: promises.collect(),
            common: self.common.clone(),
        };
        self.forms
            .with_whole(model, self.ddp.shared().numbers(), &whole)
    }
}
