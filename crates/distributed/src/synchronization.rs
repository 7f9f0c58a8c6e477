//! One training step's synchronization of gradients.

mod device_buckets;
mod device_sum;
mod gradients;
mod host_buckets;
mod norm;
mod on_device;
mod scatter;
mod step;
mod synced;
mod upper_sums;
mod virtual_step;

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::module::Module;
use burn::optim::GradientsParams;
use everburn_collectives::sync::lock;

use self::device_buckets::DeviceBuckets;
pub(crate) use self::gradients::clipped_alone;
use self::gradients::{Summed, gradients_of};
use self::host_buckets::HostBuckets;
pub(crate) use self::norm::total_norm;
pub use self::norm::{GradientNorm, clip_coefficient};
use self::scatter::{ScatterBuckets, only_shards};
use self::step::{BackwardPass, Contents, KEEP_ORDER, Step};
pub use self::synced::{Communication, SyncedGradients};
pub(crate) use self::upper_sums::{SpareSums, UpperSums};
use crate::ddp::Ddp;
use crate::error::DdpError;
use crate::gradient_hook::{GradientSink, Nowhere, with_hooks};
use crate::reducer::{Job, Reducer, Report, Share};
use crate::sharding::ShardedPass;
use crate::shared::Medium;
use crate::virtual_ranks::VirtualRanks;

/// One training step's synchronization of gradients, which runs while the backward pass continues.
///
/// Made by [`Ddp::begin`]. The model that [`Synchronization::with_hooks_no_sync`] gives back is run forward and
/// backward; each bucket of gradients leaves as soon as its last gradient is there.
/// [`Synchronization::finish`] waits for the rest.
///
/// One step at a time: every rank begins it and finishes it. Dropping it unfinished aborts the
/// synchronization on all ranks, because it cannot be completed.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Ddp, DdpConfig};
///
/// let device = Device::flex().autodiff();
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let model = LinearConfig::new(3, 1).init(&device);
/// let (ddp, model) = Ddp::new(model, group, DdpConfig::default())?;
///
/// // Two micro-batches of 2 samples: one step of 4.
/// let rows = || Tensor::<2>::ones([2, 3], &device);
/// let step = ddp.begin(4)?;
/// step.with_hooks_no_sync(&model, 2).forward(rows()).mean().backward();
/// step.with_hooks(&model, 2).forward(rows()).mean().backward();
/// let synced = step.finish(&model)?;
/// assert_eq!(synced.samples, 4);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug)]
pub struct Synchronization {
    ddp: Ddp,
    step: Arc<Mutex<Step>>,
    reports: Receiver<Report>,
    /// When the training thread began to hand in gradients instead of computing.
    waiting_since: Option<Instant>,
    finished: bool,
}

impl Synchronization {
    pub(crate) fn begin(ddp: &Ddp, samples: usize) -> Result<Self, DdpError> {
        Self::open(ddp, samples, &ddp.shared().medium)
    }

    fn open(ddp: &Ddp, samples: usize, medium: &Medium) -> Result<Self, DdpError> {
        let shared = ddp.shared();
        let plan = shared.take_plan()?;
        let parameters = shared.parameters.len();
        let contents = match medium {
            Medium::Host if shared.config.shards_gradients() => {
                let tracker = shared.gradient_buckets.clone();
                Contents::Scatter(ScatterBuckets::new(&plan, shared.shard_layout(), tracker))
            }
            Medium::Host => match shared.take_buffers() {
                Ok(buffers) => Contents::Host(HostBuckets::new(buffers, parameters)),
                Err(error) => {
                    shared.end_step();
                    return Err(error);
                }
            },
            Medium::Device {
                device,
                communicator,
            } => {
                let buckets = plan.buckets().len();
                let (device, communicator) = (device.clone(), communicator.clone());
                let clips = shared.config.max_gradient_norm.is_some();
                let new = DeviceBuckets::new(device, communicator, clips, buckets, parameters);
                Contents::Device(match shared.config.shards_gradients() {
                    true => new.scattered(shared.shard_layout(), shared.gradient_buckets.clone()),
                    false => new,
                })
            }
        };
        let (sender, reports) = mpsc::channel();
        let share = Share::default();
        let expected = match &shared.reducer {
            Some(reducer) => reducer.submit(Job::Samples(samples, share.clone()), &sender),
            None => {
                // A rank that is alone has all the samples.
                let _ = share.set(1.0);
                0
            }
        };
        let mut step = Step::new(shared.clone(), plan, contents, samples, sender);
        step.expect(expected, share);
        Ok(Self {
            ddp: ddp.clone(),
            step: Arc::new(Mutex::new(step)),
            reports,
            waiting_since: None,
            finished: false,
        })
    }

    pub(crate) fn begin_virtual(
        ddp: &Ddp,
        ranks: VirtualRanks,
        samples: &[usize],
        all: usize,
    ) -> Result<Self, DdpError> {
        // In host memory wherever the model is: sums are made in an order of their own.
        let step = Self::open(ddp, samples.iter().sum(), &Medium::Host)?;
        lock(&step.step).over_virtual(ranks, samples, all)?;
        Ok(step)
    }

    /// A copy of `model` for the pass of one of this rank's logical shards, the `own`th of
    /// [`VirtualRanks::own`], in a step that [`Ddp::begin_virtual`] has begun. Those that have samples
    /// run in their order, one pass each.
    pub fn with_hooks_virtual<M: Module>(&self, model: &M, own: usize) -> M {
        self.hooked(model, BackwardPass::of_virtual(&self.step, own), None)
    }

    /// A copy of `model` for one forward and backward pass over `samples` samples, whose loss is
    /// their mean; another pass follows in this step, so its gradients stay here and are added up.
    ///
    /// The copy's gradients go to the exchange only: `Gradients` of its backward pass holds none of
    /// its parameters, and `is_require_grad` of a parameter's value is false. Running statistics
    /// are those of `model`. A copy serves one pass.
    #[doc(alias = "no_sync")]
    pub fn with_hooks_no_sync<M: Module>(&self, model: &M, samples: usize) -> M {
        self.hooked(model, BackwardPass::new(&self.step, samples, false), None)
    }

    /// As [`Synchronization::with_hooks_no_sync`], for the last or only pass of the step: each bucket of
    /// gradients leaves as soon as it is full.
    pub fn with_hooks<M: Module>(&self, model: &M, samples: usize) -> M {
        self.hooked(model, BackwardPass::new(&self.step, samples, true), None)
    }

    /// As [`Synchronization::with_hooks`], for a model with sharded parameters, which are gathered as `pass` uses them.
    pub fn with_hooks_sharded<M: Module>(
        &self,
        model: &M,
        samples: usize,
        pass: &ShardedPass,
    ) -> M {
        let sink = BackwardPass::new(&self.step, samples, true);
        self.hooked(model, sink, Some(pass))
    }

    /// A copy of `model` with which a rank whose samples have run out takes part in a pass of the
    /// others, where the model computes over all ranks: [`everburn::nn::without_samples`](everburn_nn::without_samples). None of
    /// its gradients is kept.
    ///
    /// Its backward pass runs in the order of the other ranks' watched copies, which is not that of
    /// the model itself where branches are parallel.
    pub fn with_hooks_stand_in<M: Module>(&self, model: &M) -> M {
        self.stand_in(model, None)
    }

    /// The same, for a model with sharded parameters.
    pub fn with_hooks_stand_in_sharded<M: Module>(&self, model: &M, pass: &ShardedPass) -> M {
        self.stand_in(model, Some(pass))
    }

    fn stand_in<M: Module>(&self, model: &M, sharded: Option<&ShardedPass>) -> M {
        let model = everburn_nn::without_samples(model.clone());
        let sink: Arc<dyn GradientSink> = Arc::new(Nowhere);
        let numbers = &self.ddp.shared().numbers;
        with_hooks(
            &model,
            numbers,
            &sink,
            None,
            sharded.map(|sharded| &sharded.pass),
        )
        .0
    }

    fn hooked<M: Module>(&self, model: &M, pass: BackwardPass, sharded: Option<&ShardedPass>) -> M {
        let shared = self.ddp.shared();
        let sink: Arc<dyn GradientSink> = Arc::new(pass);
        let (numbers, sharded) = (&shared.numbers, sharded.map(|sharded| &sharded.pass));
        let (watched, found) = with_hooks(model, numbers, &sink, shared.recorder(), sharded);
        if found != shared.parameters.len() {
            lock(&self.step).refuse(shared.other_model(model));
        }
        watched
    }

    /// Hands in the gradients of one backward pass that was not watched, of the mean loss over
    /// `samples` samples.
    pub(crate) fn hand_in<M: Module>(
        &mut self,
        model: &M,
        gradients: GradientsParams,
        samples: usize,
    ) {
        self.waiting_since = Some(Instant::now());
        let shared = self.ddp.shared();
        match gradients_of(model, gradients, shared) {
            Ok(gradients) => lock(&self.step).hand_in(samples, gradients),
            Err(error) => lock(&self.step).refuse(error),
        }
    }

    /// Sends what has not left yet and waits until every rank has the mean gradients.
    ///
    /// A parameter that was used on some ranks only counts as zero on the others.
    ///
    /// # Errors
    /// On all ranks, which can continue: [`DdpError::NoSamples`] if no rank had one, and
    /// [`DdpError::GradientNotFinite`] if gradients to clip are NaN or infinite.
    ///
    /// What this rank has done wrong, which ends the step on all of them:
    /// [`DdpError::MicroBatches`] if the passes do not add up to the samples announced;
    /// [`DdpError::NoBackward`] if a watched model was not run backward;
    /// [`DdpError::GradientTwice`] and [`DdpError::LateGradient`] if a gradient came after its
    /// parameter or the step was complete; [`DdpError::OtherModel`] if `model` is not the one that
    /// [`Ddp::new`] was given; [`DdpError::StaticGraph`] if a static model used other parameters;
    /// [`DdpError::Untied`] if the loop does not call [`Ddp::tie`].
    ///
    /// [`DdpError::Collective`] and [`DdpError::Reducer`] if a collective fails.
    pub fn finish<M: Module>(self, model: &M) -> Result<SyncedGradients, DdpError> {
        let on_device = matches!(lock(&self.step).contents, Contents::Device(_));
        let tied = self.ddp.shared().check_ties(model);
        let result = tied.and_then(|()| match on_device {
            true => self.complete_on_device().and_then(|sum| sum.give(model)),
            false => self
                .complete_on_host()
                .and_then(|summed| summed.give(model)),
        });
        self.conclude(result)
    }

    /// Ends the step with `result`. An error of this rank alone ends it on all ranks.
    fn conclude<T>(mut self, result: Result<T, DdpError>) -> Result<T, DdpError> {
        if let Err(error) = &result
            && !error.is_verdict_of_all()
        {
            // Before this value is dropped, which would abort with a less specific reason.
            self.abort(&error.to_string());
        }
        self.finished = true;
        result
    }

    /// Ends the step on all ranks, which receive `reason`.
    pub fn give_up(mut self, reason: &str) {
        self.abort(reason);
        self.finished = true;
    }

    /// Ends a step in host memory, of which every rank has all sums: unlike the other two ends it takes gradients out of a
    /// bucket while the next one is on its way, and gives the memory of buckets back.
    fn complete_on_host(&self) -> Result<Summed, DdpError> {
        let start = self.waiting_since.unwrap_or_else(Instant::now);
        let shared = self.ddp.shared();
        let asks_for_order = shared.wants_order();
        let reduces_used = !shared.knows_used();
        let mut step = lock(&self.step);
        let expected = step.close_and_submit(asks_for_order)?;
        let (used, buckets) = (step.used().to_vec(), step.plan.buckets().len());
        let (plan, samples) = (step.plan.clone(), step.samples as u64);
        let Contents::Host(host) = &mut step.contents else {
            return Err(only_shards());
        };
        let mut summed = Summed {
            shared: shared.clone(),
            buffers: (0..buckets).map(|_| None).collect(),
            squares: vec![Vec::new(); buckets],
            ready: vec![None; used.len()],
            used,
            spent: host.take_spent(),
            with_flags: reduces_used && shared.reducer.is_some(),
            samples,
            plan,
            communication: Communication::default(),
        };
        let mut order = Vec::new();
        match &shared.reducer {
            None => {
                let buffers = host.filling.iter_mut().map(|bucket| bucket.buffer.take());
                summed.buffers = buffers.collect();
            }
            Some(reducer) => {
                drop(step);
                self.receive(reducer, expected, |report| summed.take(report, &mut order))?;
                summed.communication.exposed = start.elapsed();
                step = lock(&self.step);
            }
        }
        step.late()?;
        let own_samples = step.samples;
        drop(step);
        summed.read_flags();
        if summed.samples == 0 {
            summed.return_buffers();
            return Err(DdpError::NoSamples);
        }
        let own = lock(&self.step).used().to_vec();
        summed.used = self.remember(summed.used, &own, own_samples, &order)?;
        Ok(summed)
    }

    /// Hands `expected` reports to `take`, as they come.
    fn receive(
        &self,
        reducer: &Reducer,
        expected: usize,
        mut take: impl FnMut(Report) -> Result<(), DdpError>,
    ) -> Result<(), DdpError> {
        for _ in 0..expected {
            let report = reducer.next_report(&self.reports)?;
            self.ddp.shared().record_reduction(&report);
            take(report)?;
        }
        Ok(())
    }

    /// Keeps what later steps need: the parameters that all ranks `used`, of which this rank used `own` for its `samples`,
    /// and the order of gradients that rank 0 has sent, if it has. The parameters that some rank used.
    fn remember(
        &self,
        used: Vec<bool>,
        own: &[bool],
        samples: usize,
        order: &[i32],
    ) -> Result<Vec<bool>, DdpError> {
        let shared = self.ddp.shared();
        let used = shared.remember_used(used, (samples > 0).then_some(own))?;
        shared.count_samples(samples);
        match order {
            [] => {}
            [KEEP_ORDER] => shared.keep_order(),
            order => {
                let order: Vec<usize> = order.iter().map(|number| *number as usize).collect();
                shared.rebuild(&order);
            }
        }
        Ok(used)
    }

    fn abort(&self, reason: &str) {
        let shared = self.ddp.shared();
        if let Some(reducer) = &shared.reducer {
            reducer.abort(reason);
        }
        if let Some(communicator) = shared.communicator() {
            communicator.abort(reason);
        }
    }
}

impl Drop for Synchronization {
    fn drop(&mut self) {
        if !self.finished {
            let rank = self.ddp.group().rank();
            self.abort(&if std::thread::panicking() {
                format!("rank {rank} panicked in the middle of a step")
            } else {
                format!("rank {rank} gave the step up before its gradients were exchanged: what `begin` returned was dropped without `finish`")
            });
        }
        self.ddp.shared().end_step();
    }
}
