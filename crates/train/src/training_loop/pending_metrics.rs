//! Steps whose metrics are still on the device.
//!
//! To read the loss of a step from a GPU is to wait for it with an empty queue. So the metrics of some steps stay on
//! the device, and are read and exchanged together. All ranks choose the same number of steps: as many as take a
//! quarter of a second by the ranks' mean, and none where something needs the metrics: a checkpoint, a comparison, the
//! last step of an epoch or of the training. The exchange carries requests to stop, too.

use std::time::{Duration, Instant};

use everburn_collectives::group::ReduceOp;
use everburn_distributed::Communication;
use everburn_record::{RankStep, StepCost};

use super::RankLoop;
use super::engine::{LocalStep, SyncedStep};
use crate::config::read_metrics::{ReadMetrics, steps_unread};
use crate::error::TrainError;
use crate::metrics::rank_times;
use crate::metrics::step_reduction::{StepCodec, Votes};
use crate::metrics::step_report::StepReport;
use crate::metrics::sums::MetricSums;

/// The metrics of a local batch.
pub(super) enum LocalOutput {
    /// On the host.
    Sums(MetricSums),
    /// On the device: the outputs of the micro-batches.
    OnDevice(Vec<StepReport>),
}

impl LocalOutput {
    pub(super) fn read(self) -> Result<MetricSums, TrainError> {
        match self {
            Self::Sums(sums) => Ok(sums),
            Self::OnDevice(outputs) => {
                let sums = StepReport::all_sums(&outputs);
                let sums = sums.map_err(|error| TrainError::Device(error.to_string()))?;
                Ok(sums
                    .into_iter()
                    .fold(MetricSums::default(), |all, part| all + part))
            }
        }
    }
}

/// The steps of this rank whose numbers have not been read.
pub(super) struct PendingMetrics {
    steps: Vec<(LocalStep, Vec<StepReport>)>,
    /// What each of them was for this rank, by its host's clock.
    times: Vec<RankStep>,
    /// How long the reading before them has held the rank up for the others.
    waited: Duration,
    /// How many there may be.
    limit: usize,
    since: Instant,
}

impl PendingMetrics {
    /// At first each step is read: nobody knows how long one takes.
    pub(super) fn new() -> Self {
        Self {
            steps: Vec::new(),
            times: Vec::new(),
            waited: Duration::ZERO,
            limit: 1,
            since: Instant::now(),
        }
    }

    pub(super) fn push(&mut self, step: LocalStep, outputs: Vec<StepReport>, times: RankStep) {
        self.steps.push((step, outputs));
        self.times.push(times);
    }

    pub(super) fn is_full(&self) -> bool {
        self.steps.len() >= self.limit
    }

    /// Takes all steps, each with what this rank has found in it.
    fn read(&mut self) -> Result<Vec<(LocalStep, MetricSums)>, TrainError> {
        let mut outputs = Vec::new();
        let mut steps = Vec::new();
        for (step, own) in self.steps.drain(..) {
            steps.push((step, own.len()));
            outputs.extend(own);
        }
        let sums = StepReport::all_sums(&outputs);
        let sums = sums.map_err(|error| TrainError::Device(error.to_string()))?;
        let mut sums = sums.into_iter();
        let add = |(step, parts)| {
            let parts = sums.by_ref().take(parts);
            (
                step,
                parts.fold(MetricSums::default(), |all, part| all + part),
            )
        };
        Ok(steps.into_iter().map(add).collect())
    }
}

impl RankLoop {
    /// Whether the numbers of steps are read late: on all ranks or on none.
    ///
    /// Not where a step must be known before the next: survivors continue with the newest that all have made,
    /// faults on purpose and fingerprints belong to theirs, and what scales losses is read in each step anyway.
    pub(super) fn agree_on_reading(&self) -> Result<bool, TrainError> {
        let setup = &self.setup;
        let config = &setup.config;
        // These are the same on all ranks.
        let exact = setup.elasticity.rolls_back()
            || setup.over.is_some()
            || config.virtual_ranks.is_some()
            || self.balancer.is_some()
            || config.precision.scales_losses()
            || config.read_metrics == ReadMetrics::EachStep;
        if exact {
            return Ok(false);
        }
        let own = config.read_metrics.is_late_on(&setup.device)
            && setup.recorder.is_none()
            && config.hash_every.is_none()
            && config.chaos.is_none();
        if setup.group.world_size() == 1 {
            return Ok(own);
        }
        let all = setup.group.all_reduce(vec![u8::from(own)], ReduceOp::Min);
        Ok(all.wait()? == [1])
    }

    /// Whether all numbers have to be known after step `step`, behind which `left` batches of the epoch come.
    /// The same on every rank.
    pub(super) fn must_know(&self, step: usize, left: usize) -> bool {
        left == 0
            || self.limit_is_reached()
            || self.setup.config.compares_after(step)
            || self.saves_after(step..=step)
            || self.shows_after(step..=step)
    }

    /// Reads the metrics of all pending steps and sums them over all ranks, with the votes of all ranks and the mean
    /// times of these steps on each.
    pub(super) fn read(
        &mut self,
        pending: &mut PendingMetrics,
        votes: Votes,
        memory: Option<u64>,
    ) -> Result<(Vec<SyncedStep>, Votes, Vec<RankStep>), TrainError> {
        let steps = pending.read()?;
        let count = steps.len().max(1);
        let elapsed = pending.since.elapsed();
        pending.since = Instant::now();
        let group = self.setup.group.clone();
        let each = elapsed.as_secs_f64() / count as f64;
        let waited_before = pending.waited.as_secs_f64() / count as f64;
        let own = RankStep {
            seconds: each,
            waited: waited_before,
            peak_memory: memory,
            ..RankStep::mean(&std::mem::take(&mut pending.times))
        };
        let sums = steps.iter().map(|(_, own)| own);
        let codec = StepCodec {
            layout: self.metrics.layout(sums.clone(), &group)?,
            steps: steps.len(),
            own: rank_times::NUMBERS,
            ranks: group.world_size(),
        };
        let numbers = codec.pack(votes, sums, group.rank(), &rank_times::numbers_of(&own));
        let waiting = Instant::now();
        let numbers = group.all_reduce(numbers, ReduceOp::Sum).wait()?;
        let waited = waiting.elapsed();
        pending.waited = waited;
        let told = codec.unpack(&numbers);
        let times = rank_times::of_ranks(&told.of_ranks.concat(), |rank| rank);
        let peak_memory = times.iter().filter_map(|times| times.peak_memory).max();
        // The first number of each rank is how long its steps took.
        let seconds: f64 = told.of_ranks.iter().map(|own| own[0]).sum();
        pending.limit = steps_unread(seconds / codec.ranks as f64);
        let spans = Spans {
            step: each,
            waited: waited / u32::try_from(count).unwrap_or(u32::MAX),
            peak_memory,
        };
        let known = steps.into_iter().zip(told.sums);
        let known = known.map(|((step, _), sums)| SyncedStep {
            cost: spans.cost_of(step.communication),
            sums,
            step,
        });
        Ok((known.collect(), told.votes, times))
    }
}

/// What each of some steps took.
pub(super) struct Spans {
    /// In seconds.
    pub(super) step: f64,
    /// For the verdict on it.
    pub(super) waited: Duration,
    pub(super) peak_memory: Option<u64>,
}

impl Spans {
    pub(super) fn cost_of(&self, communication: Communication) -> StepCost {
        StepCost {
            seconds: self.step,
            waited: (communication.exposed + self.waited).as_secs_f64(),
            exposed: communication.exposed.as_secs_f64(),
            communication: communication.busy.as_secs_f64(),
            gradient_bytes: communication.bytes,
            peak_memory: self.peak_memory,
        }
    }
}
