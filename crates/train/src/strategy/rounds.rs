//! Steps that each rank takes by itself, and the outer steps between them.

use std::time::{Duration, Instant};

use burn_train::{LearnerEvent, TrainStep, TrainingItem};
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{Buffers, Communication, Ddp, EpochBatches, OuterLoop, OuterStep};
use everburn_record::{Phase, RankStep};

use super::round_stats::{Round, RoundStats};
use super::{RankLoop, items};
use crate::checkpoint_every::Clock;
use crate::erased::{AnyBatch, AnyItem, AnyModel};
use crate::error::TrainError;
use crate::finite::require_finite_loss;
use crate::memory::PeakMemory;
use crate::metric_line::{MetricKind, MetricLine};
use crate::metric_sums::MetricSums;
use crate::outcome::stopped_by_user;
use crate::report::OuterReport;
use crate::step_exchange::Votes;
use crate::step_report::{Report, StepCost};

/// Of the outer loop, which `run_in_group` makes before the first epoch.
const MADE: &str = "the outer loop is made when the ranks meet";

/// A round that was under way when the ranks lost each other: what this rank has made of the parameters from
/// which all had begun.
pub(super) struct Leftover {
    round: Round,
    parameters: Vec<f32>,
    buffers: Buffers,
}

/// What an outer step has found, before it counts.
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

impl RankLoop {
    /// Trains on every global batch of an epoch; also tells whether the epoch was read to its end. Each rank
    /// takes up to `every` steps on its own shares, in a *round*; then all take an outer step together.
    ///
    /// What may fail of others comes at the end of a round. Until an outer step counts, all that a round has
    /// changed is the model in hand, the optimizer and the running statistics: survivors of a failure set the
    /// round aside, and take the outer step in the next group, with those who are left.
    pub(super) fn train_epoch_in_rounds(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
        every: usize,
    ) -> Result<(AnyModel, bool), TrainError> {
        let total_items = self.setup.train.sampler().samples_per_epoch();
        self.event_train(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items,
        })?;
        let begins = match self.compiles() {
            true => Phase::Compiling,
            false => Phase::Training,
        };
        self.setup.live.enter_epoch(begins, epoch);
        // Gradients stay here; what is done with them is what others do who exchange them.
        let alone = ProcessGroup::alone(GroupOptions::default());
        let (inner, mut model) = Ddp::new(model, alone, self.setup.config.ddp)?;
        let loader = self.setup.train.clone();
        let mut shares = loader.epoch(epoch).behind(self.outcome.batches);
        let mut clock = Clock::start(self.setup.config.checkpoint_every);
        let mut epoch_cost = StepCost::default();
        let mut behind = RankStep::default();
        let mut finished = true;
        self.keep(&model)?;
        let mut goes_on = self.somebody_has_begun_a_round()?;
        while shares.len() > 0 {
            if self.limit_is_reached() {
                finished = false;
                break;
            }
            let limit = self.setup.config.steps.unwrap_or(usize::MAX);
            let left = shares.len();
            let planned = every.min(left).min(limit - self.outcome.step);
            let mut round = Round::begin(std::mem::take(&mut behind));
            model = match std::mem::take(&mut goes_on) {
                true => self.take_up(model, &mut round)?,
                false => self.steps_alone(model, &inner, &mut shares, &mut round, planned)?,
            };
            let votes = Votes {
                stop: self.stop_wanted(),
                save: self.is_first() && clock.is_due(),
                regroup: self.somebody_waits(),
            };
            let joined = match self.join(&model, &round, planned, votes, epoch) {
                Ok(joined) => joined,
                Err(error) => {
                    if self.setup.regroup.is_some() && error.may_be_outlived() {
                        self.set_aside(&model, round)?;
                    }
                    return Err(error);
                }
            };
            let (votes, newest) = (joined.stats.votes, joined.stats.sums.last().cloned());
            let before = self.outcome.step;
            behind = joined.times();
            let cost;
            (model, cost) = self.count(model, joined, &round, epoch)?;
            epoch_cost += cost;
            let steps = before + 1..=self.outcome.step;
            if shares.len() + steps.clone().count() != left {
                // Others have come further, or this rank has read them before.
                shares = loader.epoch(epoch).behind(self.outcome.batches);
            }
            let sums = newest.unwrap_or_default();
            if self.setup.config.compare_every > 0 {
                model = self.compare(model, ddp, Some(&sums))?;
            }
            self.hash(&model, steps.clone(), &sums)?;
            self.check_on_checkpoint()?;
            let samples = self.setup.samples.as_ref();
            let shows = samples.is_some_and(|it| steps.clone().any(|step| it.is_due(step)));
            if shares.len() > 0 && shows {
                self.show_sample(&model)?;
            }
            if (votes.save || self.saves_after(steps)) && shares.len() > 0 {
                model = self.save_within_epoch(model, ddp, epoch)?;
                self.keep(&model)?;
                clock.restart();
            }
            if votes.stop {
                self.outcome.stopped = Some(stopped_by_user(self.outcome.step));
                finished = shares.len() == 0;
                break;
            }
            if votes.regroup && !self.limit_is_reached() {
                return Err(TrainError::SomebodyWaits);
            }
        }
        self.event_train(LearnerEvent::EndSplit(epoch))?;
        let (step, so_far) = (self.outcome.step, self.outcome.so_far.clone());
        let mut line = MetricLine::new(MetricKind::Train, epoch, step, &so_far);
        line.cost = epoch_cost;
        self.log(&line)?;
        Ok((model, finished))
    }

    /// Takes steps with this rank's shares only: `planned`, or fewer where this rank is to stop, the others
    /// have given up, it is much slower than they are, or what it computes is no number any more.
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
            self.setup.group.set_step(step as u64);
            self.suffer(step);
            self.seed(step);
            let rate = scheduler.step();
            let mut sums = MetricSums::default();
            if share.samples > 0 {
                let (synced, found, passes) = self.forward_and_backward(&model, share, inner)?;
                self.setup.config.precision.check_reached(self.low_before)?;
                sums = found.read()?;
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

    /// Makes an outer step count; the model from which all go on, and what the round has cost this rank.
    fn count(
        &mut self,
        model: AnyModel,
        joined: Joined,
        round: &Round,
        epoch: usize,
    ) -> Result<(AnyModel, StepCost), TrainError> {
        let Joined {
            stats,
            step,
            waited,
        } = joined;
        let first = self.outcome.step + 1;
        let made = stats.sums.len();
        self.tell_of_late_ranks(&stats);
        self.pace = stats.pace();
        let mut communication = Communication::default();
        let outer = self.setup.state.outer.as_mut().expect(MADE);
        let gradients = outer.num_parameters() as u64 * size_of::<f32>() as u64;
        let mut model = model;
        if let Some(step) = step {
            communication = step.communication;
            model = outer.commit(model, step)?;
        }
        let report = self.outcome.outer.get_or_insert_default();
        *report = OuterReport {
            steps: report.steps + 1,
            bytes: report.bytes + communication.bytes,
            bytes_of_checkpoints: report.bytes_of_checkpoints,
            bytes_of_gradients: report.bytes_of_gradients + gradients * made as u64,
        };
        let scheduler = &mut self.setup.state.scheduler;
        let rates = (0..made).map(|_| scheduler.step()).collect::<Vec<_>>();
        let exchange = StepCost {
            seconds: waited,
            waited,
            exposed: communication.exposed.as_secs_f64(),
            communication: communication.busy.as_secs_f64(),
            gradient_bytes: communication.bytes,
            peak_memory: stats.peak_memory,
        };
        let costs = round.costs(made, exchange);
        let cost = costs
            .iter()
            .fold(StepCost::default(), |sum, cost| sum + *cost);
        let mut all = MetricSums::default();
        for sums in &stats.sums {
            all += sums;
        }

        self.outcome.step += made;
        self.outcome.batches += made;
        self.outcome.so_far += &all;
        self.outcome.samples += all.samples;
        self.outcome.cost += cost;
        let last = self.outcome.step;
        self.recent.begin(last);
        self.futile = 0;
        for step in first..=last {
            model = self.corrupt(model, step);
        }
        if let Some(ema) = &mut self.setup.state.ema {
            ema.follow(&model, first..=last);
        }
        self.finish_step(last);
        self.record_ranks(last, stats.times);
        self.keep(&model)?;
        for (index, sums) in stats.sums.iter().enumerate() {
            let step = first + index;
            if step.is_multiple_of(self.setup.config.log_every) && sums.samples > 0 {
                let mut line = MetricLine::new(MetricKind::Step, epoch, step, sums);
                line.cost = costs[index];
                line.learning_rate = Some(rates[index].base());
                self.log(&line)?;
            }
        }
        if let (true, Some(rate)) = (self.is_first(), rates.into_iter().next_back()) {
            let total_items = self.setup.train.sampler().samples_per_epoch();
            let progress = items(self.outcome.so_far.samples, total_items);
            let report = Report::of_all_ranks(all, cost);
            let item = TrainingItem::new(report, progress, Some(last), Some(rate));
            self.event_train(LearnerEvent::ProcessedItem(item))?;
        }
        Ok((model, cost))
    }

    /// Says, once for each, which ranks have joined an outer step with fewer steps than the others had
    /// patience for.
    fn tell_of_late_ranks(&mut self, stats: &RoundStats) {
        if self.setup.config.outer_patience.is_none() || stats.votes.stop {
            return;
        }
        let members = self.members();
        let most = stats.sums.len();
        for (rank, made) in stats.made.iter().enumerate() {
            let member = members.get(rank).copied().unwrap_or(rank);
            if *made < most && self.late.insert(member) && self.is_first() {
                tracing::warn!(
                    "rank {member} has joined an outer step with {made} of {most} steps, behind step {}; \
                     its samples of the others are passed over",
                    self.outcome.step
                );
            }
        }
    }

    /// Keeps what this rank has learnt in a round that the ranks could not end together.
    fn set_aside(&mut self, model: &AnyModel, round: Round) -> Result<(), TrainError> {
        if round.made() == 0 {
            return Ok(());
        }
        self.leftover = Some(Leftover {
            parameters: self.outer().read(model)?,
            buffers: Buffers::read(model)?,
            round,
        });
        Ok(())
    }

    /// Whether a rank has set a round aside: the next outer step then comes at once. All ranks ask.
    fn somebody_has_begun_a_round(&self) -> Result<bool, TrainError> {
        if self.setup.regroup.is_none() {
            return Ok(false);
        }
        let own = i64::from(self.leftover.is_some());
        let all = self.setup.group.all_gather(vec![own]).wait()?;
        Ok(all.iter().any(|begun| begun[0] > 0))
    }

    /// Goes on with the round that this rank has set aside, if it has.
    fn take_up(&mut self, model: AnyModel, round: &mut Round) -> Result<AnyModel, TrainError> {
        let Some(leftover) = self.leftover.take() else {
            return Ok(model);
        };
        *round = leftover.round;
        let model = self.outer().write(model, &leftover.parameters);
        Ok(leftover.buffers.write(model))
    }

    fn outer(&self) -> &OuterLoop {
        self.setup.state.outer.as_ref().expect(MADE)
    }
}
