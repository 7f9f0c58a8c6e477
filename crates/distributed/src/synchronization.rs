//! One training step's exchange of gradients.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;

use crate::bucket::BucketPlan;
use crate::ddp::{Ddp, Shared};
use crate::error::DdpError;
use crate::gradient_tap::{GradientSink, watch};
use crate::host::HostBuffer;
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

/// What the backward pass fills.
#[derive(Debug)]
struct Step {
    shared: Arc<Shared>,
    plan: Arc<BucketPlan>,
    buckets: Vec<Filling>,
    /// By parameter: whether this rank has a gradient of it.
    used: Vec<bool>,
    /// By parameter: whether its gradient is complete.
    complete: Vec<bool>,
    /// The order in which gradients were completed.
    order: Vec<usize>,
    /// How many buckets have left.
    launched: usize,
    samples: usize,
    /// The samples of the micro-batches so far.
    watched_samples: usize,
    reports: Sender<Report>,
    error: Option<DdpError>,
}

/// A bucket that is being filled.
#[derive(Debug)]
struct Filling {
    /// `None` once it has left.
    buffer: Option<HostBuffer>,
    missing: usize,
}

impl Synchronization {
    pub(crate) fn begin(ddp: &Ddp, samples: usize) -> Result<Self, DdpError> {
        let shared = ddp.shared();
        let (plan, buffers) = shared.take_plan()?;
        let (sender, reports) = mpsc::channel();
        if let Some(reducer) = shared.reducer() {
            reducer.submit(Job::Samples(samples), &sender);
        }
        let buckets = plan.buckets().iter().zip(buffers);
        let buckets = buckets
            .map(|(bucket, buffer)| Filling {
                buffer: Some(buffer),
                missing: bucket.parameters().len(),
            })
            .collect();
        let parameters = shared.parameters().len();
        let step = Step {
            shared: shared.clone(),
            plan,
            buckets,
            used: vec![false; parameters],
            complete: vec![false; parameters],
            order: Vec::with_capacity(parameters),
            launched: 0,
            samples,
            watched_samples: 0,
            reports: sender,
            error: None,
        };
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
        watch(model, step.shared.numbers(), &sink)
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

/// The sink of one micro-batch.
#[derive(Debug)]
struct MicroBatch {
    step: Arc<Mutex<Step>>,
    /// The micro-batch's share of this rank's samples.
    factor: f64,
    last: bool,
}

impl GradientSink for MicroBatch {
    fn take(&self, index: usize, gradient: Result<TensorData, String>) {
        lock(&self.step).take(index, gradient, self.factor, self.last);
    }
}

impl Step {
    /// Puts a gradient into its bucket, and sends off all buckets that are full and whose turn has
    /// come: every rank sends them in the order of the plan, whatever order they fill in.
    fn take(
        &mut self,
        number: usize,
        gradient: Result<TensorData, String>,
        factor: f64,
        last: bool,
    ) {
        if self.error.is_some() {
            return;
        }
        if let Err(error) = self.put(number, gradient, factor) {
            self.error = Some(error);
            return;
        }
        if last {
            self.complete[number] = true;
            self.order.push(number);
            self.buckets[self.plan.place(number).0].missing -= 1;
            while self.launched < self.buckets.len() && self.buckets[self.launched].missing == 0 {
                self.launch();
            }
        }
    }

    fn put(
        &mut self,
        number: usize,
        gradient: Result<TensorData, String>,
        factor: f64,
    ) -> Result<(), DdpError> {
        let (bucket, slot) = self.plan.place(number);
        let path = || self.shared.parameters()[number].path.clone();
        if self.complete[number] {
            return Err(DdpError::GradientTwice { parameter: path() });
        }
        let read = |reason| DdpError::Read {
            parameter: path(),
            reason,
        };
        let data = gradient.map_err(read)?;
        let range = self.plan.buckets()[bucket].range(slot);
        // A bucket that has left has no incomplete parameter.
        if let Some(buffer) = &mut self.buckets[bucket].buffer {
            let put = buffer.put(range, &data, factor, self.used[number]);
            put.map_err(read)?;
        }
        self.used[number] = true;
        Ok(())
    }

    /// Sends off the next bucket; what this rank has no gradient of is zero.
    fn launch(&mut self) {
        let index = self.launched;
        self.launched += 1;
        let bucket = &self.plan.buckets()[index];
        let Some(mut buffer) = self.buckets[index].buffer.take() else {
            return;
        };
        for (slot, number) in bucket.parameters().iter().enumerate() {
            if !self.used[*number] {
                // The buffer still holds an earlier step's.
                buffer.clear(bucket.range(slot));
            }
        }
        match self.shared.reducer() {
            None => self.buckets[index].buffer = Some(buffer),
            Some(reducer) => {
                let slots = bucket.slots().clone();
                let job = Job::Bucket {
                    index,
                    slots,
                    buffer,
                };
                reducer.submit(job, &self.reports);
            }
        }
    }

    /// Checks what has come and sends off the rest.
    fn close(&mut self) -> Result<(Arc<BucketPlan>, Vec<bool>, Vec<usize>), DdpError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.watched_samples != self.samples {
            return Err(DdpError::MicroBatches {
                announced: self.samples,
                found: self.watched_samples,
            });
        }
        if self.samples > 0 {
            self.shared.check_static(&self.used)?;
        }
        while self.launched < self.buckets.len() {
            self.launch();
        }
        Ok((self.plan.clone(), self.used.clone(), self.order.clone()))
    }
}

/// Gradients of the unwatched kind, by parameter.
struct Read {
    shared: Arc<Shared>,
    gradients: GradientsParams,
    data: Vec<(usize, Result<TensorData, String>)>,
}

impl ModuleVisitor for Read {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(number) = self.shared.numbers().get(&param.id).copied() else {
            return;
        };
        // Tied weights are visited twice and have one gradient.
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let data = gradient.without_autodiff().try_into_data();
            self.data
                .push((number, data.map_err(|error| error.to_string())));
        }
    }
}

/// What all ranks agree on, still in buckets.
struct Summed {
    shared: Arc<Shared>,
    plan: Arc<BucketPlan>,
    buffers: Vec<Option<HostBuffer>>,
    used: Vec<bool>,
    samples: u64,
    communication: Communication,
    start: Instant,
}

impl Summed {
    /// Clips, and turns buckets into the gradients of `model`.
    fn give<M: Module>(mut self, model: &M) -> SyncedGradients {
        // Alone there is nothing to wait for, only gradients to be moved.
        if self.shared.reducer().is_some() {
            self.communication.exposed = self.start.elapsed();
        }
        let norm = self.shared.config().max_gradient_norm.map(|max| {
            let norm = self.norm();
            let factor = f64::from(max) / (norm + 1e-6);
            if factor < 1.0 {
                for buffer in self.buffers.iter_mut().flatten() {
                    buffer.scale(factor);
                }
            }
            norm
        });
        let mut data = HashMap::new();
        for (bucket, buffer) in self.plan.buckets().iter().zip(&self.buffers) {
            let Some(buffer) = buffer else { continue };
            for (slot, number) in bucket.parameters().iter().enumerate() {
                if self.used[*number] {
                    let entry = &self.shared.parameters()[*number];
                    let values = buffer.tensor_data(bucket.range(slot), &entry.shape);
                    data.insert(entry.id, values);
                }
            }
        }
        self.shared.return_buffers(&self.plan, self.buffers);
        let mut give = Give {
            given: GradientsParams::new(),
            data,
        };
        model.visit(&mut give);
        SyncedGradients {
            gradients: give.given,
            samples: self.samples,
            norm,
            communication: self.communication,
        }
    }

    /// The norm of all gradients together, added up in the order of registration.
    fn norm(&self) -> f64 {
        let mut sum = 0.0;
        for (number, used) in self.used.iter().enumerate() {
            let (bucket, slot) = self.plan.place(number);
            if let (true, Some(buffer)) = (*used, &self.buffers[bucket]) {
                sum += buffer.sum_of_squares(self.plan.buckets()[bucket].range(slot));
            }
        }
        sum.sqrt()
    }
}

struct Give {
    given: GradientsParams,
    data: HashMap<ParamId, TensorData>,
}

impl ModuleVisitor for Give {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(data) = self.data.remove(&param.id) {
            let device = param.lazy_device().inner();
            let dtype = data.dtype();
            let gradient = Tensor::<D>::from_data(data, (&device, dtype));
            self.given.register(param.id, gradient);
        }
    }
}
