//! Local steps, and the outer steps between them (DiLoCo: Douillard et al. 2023).
//!
//! Each rank takes up to this many steps on its own shares, in a *round*; then all take an outer step together. What may
//! fail of others comes at the end of a round. Until an outer step counts, all that a round has changed is the model in
//! hand, the optimizer and the running statistics: survivors of a failure set the round aside, and take the outer step
//! in the next group, with those who are left.

use std::time::{Duration, Instant};

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_train::TrainStep;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{Buffers, Communication, Ddp, EpochBatches, OuterLoop, OuterStep};
use everburn_record::RankStep;

use super::RankLoop;
use super::engine::{Engine, EngineStep, LocalStep, SyncedStep, SyncedSteps};
use super::round_stats::{Round, RoundStats};
use crate::device::memory::PeakMemory;
use crate::error::TrainError;
use crate::metrics::step_exchange::Votes;
use crate::metrics::step_report::StepCost;
use crate::metrics::sums::MetricSums;
use crate::model::erased::{AnyBatch, AnyItem, AnyLoader, AnyModel};
use crate::model::finite::require_finite_loss;

/// Of the outer loop, which `run_in_group` makes before the first epoch.
const MADE: &str = "the outer loop is made when the ranks meet";

/// A round that was under way when the ranks lost each other: what this rank has made of the parameters from
/// which all had begun.
pub(super) struct InterruptedRound {
    round: Round,
    parameters: Vec<f32>,
    buffers: Buffers,
}

/// Local steps, and outer steps between them.
pub(super) struct LocalSteps<'a> {
    loader: &'a AnyLoader,
    epoch: usize,
    /// How many steps a round has at most.
    every: usize,
    /// Gradients stay here; what is done with them is what others do who exchange them.
    inner: Ddp,
    shares: EpochBatches<'a, AnyItem, AnyBatch>,
    /// This rank's times of the previous outer step.
    last_outer_step: RankStep,
    /// No round was made in this epoch since the ranks met.
    begins: bool,
}

/// An outer step that has been exchanged, and does not count yet.
struct Joined {
    stats: RoundStats,
    /// `None` where no rank had a sample.
    step: Option<OuterStep>,
    /// How long this rank stood still for it, in seconds.
    waited: f64,
}

impl Joined {
    /// What it was for this rank.
    fn times(&self) -> RankStep {
        let communication = self.step.as_ref().map(|step| step.communication);
        RankStep {
            seconds: self.waited,
            waited: self.waited,
            exposed: communication.map_or(0.0, |cost| cost.exposed.as_secs_f64()),
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
        let this = Self {
            loader,
            epoch,
            every,
            inner,
            shares: loader.epoch(epoch).behind(ranks.outcome.batches),
            last_outer_step: RankStep::default(),
            begins: true,
        };
        Ok((this, model))
    }
}

impl Engine for LocalSteps<'_> {
    fn left(&self) -> usize {
        self.shares.len()
    }

    fn step(&mut self, ranks: &mut RankLoop, model: AnyModel) -> Result<EngineStep, TrainError> {
        let goes_on = std::mem::take(&mut self.begins) && ranks.any_round_interrupted()?;
        let limit = ranks.setup.config.steps.unwrap_or(usize::MAX);
        let left = self.shares.len();
        let planned = self.every.min(left).min(limit - ranks.outcome.step);
        let mut round = Round::begin(std::mem::take(&mut self.last_outer_step));
        let model = match goes_on {
            true => ranks.resume_round(model, &mut round)?,
            false => {
                ranks.steps_alone(model, &self.inner, &mut self.shares, &mut round, planned)?
            }
        };
        let votes = ranks.votes();
        let joined = match ranks.join(&model, &round, planned, votes, self.epoch) {
            Ok(joined) => joined,
            Err(error) => {
                if ranks.setup.regroup.is_some() && error.may_be_outlived() {
                    ranks.keep_interrupted_round(&model, round)?;
                }
                return Err(error);
            }
        };
        self.last_outer_step = joined.times();
        let (model, synced) = ranks.count(model, joined, &round)?;
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
    /// Takes steps with this rank's shares only: `planned`, or fewer where this rank is to stop, the others
    /// have given up, it is much slower than they are, or what it computes is not a number any more.
    fn steps_alone(
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
        let patience = self.patience(planned);
        for _ in 0..planned {
            let start = Instant::now();
            let Some(share) = shares.next() else { break };
            let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
            let mut times = RankStep {
                data: start.elapsed().as_secs_f64(),
                samples: Some(share.samples as u64),
                ..RankStep::default()
            };
            let step = self.outcome.step + round.made() + 1;
            self.begin_step(step);
            let rate = scheduler.step();
            let mut sums = MetricSums::default();
            if share.samples > 0 {
                let (synced, output, passes) = self.forward_and_backward(&model, share, inner)?;
                self.setup.config.precision.check_reached(self.low_before)?;
                sums = output.read()?;
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
            if is_broken || is_late || self.stop_wanted() || self.setup.group.failure().is_some() {
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

    /// The part of an outer step that can fail of others.
    fn join(
        &mut self,
        model: &AnyModel,
        round: &Round,
        planned: usize,
        votes: Votes,
        epoch: usize,
    ) -> Result<Joined, TrainError> {
        let start = Instant::now();
        let group = self.setup.group.clone();
        let layout = self.metrics.layout(round.sums(), &group)?;
        let stats = round.settle(votes, planned, layout, &group)?;
        for (index, sums) in stats.sums.iter().enumerate() {
            let step = self.outcome.step + 1 + index;
            if sums.samples > 0 {
                require_finite_loss("training loss", sums.mean_loss(), epoch, step)?;
            }
        }
        let step = match stats.samples() {
            0 => None,
            all => Some(self.outer().exchange(model, round.samples(), all)?),
        };
        Ok(Joined {
            stats,
            step,
            waited: start.elapsed().as_secs_f64(),
        })
    }

    /// Counts an outer step. Returns the model from which all ranks continue, and the steps of the round.
    fn count(
        &mut self,
        model: AnyModel,
        joined: Joined,
        round: &Round,
    ) -> Result<(AnyModel, SyncedSteps), TrainError> {
        let Joined {
            stats,
            step,
            waited,
        } = joined;
        self.warn_of_late_ranks(&stats);
        self.pace = stats.pace();
        let made = stats.sums.len();
        let (model, communication) = self.take_outer_step(model, step, made)?;
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
        self.advance(Some(&model), first..=self.outcome.step + made);
        self.record_ranks(self.outcome.step, stats.times);
        let synced = steps.clone().zip(stats.sums).zip(rates).zip(costs);
        let synced = synced.map(|(((number, sums), rate), cost)| SyncedStep {
            step: alone(number, rate),
            sums,
            cost,
        });
        let synced = SyncedSteps {
            steps: synced.collect(),
            range: first..=self.outcome.step,
            votes: stats.votes,
        };
        Ok((model, synced))
    }

    /// The model that all ranks have after an outer step after `made` steps of their own, and what that has cost.
    fn take_outer_step(
        &mut self,
        model: AnyModel,
        step: Option<OuterStep>,
        made: usize,
    ) -> Result<(AnyModel, Communication), TrainError> {
        let outer = self.setup.state.outer.as_mut().expect(MADE);
        let gradients = outer.num_parameters() as u64 * size_of::<f32>() as u64;
        let communication = step
            .as_ref()
            .map_or_else(Communication::default, |step| step.communication);
        let model = match step {
            Some(step) => outer.commit(model, step)?,
            None => model,
        };
        let report = self.outcome.outer.get_or_insert_default();
        report.steps += 1;
        report.bytes += communication.bytes;
        report.bytes_of_gradients += gradients * made as u64;
        Ok((model, communication))
    }

    /// Says, once for each, which ranks have joined an outer step with fewer steps than the others had
    /// patience for.
    fn warn_of_late_ranks(&mut self, stats: &RoundStats) {
        if self.setup.config.outer_patience.is_none() || stats.votes.stop {
            return;
        }
        let members = self.members();
        let most = stats.sums.len();
        for (rank, made) in stats.made.iter().enumerate() {
            let member = members.get(rank).copied().unwrap_or(rank);
            if *made < most && self.late.insert(member) && self.is_first() {
                tracing::warn!(
                    "rank {member} has joined an outer step with {made} of {most} steps, after step {}; its samples for the other steps are skipped",
                    self.outcome.step
                );
            }
        }
    }

    /// Keeps what this rank has learnt in a round that the ranks could not end together.
    fn keep_interrupted_round(&mut self, model: &AnyModel, round: Round) -> Result<(), TrainError> {
        if round.made() == 0 {
            return Ok(());
        }
        self.interrupted_round = Some(InterruptedRound {
            parameters: self.outer().read(model)?,
            buffers: Buffers::read(model)?,
            round,
        });
        Ok(())
    }

    /// Whether a rank has set a round aside: the next outer step then comes at once. All ranks ask.
    fn any_round_interrupted(&self) -> Result<bool, TrainError> {
        if self.setup.regroup.is_none() {
            return Ok(false);
        }
        let own = i64::from(self.interrupted_round.is_some());
        let all = self.setup.group.all_gather(vec![own]).wait()?;
        Ok(all.iter().any(|begun| begun[0] > 0))
    }

    /// Continues with the round that this rank has set aside, if it has.
    fn resume_round(&mut self, model: AnyModel, round: &mut Round) -> Result<AnyModel, TrainError> {
        let Some(interrupted_round) = self.interrupted_round.take() else {
            return Ok(model);
        };
        *round = interrupted_round.round;
        let model = self.outer().write(model, &interrupted_round.parameters);
        Ok(interrupted_round.buffers.write(model))
    }

    fn outer(&self) -> &OuterLoop {
        self.setup.state.outer.as_ref().expect(MADE)
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
