//! What a backward pass fills: buckets that leave when they are full.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use burn::tensor::TensorData;

use crate::bucket::BucketPlan;
use crate::ddp::Shared;
use crate::error::DdpError;
use crate::gradient_tap::GradientSink;
use crate::host::HostBuffer;
use crate::reducer::{Job, Report, lock};

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
    /// The samples of the micro-batches so far.
    pub(super) watched_samples: usize,
    pub(super) reports: Sender<Report>,
    error: Option<DdpError>,
}

/// A bucket that is being filled.
#[derive(Debug)]
pub(super) struct Filling {
    /// `None` once it has left.
    pub(super) buffer: Option<HostBuffer>,
    missing: usize,
}

/// The sink of one micro-batch.
#[derive(Debug)]
pub(super) struct MicroBatch {
    pub(super) step: Arc<Mutex<Step>>,
    /// The micro-batch's share of this rank's samples.
    pub(super) factor: f64,
    pub(super) last: bool,
}

impl GradientSink for MicroBatch {
    fn take(&self, index: usize, gradient: Result<TensorData, String>) {
        lock(&self.step).take(index, gradient, self.factor, self.last);
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
            watched_samples: 0,
            reports,
            error: None,
        }
    }

    /// Puts a gradient into its bucket, and sends off all buckets that are full and whose turn has
    /// come: every rank sends them in the order of the plan, whatever order they fill in.
    pub(super) fn take(
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
    pub(super) fn close(&mut self) -> Result<(Arc<BucketPlan>, Vec<bool>, Vec<usize>), DdpError> {
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
