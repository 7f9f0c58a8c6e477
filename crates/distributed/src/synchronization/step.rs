//! What a backward pass fills: buckets that leave when they are full.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, Weak};

use everburn_collectives::sync::lock;

use super::device_buckets::DeviceBuckets;
use super::host_buckets::{Arrival, HostBuckets};
use super::scatter::ScatterBuckets;
use super::virtual_step::VirtualStep;
use crate::bucket::BucketPlan;
use crate::error::DdpError;
use crate::gradient::Gradient;
use crate::gradient_hook::GradientSink;
use crate::reducer::{Job, Report, Share};
use crate::shared::Shared;
use crate::virtual_ranks::VirtualRanks;

/// In place of an order: the present one is to be kept.
pub(super) const KEEP_ORDER: i32 = -1;

/// What the backward pass fills.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) shared: Arc<Shared>,
    pub(super) plan: Arc<BucketPlan>,
    pub(super) contents: Contents,
    /// By bucket: how many gradients are not complete.
    missing: Vec<usize>,
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
    /// How many reports will come of the jobs so far.
    expected: usize,
    /// This rank's share of all samples, once it is known.
    share: Share,
    error: Option<DdpError>,
}

/// Where the gradients of a step are.
#[derive(Debug)]
pub(super) enum Contents {
    Host(HostBuckets),
    Device(DeviceBuckets),
    /// In host memory, on their way to the ranks that keep them.
    Scatter(ScatterBuckets),
}

#[derive(Debug)]
pub(super) struct BackwardPass {
    /// Weak, because graphs that never run backward keep their sinks.
    step: Weak<Mutex<Step>>,
    number: usize,
    /// Its share of this rank's samples in the step.
    factor: f64,
    /// No other pass follows in the step.
    last: bool,
    /// The number of this rank's logical shard that it is of.
    own: Option<usize>,
}

impl BackwardPass {
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

    /// The sink of the pass of this rank's logical shard `own`.
    pub(super) fn of_virtual(step: &Arc<Mutex<Step>>, own: usize) -> Self {
        let pass = match &lock(step).contents {
            Contents::Host(host) => host.over_virtual.as_ref().map(|over| over.pass(own)),
            Contents::Device(_) | Contents::Scatter(_) => None,
        };
        let (samples, last) = pass.unwrap_or((0, false));
        Self {
            own: Some(own),
            ..Self::new(step, samples, last)
        }
    }
}

impl GradientSink for BackwardPass {
    fn take(&self, index: usize, gradient: Gradient) {
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
        contents: Contents,
        samples: usize,
        reports: Sender<Report>,
    ) -> Self {
        let parameters = shared.parameters.len();
        let buckets = plan.buckets().iter();
        let missing = buckets.map(|bucket| bucket.parameters().len()).collect();
        Self {
            contents,
            missing,
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
            expected: 0,
            share: Share::default(),
            error: None,
        }
    }

    /// Makes it a step over logical shards, of which the own ones have `samples` each, of `all`.
    pub(super) fn over_virtual(
        &mut self,
        ranks: VirtualRanks,
        samples: &[usize],
        all: usize,
    ) -> Result<(), DdpError> {
        let over = VirtualStep::new(ranks, samples, all, &self.shared, &self.plan)?;
        if let Contents::Host(host) = &mut self.contents {
            host.over_virtual = Some(over);
        }
        Ok(())
    }

    /// That `reports` will come of the first job, and where this rank's share will be found.
    pub(super) fn expect(&mut self, reports: usize, share: Share) {
        self.expected += reports;
        self.share = share;
    }

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
    pub(super) fn hand_in(&mut self, samples: usize, gradients: Vec<(usize, Gradient)>) {
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
        gradient: Gradient,
        factor: f64,
        last: bool,
        own: Option<usize>,
    ) {
        if self.error.is_some() {
            return;
        }
        let arrival = Arrival {
            number,
            factor,
            last,
            own,
            used: self.used[number],
        };
        if let Err(error) = self.put(arrival, gradient) {
            self.refuse(error);
            return;
        }
        if last {
            self.complete[number] = true;
            self.order.push(number);
            self.missing[self.plan.place(number).0] -= 1;
        }
        while self.launched < self.missing.len() && self.missing[self.launched] == 0 {
            if !self.launch() {
                break;
            }
        }
    }

    fn put(&mut self, arrival: Arrival, gradient: Gradient) -> Result<(), DdpError> {
        let number = arrival.number;
        let path = || self.shared.parameters[number].path.clone();
        if self.closed {
            return Err(DdpError::LateGradient { parameter: path() });
        }
        if self.complete[number] {
            return Err(DdpError::GradientTwice { parameter: path() });
        }
        let put = match &mut self.contents {
            Contents::Host(host) => host.put(arrival, gradient, &self.plan, &self.share),
            Contents::Device(device) => {
                let expected = &self.shared.parameters[number];
                device.put(arrival, gradient, expected)
            }
            Contents::Scatter(scatter) => {
                let expected = &self.shared.parameters[number];
                scatter.put(arrival, gradient, &self.plan, expected)
            }
        };
        put.map_err(|reason| self.shared.unread(number, reason))?;
        self.used[number] = true;
        Ok(())
    }

    /// Sends off the next bucket; what this rank has no gradient of is zero. `false` if it cannot leave
    /// yet: on a device it is weighted first, and the ranks may not have said how many samples they have.
    fn launch(&mut self) -> bool {
        let index = self.launched;
        match &mut self.contents {
            Contents::Host(host) => {
                self.launched += 1;
                let load = host.load(index, &self.plan, &self.used, &self.shared);
                match (load, &self.shared.reducer, &self.reports) {
                    (Ok(Some(load)), Some(reducer), Some(reports)) => {
                        self.expected += reducer.submit(Job::Bucket(load), reports);
                    }
                    (Ok(Some(load)), ..) => host.filling[index].buffer = Some(load.buffer),
                    (Ok(None), ..) => {}
                    (Err(error), ..) => self.refuse(error),
                }
            }
            Contents::Scatter(scatter) => {
                self.launched += 1;
                let load = scatter.load(index, &self.plan, &self.used, &self.shared);
                match (load, &self.shared.reducer, &self.reports) {
                    (Ok(load), Some(reducer), Some(reports)) => {
                        self.expected += reducer.submit(Job::Scatter(load), reports);
                    }
                    (Ok(load), ..) => scatter.keep(load),
                    (Err(error), ..) => self.refuse(error),
                }
            }
            Contents::Device(device) => {
                let Some(share) = self.share.get() else {
                    return false;
                };
                self.launched += 1;
                let bucket = &self.plan.buckets()[index];
                if let Err(error) = device.launch(index, bucket, *share) {
                    self.refuse(error);
                }
            }
        }
        true
    }

    /// Sends off what has not left, once the ranks have said how many samples they have.
    pub(super) fn launch_rest(&mut self) -> Result<(), DdpError> {
        while self.launched < self.missing.len() && self.error.is_none() && self.launch() {}
        self.late()
    }

    /// Checks what has come and sends off the rest; on a device, [`Step::launch_rest`] does.
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
        // On a device nothing is sent in a step without samples, of which this rank may not know yet.
        if !matches!(self.contents, Contents::Device(_)) {
            while self.launched < self.missing.len() && self.launch() {}
        }
        self.late()
    }

    /// Tells the other ranks which parameters this one used.
    pub(super) fn submit_used(&mut self) {
        if let (Some(reducer), Some(reports)) = (&self.shared.reducer, &self.reports) {
            reducer.submit(Job::Used(self.used.clone()), reports);
        }
    }

    /// Tells the other ranks in which order gradients came, if this is rank 0; how many reports will come.
    pub(super) fn submit_order(&mut self) -> usize {
        let order = self.order_to_offer();
        match (&self.shared.reducer, &self.reports) {
            (Some(reducer), Some(reports)) => reducer.submit(Job::Order(order), reports),
            _ => 0,
        }
    }

    /// Takes no more gradients, and submits the last jobs of a step in host memory; how many reports will come of all.
    pub(super) fn close_and_submit(&mut self, asks_for_order: bool) -> Result<usize, DdpError> {
        self.close()?;
        let mut expected = self.expected;
        if asks_for_order {
            expected += self.submit_order();
        }
        // From now on the channel closes with the reducer.
        self.reports = None;
        Ok(expected)
    }

    /// What has come after the step was closed, if anything has.
    pub(super) fn late(&mut self) -> Result<(), DdpError> {
        self.error.take().map_or(Ok(()), Err)
    }

    pub(super) fn used(&self) -> &[bool] {
        &self.used
    }

    /// What rank 0 has to say about the order of parameters: nothing if it had no pass, that the
    /// present one be kept if it was not watched, else the order in which gradients came.
    fn order_to_offer(&self) -> Vec<i32> {
        if !self.shared.is_first() || self.samples == 0 {
            return Vec::new();
        }
        if self.order.is_empty() {
            return vec![KEEP_ORDER];
        }
        self.order.iter().map(|number| *number as i32).collect()
    }
}
