//! One training step's exchange of gradients.

mod gradients;
mod step;

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::optim::GradientsParams;

use self::gradients::{Read, Summed};
use self::step::{MicroBatch, Step};
use crate::ddp::Ddp;
use crate::error::DdpError;
use crate::gradient_tap::{GradientSink, watch};
use crate::reducer::{Job, Outcome, Report, lock};

/// What [`Synchronization::finish`] yields.
#[derive(Debug)]
pub struct SyncedGradients {
    /// The mean gradient over the samples of all ranks: equal to the bit on every rank. A parameter
    /// that no rank used has no gradient.
    pub gradients: GradientsParams,
    /// How many samples all ranks together had.
    pub samples: u64,
    /// The norm of all gradients together before they were clipped; `None` unless
    /// [`crate::DdpConfig::max_gradient_norm`] is set.
    pub norm: Option<f64>,
    /// What the exchange cost this rank.
    pub communication: Communication,
}

/// What a step's exchange cost a rank.
///
/// ```
/// use everburn_distributed::Communication;
///
/// let cost = Communication::default();
/// assert!(cost.exposed.is_zero() && cost.busy.is_zero());
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Communication {
    /// How long the training thread stood still for it: the part that the backward pass did not
    /// hide.
    pub exposed: Duration,
    /// How long exchanges ran, hidden or not, waiting for slower ranks included.
    pub busy: Duration,
    /// How many bytes of gradients this rank handed to collectives, after compression.
    pub bytes: u64,
}

/// One training step's exchange, which runs while the backward pass goes on.
///
/// Made by [`Ddp::begin`]. The model that [`Synchronization::watch`] gives back is run forward and
/// backward; each bucket of gradients leaves as soon as its last gradient is there.
/// [`Synchronization::finish`] waits for the rest.
///
/// Dropping it unfinished aborts the exchange on all ranks, because it cannot be completed.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn_collectives::group::{GroupOptions, ProcessGroup};
/// use everburn_distributed::{Ddp, DdpConfig};
///
/// let device = Device::flex().autodiff();
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let model = LinearConfig::new(3, 1).init(&device);
/// let (ddp, model) = Ddp::new(model, group, DdpConfig::default())?;
///
/// // Two micro-batches of 2 samples: one step of 4.
/// let rows = || Tensor::<2>::ones([2, 3], &device);
/// let step = ddp.begin(4)?;
/// step.watch(&model, 2, false).forward(rows()).mean().backward();
/// step.watch(&model, 2, true).forward(rows()).mean().backward();
/// let synced = step.finish(&model)?;
/// assert_eq!(synced.samples, 4);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug)]
pub struct Synchronization {
    ddp: Ddp,
    step: Arc<Mutex<Step>>,
    reports: Receiver<Report>,
    finished: bool,
}

impl Synchronization {
    pub(crate) fn begin(ddp: &Ddp, samples: usize) -> Result<Self, DdpError> {
        let shared = ddp.shared();
        let (plan, buffers) = shared.take_plan()?;
        let (sender, reports) = mpsc::channel();
        if let Some(reducer) = shared.reducer() {
            reducer.submit(Job::Samples(samples), &sender);
        }
        let step = Step::new(shared.clone(), plan, buffers, samples, sender);
        Ok(Self {
            ddp: ddp.clone(),
            step: Arc::new(Mutex::new(step)),
            reports,
            finished: false,
        })
    }

    /// A copy of `model` for one forward and backward pass over `samples` samples, whose loss is
    /// their mean. `last` says that no other micro-batch follows in this step, so gradients leave
    /// as they come.
    ///
    /// The copy's gradients go to the exchange only: `Gradients` of its backward pass holds none of
    /// its parameters. Its running statistics are those of `model`.
    pub fn watch<M: Module>(&self, model: &M, samples: usize, last: bool) -> M {
        let mut step = lock(&self.step);
        step.watched_samples += samples;
        let factor = samples as f64 / step.samples.max(1) as f64;
        let sink: Arc<dyn GradientSink> = Arc::new(MicroBatch {
            step: self.step.clone(),
            factor,
            last,
        });
        watch(model, step.shared.numbers(), &sink).0
    }

    /// Hands in the gradients of one backward pass that was not watched, of the mean loss over
    /// `samples` samples.
    pub(crate) fn hand_in<M: Module>(&self, model: &M, gradients: GradientsParams, samples: usize) {
        lock(&self.step).watched_samples += samples;
        let mut visitor = Read {
            shared: self.ddp.shared().clone(),
            gradients,
            data: Vec::new(),
        };
        model.visit(&mut visitor);
        // The backward pass would have finished the last layer first.
        visitor
            .data
            .sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        let mut step = lock(&self.step);
        let factor = samples as f64 / step.samples.max(1) as f64;
        for (number, data) in visitor.data {
            step.take(number, data, factor, true);
        }
    }

    /// Sends what has not left yet and waits until every rank has the mean gradients.
    ///
    /// A parameter that was used on some ranks only counts as zero on the others.
    ///
    /// # Errors
    /// [`DdpError::NoSamples`] if no rank had one; [`DdpError::MicroBatches`] if the micro-batches
    /// do not add up to the samples announced; [`DdpError::GradientTwice`] if a parameter got a
    /// gradient after it was complete; [`DdpError::StaticGraph`] if a static model used other
    /// parameters than before; [`DdpError::Collective`] if the exchange fails.
    pub fn finish<M: Module>(mut self, model: &M) -> Result<SyncedGradients, DdpError> {
        let result = self.complete();
        match result {
            Ok(summed) => {
                self.finished = true;
                Ok(summed.give(model))
            }
            Err(error) => {
                // Told before this value's drop could tell a lesser reason.
                self.abort(&error.to_string());
                self.finished = true;
                Err(error)
            }
        }
    }

    fn complete(&self) -> Result<Summed, DdpError> {
        let start = Instant::now();
        let shared = self.ddp.shared();
        let (plan, used, order) = lock(&self.step).close()?;
        let alone = shared.reducer().is_none();
        let everybody_used = if alone || shared.knows_used() {
            None
        } else {
            let bytes = used.iter().map(|used| u8::from(*used)).collect();
            self.submit(Job::Used(bytes));
            Some(())
        };
        let samples = lock(&self.step).samples;
        let asks_for_order = shared.wants_order();
        if asks_for_order && !alone {
            let offer = shared.is_first() && samples > 0;
            let order = order.iter().map(|number| *number as i32);
            self.submit(Job::Order(if offer { order.collect() } else { Vec::new() }));
        }
        let mut summed = Summed {
            shared: shared.clone(),
            buffers: plan.buckets().iter().map(|_| None).collect(),
            plan,
            used,
            samples: samples as u64,
            communication: Communication::default(),
            start,
        };
        let mut new_order = (asks_for_order && alone && samples > 0).then_some(order);
        if alone {
            let mut step = lock(&self.step);
            for (place, bucket) in summed.buffers.iter_mut().zip(&mut step.buckets) {
                *place = bucket.buffer.take();
            }
        } else {
            let expected = 1
                + summed.buffers.len()
                + usize::from(everybody_used.is_some())
                + usize::from(asks_for_order);
            for _ in 0..expected {
                self.take_report(&mut summed, &mut new_order)?;
            }
        }
        if summed.samples == 0 {
            return Err(DdpError::NoSamples);
        }
        summed.used = shared.remember_used(summed.used, everybody_used.is_some());
        if let Some(order) = new_order.filter(|order| !order.is_empty()) {
            shared.rebuild(&order);
        }
        Ok(summed)
    }

    fn take_report(
        &self,
        summed: &mut Summed,
        new_order: &mut Option<Vec<usize>>,
    ) -> Result<(), DdpError> {
        let Some(reducer) = self.ddp.shared().reducer() else {
            return Ok(());
        };
        let report = reducer.next_report(&self.reports)?;
        summed.communication.busy += report.busy;
        match report.outcome? {
            Outcome::Samples(samples) => summed.samples = samples,
            Outcome::Bucket { index, buffer } => {
                summed.communication.bytes += report.bytes;
                summed.buffers[index] = Some(buffer);
            }
            Outcome::Used(used) => summed.used = used.iter().map(|used| *used != 0).collect(),
            Outcome::Order(order) => {
                *new_order = Some(order.iter().map(|number| *number as usize).collect());
            }
        }
        Ok(())
    }

    fn submit(&self, job: Job) {
        if let Some(reducer) = self.ddp.shared().reducer() {
            reducer.submit(job, &lock(&self.step).reports);
        }
    }

    fn abort(&self, reason: &str) {
        if let Some(reducer) = self.ddp.shared().reducer() {
            reducer.abort(reason);
        }
    }
}

impl Drop for Synchronization {
    fn drop(&mut self) {
        if !self.finished {
            self.abort("the step was given up before its gradients were exchanged");
        }
    }
}
