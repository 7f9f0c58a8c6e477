//! Ranks that take many steps by themselves, and then become equal: local SGD and DiLoCo.

mod config;
mod fragment;
mod parameters;
mod quantized;
mod state;
mod streaming;
mod sum;

use std::ops::Range;
use std::time::Instant;

use burn::module::Module;
use everburn_collectives::group::{ProcessGroup, ReduceOp};

pub use self::config::{OuterCompression, OuterConfig, OuterOptimizer};
use self::fragment::{Fragment, cut};
use self::parameters::Parameters;
pub use self::streaming::{FragmentInFlight, OuterStream};
use self::sum::sum;
use crate::buffers::Buffers;
use crate::config::BufferSync;
use crate::divergence::{Divergence, Extra, find_divergence_with};
use crate::error::DdpError;
use crate::synchronization::Communication;

/// What ranks have in common that take steps by themselves: the parameters from which all began, and what an
/// optimizer of its own remembers of how they moved.
///
/// The algorithm is DiLoCo (Douillard et al. 2023, arXiv 2311.08105). All ranks begin with the parameters
/// `b`. Each takes `H` steps with an optimizer and samples of its own, the *inner* ones, without a word to
/// the others, and comes to parameters `p`. In an *outer* step the ranks average their differences,
/// `d = sum of w (b - p)` with `w` a rank's share of all samples in between, and all continue from
///
/// ```text
///   v := momentum v + d
///   b := b - rate (d + momentum v)
/// ```
///
/// With [`OuterOptimizer::Average`] it is local SGD (Stich 2019): `b := b - d`, the weighted mean of all `p`.
/// Running statistics become their weighted mean, or rank 0's ([`BufferSync`]). A rank that has made fewer
/// steps, or none, takes part with the samples that it had.
///
/// An outer step takes one all-reduce of the trained parameters, 4 bytes each, in place of `H` all-reduces of
/// gradients; with [`OuterCompression::Int8`] it takes about a quarter of that. All ranks then hold the same
/// bits, which [`OuterLoop::find_divergence`] compares.
///
/// With [`OuterConfig::fragments`] the ranks need not wait (Streaming DiLoCo, Douillard et al. 2025, arXiv 2501.18512):
/// [`OuterLoop::begin`] sends the differences of one fragment of the model, and [`OuterLoop::collect`] adds to the model,
/// some steps later, by how much the fragment's common parameters have moved. What the rank has learnt meanwhile stays and
/// counts for the fragment's next outer step. An outer step as above makes all fragments equal.
///
/// It accompanies the model and keeps the common parameters, and with momentum or compression as much again
/// for each of them, in the host's memory.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Ddp, DdpConfig, DdpError, OuterConfig, OuterLoop};
///
/// let groups = ProcessGroup::over_threads(2, GroupOptions::default());
/// let ranks = groups.into_iter().map(|group| {
///     std::thread::spawn(move || -> Result<f32, DdpError> {
///         let device = Device::flex().autodiff();
///         let model = LinearConfig::new(3, 1).init(&device);
///         let (_, mut model) = Ddp::new(model, group.clone(), DdpConfig::default())?;
///         let mut outer = OuterLoop::new(&model, group.clone(), OuterConfig::default())?;
///         let mut optimizer = SgdConfig::new().init();
///
///         let samples = 1 + group.rank();
///         for _ in 0..2 {
///             for _ in 0..50 {
///                 let loss = model.forward(Tensor::<2>::ones([samples, 3], &device)).mean();
///                 let gradients = GradientsParams::from_grads(loss.backward(), &model);
///                 model = optimizer.step(0.001, model, gradients);
///             }
///             model = outer.step(model, 50 * samples as u64)?.0;
///             assert_eq!(outer.find_divergence(&model)?, None);
///         }
///         Ok(model.weight.val().sum().into_scalar::<f32>())
///     })
/// });
/// let sums = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap());
/// let sums = sums.collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(sums[0], sums[1]);
/// # Ok::<(), DdpError>(())
/// ```
#[derive(Debug, Clone)]
pub struct OuterLoop {
    group: ProcessGroup,
    config: OuterConfig,
    buffers: BufferSync,
    parameters: Parameters,
    /// The parameters from which all ranks began.
    base: Vec<f32>,
    /// What the outer optimizer remembers; empty where it remembers nothing.
    velocity: Vec<f32>,
    /// What this rank has rounded away and still owes; empty where nothing is rounded.
    residual: Vec<f32>,
    /// The parts of the row that are reduced in turn, one where none are.
    fragments: Vec<Fragment>,
    /// Which fragment is the next.
    next: usize,
}

/// What an outer step will have changed, once it is [committed](OuterLoop::commit).
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::module::Module;
/// use everburn::distributed::{DdpError, OuterLoop, OuterStep};
///
/// /// An outer step of two ranks that have had 50 samples each.
/// fn step<M: Module>(outer: &mut OuterLoop, model: M) -> Result<M, DdpError> {
///     let step: OuterStep = outer.prepare(&model, 50, 100)?;
///     println!("{} bytes sent", step.communication.bytes);
///     outer.commit(model, step)
/// }
/// ```
#[derive(Debug)]
pub struct OuterStep {
    base: Vec<f32>,
    velocity: Vec<f32>,
    residual: Vec<f32>,
    buffers: Option<Buffers>,
    /// What the collectives have cost this rank.
    pub communication: Communication,
}

impl OuterLoop {
    /// Begins with the parameters of `model`, which are the same on all ranks of `group`.
    ///
    /// # Errors
    /// [`DdpError::Config`] if a number is out of its range; [`DdpError::UnsupportedType`] if a trained
    /// parameter is neither of `f32` nor of a half type; [`DdpError::NothingToTrain`] if there is none;
    /// [`DdpError::Read`] if a device does not give the numbers.
    pub fn new<M: Module>(
        model: &M,
        group: ProcessGroup,
        config: OuterConfig,
    ) -> Result<Self, DdpError> {
        config.validate()?;
        let (parameters, base) = Parameters::of(model)?;
        if parameters.slots().is_empty() {
            return Err(DdpError::NothingToTrain);
        }
        let zeros = |wanted: bool| match wanted {
            true => vec![0.0; base.len()],
            false => Vec::new(),
        };
        Ok(Self {
            velocity: zeros(config.kept() > 0.0),
            residual: zeros(config.compression.bits().is_some()),
            fragments: cut(base.len(), config.fragments.unwrap_or(1)),
            next: 0,
            group,
            config,
            buffers: BufferSync::Average,
            parameters,
            base,
        })
    }

    /// What becomes of running statistics; without this, they are averaged.
    #[must_use]
    pub fn with_buffers(self, buffers: BufferSync) -> Self {
        Self { buffers, ..self }
    }

    /// The same with another group, whose ranks all have the parameters of `model` now.
    ///
    /// # Errors
    /// [`DdpError::OtherModel`] if `model` has others; [`DdpError::Read`] if a device does not give the
    /// numbers.
    pub fn restart<M: Module>(&mut self, model: &M, group: ProcessGroup) -> Result<(), DdpError> {
        self.base = self.parameters.read(model)?;
        self.group = group;
        self.forget_samples();
        Ok(())
    }

    /// How many numbers all trained parameters have.
    pub fn num_parameters(&self) -> usize {
        self.base.len()
    }

    /// The trained parameters of `model`, in one row.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn read<M: Module>(&self, model: &M) -> Result<Vec<f32>, DdpError> {
        self.parameters.read(model)
    }

    /// `model` with the trained parameters that [`read`](Self::read) gave.
    ///
    /// # Panics
    /// Panics if these are too few.
    #[must_use]
    pub fn write<M: Module>(&self, model: M, values: &[f32]) -> M {
        self.parameters.write(model, values)
    }

    /// Takes an outer step, with a model that has learnt from `samples` samples since the last one. Every
    /// rank calls it. It yields the model from which all continue, and what the collectives have cost.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare); [`DdpError::NoSamples`] if no rank had a sample.
    pub fn step<M: Module>(
        &mut self,
        model: M,
        samples: u64,
    ) -> Result<(M, Communication), DdpError> {
        let mut all = [samples as i64];
        self.group.all_reduce_in_place(&mut all, ReduceOp::Sum)?;
        let step = self.prepare(&model, samples, all[0] as u64)?;
        let communication = step.communication;
        Ok((self.commit(model, step)?, communication))
    }

    /// The part of an outer step that can fail of others: nothing is changed yet. `samples` are those that
    /// `model` has learnt from since the last one, of `all` of all ranks.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if a collective fails; [`DdpError::NoSamples`] if no fragment has learnt from any;
    /// [`DdpError::OtherModel`] if `model` has other parameters; [`DdpError::Read`] if a device does not give
    /// the numbers.
    pub fn prepare<M: Module>(
        &self,
        model: &M,
        samples: u64,
        all: u64,
    ) -> Result<OuterStep, DdpError> {
        let shares = self.shares(samples, all)?;
        let mut differences = self.parameters.read(model)?;
        for (Fragment { range, .. }, share) in self.fragments.iter().zip(&shares) {
            let share = share.unwrap_or(0.0);
            let values = differences[range.clone()].iter_mut();
            for (value, base) in values.zip(&self.base[range.clone()]) {
                *value = (base - *value) * share as f32;
            }
        }
        let start = Instant::now();
        let compression = self.config.compression;
        let (residual, bytes) = sum(
            &mut differences,
            self.residual.clone(),
            compression,
            &self.group,
        )?;
        let share = match all {
            // All samples were before the last fragment.
            0 => 1.0 / self.group.world_size() as f64,
            all => samples as f64 / all as f64,
        };
        let buffers = self.synchronize_buffers(model, share)?;
        let busy = start.elapsed();
        let (mut base, mut velocity) = self.descend(0..differences.len(), &differences);
        for (Fragment { range, .. }, share) in self.fragments.iter().zip(&shares) {
            if share.is_some() {
                continue;
            }
            // Momentum alone must not move what nobody has trained.
            base[range.clone()].copy_from_slice(&self.base[range.clone()]);
            if !velocity.is_empty() {
                velocity[range.clone()].copy_from_slice(&self.velocity[range.clone()]);
            }
        }
        Ok(OuterStep {
            base,
            velocity,
            residual,
            buffers,
            communication: Communication {
                exposed: busy,
                busy,
                bytes,
            },
        })
    }

    /// Makes an outer step count, which returned `model`: the model from which all ranks continue.
    ///
    /// # Errors
    /// [`DdpError::Read`] if a device does not give numbers back.
    pub fn commit<M: Module>(&mut self, model: M, step: OuterStep) -> Result<M, DdpError> {
        let model = self.parameters.write(model, &step.base);
        let model = match &step.buffers {
            Some(buffers) => buffers.write(model),
            None => model,
        };
        // What the model rounds away must not look like a step of this rank.
        self.base = match self.parameters.rounds() {
            true => self.parameters.read(&model)?,
            false => step.base,
        };
        (self.velocity, self.residual) = (step.velocity, step.residual);
        self.forget_samples();
        Ok(model)
    }

    /// This rank's share of the samples of all ranks since the last outer step of each fragment; `None` where there were none.
    fn shares(&self, samples: u64, all: u64) -> Result<Vec<Option<f64>>, DdpError> {
        let own = self.fragments.iter();
        let own = own.map(|it| it.samples + samples).collect::<Vec<_>>();
        let mut totals = own.iter().map(|own| *own as i64).collect::<Vec<_>>();
        match self.streams() {
            true => self.group.all_reduce_in_place(&mut totals, ReduceOp::Sum)?,
            // The caller knows it.
            false => totals.fill(all as i64),
        }
        if totals.iter().all(|total| *total == 0) {
            return Err(DdpError::NoSamples);
        }
        let shares = own.iter().zip(totals);
        Ok(shares
            .map(|(own, total)| (total > 0).then(|| *own as f64 / total as f64))
            .collect())
    }

    /// All fragments begin anew.
    fn forget_samples(&mut self) {
        self.next = 0;
        for fragment in &mut self.fragments {
            fragment.samples = 0;
        }
    }

    /// Compares the parameters of `model` and what the outer optimizer remembers over all ranks, after an
    /// outer step, and returns the ranks that differ from most; `None` where all are equal. Every
    /// rank calls it.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if a collective fails; [`DdpError::Read`] if a device does not give the
    /// numbers.
    pub fn find_divergence<M: Module>(&self, model: &M) -> Result<Option<Divergence>, DdpError> {
        if self.group.world_size() == 1 {
            return Ok(None);
        }
        let velocity = Extra::of("momentum of the outer optimizer", &self.velocity);
        find_divergence_with(model, &[velocity], &self.group)
    }

    /// The next parameters of a part of the row, and what the optimizer then remembers of them.
    fn descend(&self, range: Range<usize>, differences: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (rate, kept) = (self.config.rate() as f32, self.config.kept() as f32);
        let pairs = self.base[range.clone()].iter().zip(differences);
        if self.velocity.is_empty() {
            return (pairs.map(|(base, d)| base - rate * d).collect(), Vec::new());
        }
        let old = self.velocity[range].iter().zip(differences);
        let velocity = old.map(|(v, d)| kept * v + d).collect::<Vec<_>>();
        let base = pairs.zip(&velocity);
        let base = base.map(|((base, d), v)| base - rate * (d + kept * v));
        (base.collect(), velocity)
    }

    /// The running statistics with which all ranks continue, if there are any.
    fn synchronize_buffers<M: Module>(
        &self,
        model: &M,
        share: f64,
    ) -> Result<Option<Buffers>, DdpError> {
        let buffers = Buffers::read(model)?;
        if buffers.is_empty() || self.group.world_size() == 1 {
            return Ok(None);
        }
        let synchronized = buffers.synchronized(self.buffers, || Ok(share), &self.group)?;
        Ok(Some(synchronized))
    }
}
