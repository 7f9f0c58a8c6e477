//! What a backward pass fills: buckets that leave when they are full.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, Weak};

use burn::tensor::TensorData;

use crate::bucket::BucketPlan;
use crate::error::DdpError;
use crate::gradient_tap::GradientSink;
use crate::host::{HostBuffer, Put};
use crate::reducer::{Job, Load, Report, Share, lock};
use crate::shared::Shared;
use crate::virtual_ranks::VirtualRanks;

use super::virtual_step::{Place, VirtualStep};

/// In place of an order: the present one is to be kept.
pub(super) const KEEP_ORDER: i32 = -1;

/// What the backward pass fills.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) shared: Arc<Shared>,
    pub(super) plan: Arc<BucketPlan>,
    pub(super) buckets: Vec<Filling>,
    /// By parameter: whether this rank has a gradient of it.
    used: Vec<bool>,
    /// By parameter: whether its gradient is complete.
    complete: Vec<bool>,
    /// The order in which gradients were completed.
    order: Vec<usize>,
    /// How many buckets have left.
    launched: usize,
    pub(super) samples: usize,
    /// The samples of the passes so far.
    announced: usize,
    /// Whether each pass has brought a gradient.
    passes: Vec<bool>,
    /// No more gradients are expected.
    closed: bool,
    /// `None` once the last job is submitted.
    pub(super) reports: Option<Sender<Report>>,
    /// By parameter: the memory in which its gradient came, for the one that goes out.
    spent: Vec<Option<TensorData>>,
    /// How many reports will come of the jobs so far.
    expected: usize,
    /// This rank's share of all samples, once it is known.
    share: Share,
    /// For a step over virtual ranks.
    over_virtual: Option<VirtualStep>,
    error: Option<DdpError>,
}

/// A bucket that is being filled.
#[derive(Debug)]
pub(super) struct Filling {
    /// `None` once it has left.
    pub(super) buffer: Option<HostBuffer>,
    missing: usize,
    scaling: Scaling,
}

/// Whether gradients are multiplied by this rank's share as they are put into a bucket, which saves
/// a way through memory, or by the reducer. Both ways lead to the same bits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    Undecided,
    Here(f64),
    ByReducer,
}

/// The sink of one backward pass.
#[derive(Debug)]
pub(super) struct BackwardPass {
    /// Weak, because graphs that never run backward keep their sinks.
    step: Weak<Mutex<Step>>,
    number: usize,
    /// Its share of this rank's samples in the step.
    factor: f64,
    /// No other pass follows in the step.
    last: bool,
    /// The number of this rank's virtual rank that it is of.
    own: Option<usize>,
}

impl BackwardPass {
    /// The sink of a pass over `samples` samples.
    pub(super) fn new(step: &Arc<Mutex<Step>>, samples: usize, last: bool) -> Self {
        let mut locked = lock(step);
        let (number, factor) = locked.announce(samples);
        Self {
            step: Arc::downgrade(step),
            number,
            factor,
            last,
            own: None,
        }
    }

    /// The sink of the pass of this rank's virtual rank `own`.
    pub(super) fn of_virtual(step: &Arc<Mutex<Step>>, own: usize) -> Self {
        let pass = lock(step).over_virtual.as_ref().map(|over| over.pass(own));
        let (samples, last) = pass.unwrap_or((0, false));
        Self {
            own: Some(own),
            ..Self::new(step, samples, last)
        }
    }
}

impl GradientSink for BackwardPass {
    fn take(&self, index: usize, gradient: Result<TensorData, String>) {
        // A step that has been given up takes no more gradients.
        if let Some(step) = self.step.upgrade() {
            let mut step = lock(&step);
            step.passes[self.number] = true;
            step.take(index, gradient, self.factor, self.last, self.own);
        }
    }
}

impl Step {
    pub(super) fn new(
        shared: Arc<Shared>,
        plan: Arc<BucketPlan>,
        buffers: Vec<HostBuffer>,
        samples: usize,
        reports: Sender<Report>,
    ) -> Self {
        let buckets = plan.buckets().iter().zip(buffers);
        let filling = buckets.map(|(bucket, buffer)| Filling {
            buffer: Some(buffer),
            missing: bucket.parameters().len(),
            scaling: Scaling::Undecided,
        });
        let parameters = shared.parameters().len();
        Self {
            buckets: filling.collect(),
            shared,
            plan,
            used: vec![false; parameters],
            complete: vec![false; parameters],
            order: Vec::with_capacity(parameters),
            launched: 0,
            samples,
            announced: 0,
            passes: Vec::new(),
            closed: false,
            reports: Some(reports),
            spent: (0..parameters).map(|_| None).collect(),
            expected: 0,
            share: Share::default(),
            over_virtual: None,
            error: None,
        }
    }

    /// Makes it a step over virtual ranks, of which the own ones have `samples` each, of `all`.
    pub(super) fn over_virtual(
        &mut self,
        ranks: VirtualRanks,
        samples: &[usize],
        all: usize,
    ) -> Result<(), DdpError> {
        let over = VirtualStep::new(ranks, samples, all, &self.shared, &self.plan)?;
        self.over_virtual = Some(over);
        Ok(())
    }

    /// That `reports` will come of the first job, and where this rank's share will be found.
    pub(super) fn expect(&mut self, reports: usize, share: Share) {
        self.expected += reports;
        self.share = share;
    }

    /// How many reports will come of the jobs so far.
    pub(super) fn expected(&self) -> usize {
        self.expected
    }

    /// Announces a pass over `samples` samples: its number, and its share of this rank's samples.
    fn announce(&mut self, samples: usize) -> (usize, f64) {
        self.announced += samples;
        self.passes.push(false);
        let factor = samples as f64 / self.samples.max(1) as f64;
        (self.passes.len() - 1, factor)
    }

    /// Takes the gradients of a pass that was not watched, of the mean loss over `samples`.
    pub(super) fn hand_in(
        &mut self,
        samples: usize,
        gradients: Vec<(usize, Result<TensorData, String>)>,
    ) {
        let (pass, factor) = self.announce(samples);
        self.passes[pass] = true;
        for (number, gradient) in gradients {
            self.take(number, gradient, factor, true, None);
        }
        // These came in the order in which they were handed in, which shows nothing.
        self.order.clear();
    }

    /// Notes what makes the step fail when it is finished; the first cause stays.
    pub(super) fn refuse(&mut self, error: DdpError) {
        self.error.get_or_insert(error);
    }

    /// Puts a gradient into its bucket, and sends off all buckets that are full and whose turn has
    /// come: every rank sends them in the order of the plan, whatever order they fill in.
    pub(super) fn take(
        &mut self,
        number: usize,
        gradient: Result<TensorData, String>,
        factor: f64,
        last: bool,
        own: Option<usize>,
    ) {
        if self.error.is_some() {
            return;
        }
        if let Err(error) = self.put(number, gradient, factor, last, own) {
            self.refuse(error);
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
        last: bool,
        own: Option<usize>,
    ) -> Result<(), DdpError> {
        let (bucket, slot) = self.plan.place(number);
        let path = || self.shared.parameters()[number].path.clone();
        if self.closed {
            return Err(DdpError::LateGradient { parameter: path() });
        }
        if self.complete[number] {
            return Err(DdpError::GradientTwice { parameter: path() });
        }
        let read = |reason| DdpError::Read {
            parameter: path(),
            reason,
        };
        let data = gradient.map_err(read)?;
        let range = self.plan.buckets()[bucket].range(slot);
        let how = if self.used[number] {
            Put::Add
        } else {
            Put::Replace
        };
        if let (Some(own), Some(over)) = (own, &mut self.over_virtual) {
            if let Some(lowest) = &mut self.buckets[bucket].buffer {
                let place = Place {
                    bucket,
                    number,
                    range,
                    lowest,
                };
                let path = self.shared.parameters()[number].path.clone();
                let read = |reason| DdpError::Read {
                    parameter: path,
                    reason,
                };
                over.add(place, own, &data).map_err(read)?;
            }
            self.used[number] = true;
            self.spent[number] = Some(data);
            return Ok(());
        }
        let whole = last && factor == 1.0 && how == Put::Replace;
        let filling = &mut self.buckets[bucket];
        if filling.scaling == Scaling::Undecided {
            // Only what is put down once, so that nothing is rounded in another order.
            let share = self.share.get().filter(|_| whole);
            filling.scaling = share.map_or(Scaling::ByReducer, |share| Scaling::Here(*share));
        }
        let factor = match filling.scaling {
            Scaling::Here(share) if whole => share,
            _ => factor,
        };
        // A bucket that has left has no incomplete parameter.
        if let Some(buffer) = &mut filling.buffer {
            buffer.put(range, &data, factor, how).map_err(read)?;
        }
        self.used[number] = true;
        self.spent[number] = Some(data);
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
            if let Some(over) = &mut self.over_virtual {
                let place = Place {
                    bucket: index,
                    number: *number,
                    range: bucket.range(slot),
                    lowest: &mut buffer,
                };
                if let Err(reason) = over.complete(place) {
                    let parameter = self.shared.parameters()[*number].path.clone();
                    self.error
                        .get_or_insert(DdpError::Read { parameter, reason });
                }
            } else if !self.used[*number] {
                // The buffer still holds an earlier step's.
                buffer.clear(bucket.range(slot));
            }
            buffer.set_flag(bucket.len() + slot, self.used[*number]);
        }
        let of_virtual = self.over_virtual.as_mut().map(|over| {
            let flags = bucket.len()..bucket.length_with_flags();
            (over.ranks(), over.take_upper(index, flags))
        });
        match (self.shared.reducer(), &self.reports) {
            (Some(reducer), Some(reports)) => {
                let load = Load {
                    index,
                    bucket: bucket.clone(),
                    buffer,
                    with_flags: !self.shared.knows_used(),
                    with_squares: self.shared.config().max_gradient_norm.is_some(),
                    is_scaled: of_virtual.is_some()
                        || matches!(self.buckets[index].scaling, Scaling::Here(_)),
                    of_virtual,
                };
                self.expected += reducer.submit(Job::Bucket(load), reports);
            }
            _ => self.buckets[index].buffer = Some(buffer),
        }
    }

    /// Checks what has come and sends off the rest.
    pub(super) fn close(&mut self) -> Result<(), DdpError> {
        self.closed = true;
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.announced != self.samples {
            return Err(DdpError::MicroBatches {
                announced: self.samples,
                found: self.announced,
            });
        }
        if let Some(pass) = self.passes.iter().position(|came| !came) {
            return Err(DdpError::NoBackward { pass });
        }
        if self.samples > 0 {
            self.shared.check_static(&self.used)?;
        }
        while self.launched < self.buckets.len() {
            self.launch();
        }
        Ok(())
    }

    /// What has come after the step was closed, if anything has.
    pub(super) fn late(&mut self) -> Result<(), DdpError> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// By parameter: memory for its gradient, where there is some.
    pub(super) fn take_spent(&mut self) -> Vec<Option<TensorData>> {
        std::mem::take(&mut self.spent)
    }

    /// Which parameters this rank used.
    pub(super) fn used(&self) -> &[bool] {
        &self.used
    }

    /// What rank 0 has to say about the order of parameters: nothing if it had no pass, that the
    /// present one be kept if it was not watched, else the order in which gradients came.
    pub(super) fn order_to_offer(&self) -> Vec<i32> {
        if !self.shared.is_first() || self.samples == 0 {
            return Vec::new();
        }
        if self.order.is_empty() {
            return vec![KEEP_ORDER];
        }
        self.order.iter().map(|number| *number as i32).collect()
    }
}
