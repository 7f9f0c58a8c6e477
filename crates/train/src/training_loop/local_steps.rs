//! Local steps, and the outer steps between them (DiLoCo: Douillard et al. 2023).
//!
//! Each rank takes up to this many steps on its own shares, in a *round*; then all take an outer step together. What may
//! fail of others comes at the end of a round. Until an outer step counts, all that a round has changed is the model in
//! hand, the optimizer and the running statistics: survivors of a failure set the round aside, and take the outer step
//! in the next group, with those who are left. They continue with the round, for up to as many steps again, until the
//! process that takes the place of the lost rank is there, so that all meet once.

use std::time::{Duration, Instant};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_train::TrainStep;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{BucketEntry, Communication, Ddp, EpochBatches, OuterLoop, OuterStep};
use everburn_record::units::counted;
use everburn_record::{RankStep, StepCost};

use super::RankLoop;
use super::engine::{Engine, EngineStep, LocalStep, SyncedStep, SyncedSteps};
use super::interrupted_round::LONGEST;
use super::round_stats::{PendingStats, Round, RoundStats};
use super::streaming::Stream;
use crate::device::memory::PeakMemory;
use crate::error::TrainError;
use crate::metrics::sums::MetricSums;
use crate::model::erased::{AnyBatch, AnyItem, AnyLoader, AnyModel};
use crate::model::finite::require_finite_loss;

/// Of the outer loop, which `run_in_group` makes before the first epoch.
const MADE: &str = "the outer loop is made when the ranks meet";

/// Local steps, and outer steps between them.
pub(super) struct LocalSteps<'a> {
    loader: &'a AnyLoader,
    pub(super) epoch: usize,
    /// How many steps a round has at most.
    pub(super) every: usize,
    /// Gradients stay here; what is done with them is what others do who exchange them.
    pub(super) inner: Ddp,
    pub(super) shares: EpochBatches<'a, AnyItem, AnyBatch>,
    /// This rank's times of the previous outer step.
    pub(super) last_outer_step: RankStep,
    /// Where fragments are exchanged in turn, while the next round is made.
    pub(super) stream: Option<Stream>,
}

/// What all ranks have made of a round, and what the exchange was for this one.
pub(super) struct JoinedRound {
    pub(super) stats: RoundStats,
    pub(super) communication: Communication,
    /// How long this rank stood still for it, in seconds.
    pub(super) waited: f64,
}

impl JoinedRound {
    /// What the exchange was for this rank.
    pub(super) fn times(&self) -> RankStep {
        RankStep {
            seconds: self.waited,
            waited: self.waited,
            exposed: self.communication.exposed.as_secs_f64(),
            ..RankStep::default()
        }
    }
}

impl<'a> LocalSteps<'a> {
    /// Begins an epoch after the batches that are done.
    pub(super) fn begin(
        ranks: &RankLoop,
        model: AnyModel,
        loader: &'a AnyLoader,
        epoch: usize,
        every: usize,
    ) -> Result<(Self, AnyModel), TrainError> {
        let alone = ProcessGroup::alone(GroupOptions::default());
        let (inner, model) = Ddp::new(model, alone, ranks.setup.config.ddp)?;
        let fragments = ranks.setup.config.outer.fragments;
        let this = Self {
            loader,
            epoch,
            every: every.div_ceil(fragments.unwrap_or(1)),
            inner,
            shares: loader.epoch(epoch).behind(ranks.outcome.batches),
            last_outer_step: RankStep::default(),
            stream: match fragments {
                Some(_) => Some(Stream::start(&ranks.setup.group)?),
                None => None,
            },
        };
        Ok((this, model))
    }

    /// Makes all ranks equal after a round, and counts it. If they lose each other, the round has up to `more` further steps.
    pub(super) fn join(
        &mut self,
        ranks: &mut RankLoop,
        model: AnyModel,
        mut round: Round,
        planned: usize,
        more: usize,
    ) -> Result<(AnyModel, SyncedSteps), TrainError> {
        let (joined, step) = match ranks.join(&model, &round, planned, self.epoch) {
            Ok(joined) => joined,
            Err(error) => {
                let model = self.extend(ranks, model, &mut round, more, &error)?;
                return Err(ranks.interrupt(&model, round, error)?);
            }
        };
        let model = match step {
            Some(step) => ranks.outer_mut().commit(model, step)?,
            None => model,
        };
        self.last_outer_step = joined.times();
        let synced = ranks.count(&model, joined, &round, self.inner.parameters());
        Ok((model, synced))
    }
}

impl Engine for LocalSteps<'_> {
    fn left(&self) -> usize {
        self.shares.len()
    }

    fn step(&mut self, ranks: &mut RankLoop, model: AnyModel) -> Result<EngineStep, TrainError> {
        // Of the first round in a group.
        let goes_on = std::mem::take(&mut ranks.elastic.resumes_round);
        let before = ranks.outcome.step + self.stream.as_ref().map_or(0, Stream::steps);
        let limit = ranks.setup.config.steps.unwrap_or(usize::MAX);
        let left = self.shares.len();
        let longest = self
            .every
            .saturating_mul(LONGEST)
            .min(left)
            .min(limit - before);
        let planned = match goes_on {
            // Also what ranks have made in wait for others, or the round before it, whose exchange was under way.
            true => longest,
            false => self.every.min(longest),
        };
        let mut round = Round::begin(before + 1, std::mem::take(&mut self.last_outer_step));
        let model = match goes_on {
            true => ranks.resume_round(model, &mut round)?,
            false => {
                ranks.steps_alone(model, &self.inner, &mut self.shares, &mut round, planned)?
            }
        };
        if self.stream.is_some() && !goes_on {
            return self.stream_round(ranks, model, round, planned);
        }
        // None in the last round of an epoch, after which the ranks validate: a round has batches and metrics of one epoch. After
        // a loss there, the others meet at once, and once more when the lost rank is back: steps are all that a wait could be
        // filled with.
        let more = match goes_on {
            // Where it was set aside, the batches of its steps are not read by this engine.
            true => 0,
            false => longest.saturating_sub(round.made()),
        };
        let (model, synced) = self.join(ranks, model, round, planned, more)?;
        if self.shares.len() + synced.range.clone().count() != left {
            // Others have come further, or this rank has read them before.
            let epoch = self.loader.epoch(self.epoch);
            self.shares = epoch.behind(ranks.outcome.batches);
        }
        Ok(EngineStep {
            model,
            synced: Some(synced),
        })
    }
}

impl RankLoop {
    /// Takes further steps of a round with this rank's shares only: `planned`, or fewer where this rank is to stop, the others
    /// have given up, it is much slower than they are, or what it computes is not a number any more.
    pub(super) fn steps_alone(
        &mut self,
        mut model: AnyModel,
        inner: &Ddp,
        shares: &mut EpochBatches<'_, AnyItem, AnyBatch>,
        round: &mut Round,
        planned: usize,
    ) -> Result<AnyModel, TrainError> {
        let memory = PeakMemory::of(&self.setup.device);
        memory.restart();
        // It counts at the outer step, with all that the others have made.
        let mut scheduler = self.setup.state.scheduler.clone();
        for _ in self.outcome.step + 1..round.first() + round.made() {
            scheduler.step();
        }
        let stops_at_once = !self.streams();
        let patience = self.patience(round.made() + planned);
        for _ in 0..planned {
            let start = Instant::now();
            let Some(share) = shares.next() else { break };
            let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
            let mut times = RankStep {
                data: start.elapsed().as_secs_f64(),
                samples: Some(share.samples as u64),
                ..RankStep::default()
            };
            let step = round.first() + round.made();
            self.begin_step(step);
            let rate = scheduler.step();
            let mut sums = MetricSums::default();
            if share.samples > 0 {
                let (synced, output, passes) = self.forward_and_backward(&model, share, inner)?;
                self.setup.config.precision.check_reached(self.low_before)?;
                sums = output.read()?;
                if self.missing_gradients.are_counted(round.made()) {
                    let parameters = inner.parameters();
                    self.missing_gradients
                        .note(&model, &synced.gradients, parameters);
                }
                let optimizing = Instant::now();
                let optimizer = &mut self.setup.state.optimizer;
                model = inner.tie(model.optimize(optimizer, rate, synced.gradients));
                times.optimizer = optimizing.elapsed().as_secs_f64();
                (times.forward, times.backward) = (passes.forward, passes.backward);
            }
            self.setup.live.step(step);
            times.seconds = start.elapsed().as_secs_f64();
            times.peak_memory = memory.bytes();
            let is_broken = sums.samples > 0 && !sums.loss_sum.is_finite();
            round.add(sums, times);
            memory.restart();
            let is_late = patience.is_some_and(|patience| round.elapsed() > patience);
            let stops = stops_at_once && self.stop_wanted();
            if is_broken || is_late || stops || self.leaves_round() {
                break;
            }
        }
        Ok(model)
    }

    /// How long a round may take before this rank joins the others with what it has.
    fn patience(&self, planned: usize) -> Option<Duration> {
        let (times, pace) = (self.setup.config.outer_patience?, self.pace?);
        Duration::try_from_secs_f64(times * pace * planned as f64).ok()
    }

    /// Begins to add up what all ranks have made of a round, none of them in more than `planned` steps.
    pub(super) fn send_round(
        &mut self,
        round: &Round,
        planned: usize,
    ) -> Result<PendingStats, TrainError> {
        let group = self.setup.group.clone();
        let layout = self.metrics.layout(round.sums(), &group)?;
        let flags = self.missing_gradients.flags();
        Ok(round.send(self.votes(), planned, layout, &group, &flags))
    }

    /// The part of an outer step that can fail of others; no outer step where no rank had a sample.
    fn join(
        &mut self,
        model: &AnyModel,
        round: &Round,
        planned: usize,
        epoch: usize,
    ) -> Result<(JoinedRound, Option<OuterStep>), TrainError> {
        let start = Instant::now();
        let stats = self.send_round(round, planned)?.wait()?;
        self.require_finite_losses(&stats, epoch)?;
        let step = match stats.samples() {
            0 => None,
            all => Some(self.outer().prepare(model, round.samples(), all)?),
        };
        let joined = JoinedRound {
            stats,
            communication: step
                .as_ref()
                .map_or_else(Communication::default, |step| step.communication),
            waited: start.elapsed().as_secs_f64(),
        };
        Ok((joined, step))
    }

    /// Refuses the steps after the newest that counts if the loss of one is not a number.
    pub(super) fn require_finite_losses(
        &self,
        stats: &RoundStats,
        epoch: usize,
    ) -> Result<(), TrainError> {
        for (step, sums) in (self.outcome.step + 1..).zip(&stats.sums) {
            if sums.samples > 0 {
                require_finite_loss("training loss", sums.mean_loss(), Some((epoch, step)))?;
            }
        }
        Ok(())
    }

    /// Counts a round, after the exchange that belongs to it. Returns its steps.
    pub(super) fn count(
        &mut self,
        model: &AnyModel,
        joined: JoinedRound,
        round: &Round,
        parameters: &[BucketEntry],
    ) -> SyncedSteps {
        let JoinedRound {
            stats,
            communication,
            waited,
        } = joined;
        self.warn_of_late_ranks(&stats);
        self.pace = stats.pace();
        let made = stats.sums.len();
        for flags in &stats.flags {
            self.missing_gradients.join(flags);
        }
        self.count_gradients(made, parameters);
        let gradients = self.outer().num_parameters() as u64 * size_of::<f32>() as u64;
        let report = self.outcome.outer.get_or_insert_default();
        report.steps += 1;
        report.bytes += communication.bytes;
        report.bytes_of_gradients += gradients * made as u64;
        let costs = round.costs(
            made,
            StepCost {
                seconds: waited,
                waited,
                exposed: communication.exposed.as_secs_f64(),
                communication: communication.busy.as_secs_f64(),
                gradient_bytes: communication.bytes,
                peak_memory: stats.peak_memory,
            },
        );
        let scheduler = &mut self.setup.state.scheduler;
        let rates: Vec<_> = (0..made).map(|_| scheduler.step()).collect();
        let first = self.outcome.step + 1;
        let steps = first..first + made;
        let common = self.setup.state.ema.is_some().then(|| self.common(model));
        self.advance(common.as_ref(), first..=self.outcome.step + made);
        self.record_ranks(self.outcome.step, stats.times);
        let synced = steps.clone().zip(stats.sums).zip(rates).zip(costs);
        let synced = synced.map(|(((number, sums), rate), cost)| SyncedStep {
            step: alone(number, rate),
            sums,
            cost,
        });
        SyncedSteps {
            steps: synced.collect(),
            range: first..=self.outcome.step,
            votes: stats.votes,
        }
    }

    /// Says, once for each, which ranks have joined an outer step with fewer steps than the others had
    /// patience for.
    fn warn_of_late_ranks(&mut self, stats: &RoundStats) {
        if self.setup.config.outer_patience.is_none() {
            return;
        }
        let members = self.members();
        for (rank, made) in stats.late_ranks(self.elastic.interrupted) {
            let member = members.get(rank).copied().unwrap_or(rank);
            if self.late.insert(member) && self.is_first() {
                tracing::warn!(
                    "rank {member} has joined an outer step with {made} of {}, after step {}; its samples for the other steps are skipped",
                    counted(stats.sums.len(), "step"),
                    self.outcome.step
                );
            }
        }
    }

    pub(super) fn outer(&self) -> &OuterLoop {
        self.setup.state.outer.as_ref().expect(MADE)
    }

    pub(super) fn outer_mut(&mut self) -> &mut OuterLoop {
        self.setup.state.outer.as_mut().expect(MADE)
    }
}

/// A step of which nothing was exchanged.
fn alone(number: usize, rate: ModuleLearningRate) -> LocalStep {
    LocalStep {
        number,
        rate,
        gradient_norm: None,
        skipped: false,
        communication: Communication::default(),
    }
}
