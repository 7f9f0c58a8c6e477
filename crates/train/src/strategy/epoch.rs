//! The training steps of an epoch.

use std::time::{Duration, Instant};

use burn_train::{LearnerEvent, TrainingItem};
use everburn_distributed::Ddp;
use everburn_profile::Phase as Doing;
use everburn_record::{Phase, RankStep};

use super::unread::{KnownStep, LocalOutput, OwnStep, SentOutput, Spans, Unread};
use super::{RankLoop, items};
use crate::checkpoint_every::Clock;
use crate::erased::AnyModel;
use crate::error::TrainError;
use crate::finite::require_finite_loss;
use crate::memory::PeakMemory;
use crate::metric_line::{MetricKind, MetricLine};
use crate::metric_sums::MetricSums;
use crate::outcome::stopped_by_user;
use crate::placement::check_batch;
use crate::rank_times::{PastStep, come_with};
use crate::step_exchange::{OwnReply, Verdict, Votes};
use crate::step_report::{Report, StepCost};

impl RankLoop {
    /// Trains on every global batch of an epoch; also tells whether the epoch was read to its end.
    pub(super) fn train_epoch(
        &mut self,
        mut model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
    ) -> Result<(AnyModel, bool), TrainError> {
        let total_items = self.setup.train.sampler().samples_per_epoch();
        self.event_train(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items,
        })?;
        let begins = if self.compiles() {
            Phase::Compiling
        } else {
            Phase::Training
        };
        self.setup.live.enter_epoch(begins, epoch);
        let mut epoch_cost = StepCost::default();
        // A step's peak is that from the end of one backward pass to the end of the next.
        let memory = PeakMemory::of(&self.setup.device);
        memory.restart();
        let loader = self.setup.train.clone();
        let mut shares = loader.epoch(epoch).behind(self.outcome.batches);
        let mut clock = Clock::start(self.setup.config.checkpoint_every);
        let mut finished = true;
        self.keep(&model)?;
        // What is done behind a step (a checkpoint, a comparison, a line of the record) counts for the next.
        let mut start = Instant::now();
        let mut unread = Unread::new();
        loop {
            if self.limit_is_reached() {
                finished = shares.len() == 0;
                break;
            }
            self.profile_step();
            let asked = Instant::now();
            let Some(share) = shares.next() else { break };
            let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
            for part in share.micro_batches.iter().take(1) {
                check_batch(&part.batch, &self.setup.device)?;
            }
            let (data, samples) = (asked.elapsed(), share.samples as u64);
            self.profile(Doing::Other);
            let number = self.outcome.step + 1;
            self.setup.group.set_step(number as u64);
            self.suffer(number);
            self.seed(number);

            model = self.before_passes(model)?;
            let (mut synced, found, passes);
            let (own_samples, scaled) = (share.samples, self.scale_losses(number));
            match loader.sampler().virtual_ranks() {
                None if self.cuts_gradients() => {
                    (synced, found, passes) = self.forward_and_backward_cut(&model, share, ddp)?;
                }
                None => (synced, found, passes) = self.forward_and_backward(&model, share, ddp)?,
                Some(ranks) => {
                    let sums;
                    (synced, sums, passes, model) =
                        self.step_of_virtual_ranks(model, share, ddp, ranks, number)?;
                    found = LocalOutput::Sums(sums);
                }
            }
            let skipped = self.unscale(&model, &mut synced, scaled, own_samples)?;
            self.profile(Doing::Other);
            let (mut waited, mut own_peak) = (Duration::ZERO, None);
            let told = match found {
                LocalOutput::Unread(outputs) => SentOutput::Unread(outputs),
                LocalOutput::Sums(local) => {
                    let group = &self.setup.group;
                    let layout = self.metrics.layout([&local], group)?;
                    let votes = self.votes(&clock);
                    own_peak = peak_of(&memory);
                    if let (Some(recorder), Some(peak)) = (&self.setup.recorder, own_peak) {
                        recorder.peak_memory(peak);
                    }
                    let past = self.past.filter(|past| past.step + 1 == number);
                    let past = come_with(number, group.world_size()).then_some(past);
                    let own = OwnReply {
                        sums: &local,
                        votes,
                        memory: own_peak,
                        past,
                    };
                    let pending = own.tell(layout, group);
                    let mut verdict = Verdict::Pending(pending);
                    if self.setup.regroup.is_some() {
                        // What cannot fail any more may be done to the state that the survivors of a
                        // failure go on with, and nothing else.
                        self.profile(Doing::Waiting);
                        let waiting = Instant::now();
                        verdict = verdict.known()?;
                        waited = waiting.elapsed();
                        self.kept = None;
                    }
                    SentOutput::Verdict(verdict)
                }
            };
            self.profile(Doing::Optimizer);
            let optimizing = Instant::now();
            let rate = match skipped {
                // The next step has it again.
                true => self.setup.state.scheduler.clone().step(),
                false => self.setup.state.scheduler.step(),
            };
            if !skipped {
                model = self.learn(model, synced.gradients, rate.clone(), ddp)?;
            }
            synced.communication.exposed += self.waited_for_parameters();
            self.count_overflow(number, skipped)?;
            let optimizer = optimizing.elapsed();
            self.profile(Doing::Waiting);
            let step = OwnStep {
                number,
                rate,
                gradient_norm: synced.norm,
                skipped,
                communication: synced.communication,
            };
            let left = shares.len();
            let mut times = RankStep {
                data: data.as_secs_f64(),
                forward: passes.forward,
                backward: passes.backward,
                exposed: step.communication.exposed.as_secs_f64(),
                optimizer: optimizer.as_secs_f64(),
                samples: Some(samples),
                peak_memory: own_peak,
                ..RankStep::default()
            };
            let (known, votes) = match told {
                SentOutput::Verdict(verdict) => {
                    let waiting = Instant::now();
                    let told = verdict.wait()?;
                    waited += waiting.elapsed();
                    self.profile(Doing::Records);
                    let elapsed = start.elapsed();
                    start = Instant::now();
                    self.record_ranks(number - 1, told.past);
                    self.advance((!skipped).then_some(&model), number);
                    let spans = Spans {
                        step: elapsed.as_secs_f64(),
                        waited: waited + Duration::from_secs_f64(passes.waited),
                        peak_memory: told.peak_memory,
                    };
                    let cost = spans.cost_of(step.communication);
                    (times.seconds, times.waited) = (cost.seconds, cost.waited);
                    self.past = Some(PastStep {
                        step: number,
                        times,
                    });
                    let sums = told.sums;
                    (vec![KnownStep { step, sums, cost }], told.votes)
                }
                SentOutput::Unread(outputs) => {
                    self.advance((!skipped).then_some(&model), number);
                    unread.push(step, outputs, times);
                    if !unread.is_full() && !self.must_know(number, left) {
                        continue;
                    }
                    let (votes, peak) = (self.votes(&clock), peak_of(&memory));
                    let (known, votes, times) = self.read(&mut unread, votes, peak)?;
                    self.record_ranks(number, times);
                    (known, votes)
                }
            };
            model = self.corrupt(model, number);
            self.finish_step(number);
            self.keep(&model)?;
            let mut sums = MetricSums::default();
            for known in known {
                sums = known.sums.clone();
                epoch_cost += known.cost;
                self.record(known, epoch, total_items)?;
            }
            // Of what each rank has a part of its own of, there is nothing to compare.
            if self.setup.config.compares_after(number) && !self.cuts_parameters() {
                model = self.compare(model, ddp, Some(&sums))?;
            }
            self.hash(&model, number..=number, &sums)?;
            self.check_on_checkpoint()?;
            let samples = self.setup.samples.as_ref();
            if left > 0 && samples.is_some_and(|samples| samples.is_due(number)) {
                model = self.open(model)?;
                self.show_sample(&model)?;
            }
            if (votes.save || self.saves_after(number..=number)) && left > 0 {
                model = self.save_within_epoch(model, ddp, epoch)?;
                self.keep(&model)?;
                clock.restart();
            }
            if votes.stop {
                // On whichever rank: this one may learn of a signal only after the others.
                self.outcome.stopped = Some(stopped_by_user(number));
                finished = left == 0;
                break;
            }
            if votes.regroup && !self.limit_is_reached() {
                return Err(TrainError::SomebodyWaits);
            }
        }
        self.profile_end();
        self.event_train(LearnerEvent::EndSplit(epoch))?;
        let mut line = MetricLine::new(
            MetricKind::Train,
            epoch,
            self.outcome.step,
            &self.outcome.so_far,
        );
        line.cost = epoch_cost;
        self.log(&line)?;
        Ok((model, finished))
    }

    /// What this rank wants after the present step.
    fn votes(&self, clock: &Clock) -> Votes {
        Votes {
            stop: self.stop_wanted(),
            save: self.is_first() && clock.is_due(),
            regroup: self.somebody_waits(),
        }
    }

    /// Step `number` is made, whether or not its numbers are known, and the model has `learnt` in it or not.
    fn advance(&mut self, learnt: Option<&AnyModel>, number: usize) {
        self.outcome.step = number;
        if let (Some(ema), Some(model)) = (&mut self.setup.state.ema, learnt) {
            ema.follow(model, number..=number);
        }
        self.setup.live.step(number);
        self.outcome.batches += 1;
        self.recent.begin(number);
        self.futile = 0;
    }

    /// Adds a step to what the epoch has shown, and records it.
    fn record(
        &mut self,
        known: KnownStep,
        epoch: usize,
        total_items: usize,
    ) -> Result<(), TrainError> {
        let KnownStep { step, sums, cost } = known;
        self.outcome.samples += sums.samples;
        self.outcome.cost += cost;
        let (number, loss) = (step.number, sums.mean_loss());
        if step.skipped && !loss.is_finite() {
            // An activation was too large already, and the mean of the epoch would be no number either.
            return Ok(());
        }
        self.outcome.so_far += &sums;
        require_finite_loss("training loss", loss, epoch, number)?;
        if number.is_multiple_of(self.setup.config.log_every) {
            let mut line = MetricLine::new(MetricKind::Step, epoch, number, &sums);
            line.cost = cost;
            line.learning_rate = Some(step.rate.base());
            line.loss_scale = self.outcome.loss_scaling.map(|scaling| scaling.scale);
            line.skipped_steps = self
                .outcome
                .loss_scaling
                .map(|scaling| scaling.skipped_steps);
            line.gradient_norm = step.gradient_norm.map(|norm| norm.read()).transpose()?;
            self.log(&line)?;
        }
        if self.is_first() {
            let progress = items(self.outcome.so_far.samples, total_items);
            let report = Report::of_all_ranks(sums, cost);
            let item = TrainingItem::new(report, progress, Some(number), Some(step.rate));
            self.event_train(LearnerEvent::ProcessedItem(item))?;
        }
        Ok(())
    }
}

/// The peak of the step that ends here.
fn peak_of(memory: &PeakMemory) -> Option<u64> {
    let peak = memory.bytes();
    memory.restart();
    peak
}
