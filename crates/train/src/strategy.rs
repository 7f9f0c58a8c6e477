//! The training loop of one rank, as a burn-train strategy.

mod checkpoints;
mod gradients;
mod virtual_step;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::data::dataloader::Progress as ItemProgress;
use burn::prelude::*;
use burn_train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainStep,
    TrainingComponents, TrainingItem, ValidLoader,
};
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Ddp, DistributedLoader, synchronize_batch_norms};

use crate::checkpoint::Checkpoint;
use crate::checkpoint_every::Clock;
use crate::checkpoint_writer::CheckpointWriter;
use crate::config::TrainingConfig;
use crate::error::TrainError;
use crate::evaluation::{evaluate, infer};
use crate::finite::{require_finite, require_finite_loss};
use crate::memory::PeakMemory;
use crate::model_over_ranks::ModelOverRanks;
use crate::outcome::{LoopOutcome, stopped_by_user};
use crate::renderer::Display;
use crate::report::BestEpoch;
use crate::run_directory::{MetricKind, MetricLine, MetricsFile};
use crate::samples::Samples;
use crate::seeds::mix;
use crate::state_hashes::HashesFile;
use crate::stop::StopSignal;
use crate::tally::{Report, StepCost, Tally, Votes};
use crate::training_state::{self, TrainingState};

/// What a rank's loop needs besides the model.
pub(crate) struct RankSetup<M, I, B> {
    pub(crate) config: TrainingConfig,
    pub(crate) model_name: String,
    pub(crate) group: ProcessGroup,
    pub(crate) device: Device,
    pub(crate) train: DistributedLoader<I, B>,
    pub(crate) validation: Option<DistributedLoader<I, B>>,
    pub(crate) state: TrainingState,
    pub(crate) resume: Option<Checkpoint>,
    /// On rank 0 only.
    pub(crate) checkpoints: Option<CheckpointWriter>,
    /// On rank 0 only.
    pub(crate) metrics: Option<MetricsFile>,
    /// On rank 0 only, where fingerprints are to be written.
    pub(crate) hashes: Option<HashesFile>,
    pub(crate) stop: StopSignal,
    pub(crate) samples: Option<Samples<M>>,
    pub(crate) display: Display,
    /// Where several ranks hold one model together.
    pub(crate) over: Option<Arc<dyn ModelOverRanks<M, B>>>,
}

/// burn-train's strategy for a rank of a process group.
///
/// burn-train's `Learner` does not give its optimizer away again, and a checkpoint needs it; so the
/// loop owns optimizer and scheduler, and takes only the model from the learner.
pub(crate) struct RankStrategy<M, I, B> {
    setup: Mutex<Option<RankSetup<M, I, B>>>,
    outcome: Arc<Mutex<LoopOutcome>>,
}

impl<M, I, B> RankStrategy<M, I, B> {
    pub(crate) fn new(setup: RankSetup<M, I, B>) -> (Self, Arc<Mutex<LoopOutcome>>) {
        let outcome = Arc::new(Mutex::new(LoopOutcome::default()));
        let strategy = Self {
            setup: Mutex::new(Some(setup)),
            outcome: outcome.clone(),
        };
        (strategy, outcome)
    }
}

impl<M, I, B> SupervisedLearningStrategy<M> for RankStrategy<M, I, B>
where
    M: LearnerModel + TrainStep<Input = B> + InferenceStep<Input = B>,
    <M as TrainStep>::Output: Report,
    <M as InferenceStep>::Output: Report,
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    fn fit(
        &self,
        components: TrainingComponents<M>,
        learner: Learner<M>,
        _train: TrainLoader<M>,
        _validation: ValidLoader<M>,
        _starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let setup = lock(&self.setup).take().expect("a strategy is used once");
        let group = setup.group.clone();
        let mut rank_loop = RankLoop {
            setup,
            interrupter: components.interrupter,
            events: components.event_processor,
            outcome: LoopOutcome::default(),
        };
        let model = learner.model();
        let model = match rank_loop.run(model.clone()) {
            Ok(trained) => trained,
            Err(error) => {
                group.abort(error.to_string());
                rank_loop.outcome.error = Some(error);
                model
            }
        };
        *lock(&self.outcome) = rank_loop.outcome;
        (model, rank_loop.events)
    }
}

/// A poisoned lock means that its owner panicked; what it guards here is written in one go.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct RankLoop<M: LearnerModel, I, B> {
    setup: RankSetup<M, I, B>,
    interrupter: Interrupter,
    events: SupervisedTrainingEventProcessor<M>,
    outcome: LoopOutcome,
}

impl<M, I, B> RankLoop<M, I, B>
where
    M: LearnerModel + TrainStep<Input = B> + InferenceStep<Input = B>,
    <M as TrainStep>::Output: Report,
    <M as InferenceStep>::Output: Report,
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    fn run(&mut self, model: M) -> Result<M, TrainError> {
        let mut model = model.fork(&self.setup.device);
        if let Some(checkpoint) = self.setup.resume.take() {
            let progress = &checkpoint.progress;
            let fits = self.progress().fits(progress);
            fits.map_err(|reason| training_state::refuse(progress, &reason))?;
            model = self.setup.state.restore(model, &checkpoint)?;
            self.outcome.epoch = progress.epoch;
            self.outcome.step = progress.step;
            self.outcome.best = progress.best;
            self.outcome.batches = progress.batches;
            self.outcome.so_far = progress.so_far;
        }
        model = self.setup.config.activation_checkpointing.prepare(model);
        let mut config = self.setup.config.ddp;
        let mut replicas = self.setup.group.clone();
        if let Some(over) = &self.setup.over {
            model = over.prepare(model)?;
            if self.outcome.step > 0 {
                let whole = self.setup.state.optimizer_bytes()?;
                let part = over.part_of_optimizer(&model, whole)?;
                self.setup.state.load_optimizer(part)?;
            }
            replicas = over.replicas().clone();
            // The norm is that of all stages together.
            config.max_gradient_norm = None;
        }
        if self.setup.config.sync_batch_norm {
            model = synchronize_batch_norms(model, &replicas)?;
            if !everburn_nn::spans_ranks(&model) && self.setup.group.world_size() > 1 {
                return Err(TrainError::Config(
                    "--sync-batch-norm is for models with batch norms, and this one has none"
                        .to_string(),
                ));
            }
        }
        let (ddp, model) = Ddp::new(model, replicas, config)?;
        let model = self.train_epochs(model, &ddp).and_then(|model| {
            if let Some(checkpoints) = &mut self.setup.checkpoints {
                checkpoints.finish()?;
            }
            Ok(model)
        });
        if let Err(error) = &model {
            // Told while the replicas still stand together: the others would else hear that this
            // rank has left before they hear why.
            self.setup.group.abort(error.to_string());
        }
        model.map(everburn_nn::isolate_batch_norms)
    }

    fn train_epochs(&mut self, mut model: M, ddp: &Ddp) -> Result<M, TrainError> {
        let first = self.outcome.epoch + 1;
        for epoch in first..=self.setup.config.epochs {
            if self.limit_is_reached() {
                break;
            }
            let finished;
            (model, finished) = self.train_epoch(model, ddp, epoch)?;
            model = ddp.synchronize_buffers(model)?;
            if !finished && self.outcome.stopped.is_some() {
                break;
            }
            let validation_loss = self.validate(&model, epoch)?;
            self.show_sample(&model)?;
            if finished {
                self.outcome.epoch = epoch;
            }
            ddp.verify_replicas(&model)?;
            if let Some(over) = &self.setup.over {
                over.verify(&model)?;
            }
            self.finish_epoch(&model, epoch, validation_loss)?;
            if !finished || self.outcome.stopped.is_some() {
                break;
            }
        }
        Ok(model)
    }

    /// Trains on every global batch of an epoch; also tells whether the epoch was read to its end.
    fn train_epoch(
        &mut self,
        mut model: M,
        ddp: &Ddp,
        epoch: usize,
    ) -> Result<(M, bool), TrainError> {
        let total_items = self.setup.train.sampler().samples_per_epoch();
        self.event_train(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items,
        })?;
        // What was learnt of this epoch before a checkpoint in it counts.
        let mut epoch_tally = std::mem::take(&mut self.outcome.so_far);
        let mut epoch_cost = StepCost::default();
        // A step's peak is that from the end of one backward pass to the end of the next.
        let memory = PeakMemory::of(&self.setup.device);
        memory.restart();
        let loader = self.setup.train.clone();
        let mut shares = loader.epoch(epoch).behind(self.outcome.batches);
        let mut clock = Clock::start(self.setup.config.checkpoint_every);
        let mut finished = true;
        loop {
            let start = Instant::now();
            let Some(share) = shares.next() else { break };
            let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
            self.outcome.step += 1;
            let step = self.outcome.step;
            self.setup.group.set_step(step as u64);
            self.seed(step);

            let (synced, local);
            match loader.sampler().virtual_ranks() {
                None => (synced, local) = self.forward_and_backward(&model, share, ddp)?,
                Some(ranks) => {
                    (synced, local, model) =
                        self.step_of_virtual_ranks(model, share, ddp, ranks)?;
                }
            }
            let stop_wanted = self.stop_wanted();
            let peak = memory.bytes();
            memory.restart();
            let group = &self.setup.group;
            let votes = Votes {
                stop: stop_wanted,
                save: self.is_first() && clock.is_due(),
            };
            let verdict = local.all_reduce_with(votes, peak, group);
            let rate = self.setup.state.scheduler.step();
            model = ddp.tie(model.optimize(
                &mut self.setup.state.optimizer,
                rate.clone(),
                synced.gradients,
            ));
            let waiting = Instant::now();
            let (tally, votes, peak_memory) = verdict.wait_with_memory()?;
            let elapsed = start.elapsed();
            let communication = synced.communication;
            let cost = StepCost {
                seconds: elapsed.as_secs_f64(),
                waited: (communication.exposed + waiting.elapsed()).as_secs_f64(),
                exposed: communication.exposed.as_secs_f64(),
                communication: communication.busy.as_secs_f64(),
                gradient_bytes: communication.bytes,
                peak_memory,
            };

            epoch_tally += tally;
            epoch_cost += cost;
            self.outcome.samples += tally.samples;
            self.outcome.batches += 1;
            self.outcome.cost += cost;
            let loss = tally.mean_loss();
            require_finite_loss("training loss", loss, epoch, step)?;
            if step.is_multiple_of(self.setup.config.log_every) {
                let mut line = MetricLine::new(MetricKind::Step, epoch, step, &tally);
                line.cost = cost;
                line.learning_rate = Some(rate.base());
                line.gradient_norm = synced.norm;
                self.log(&line)?;
            }
            self.hash(&model, step, &tally)?;
            if self.is_first() {
                let progress = items(epoch_tally.samples, total_items);
                let report = Report::of_all_ranks(tally, cost);
                let item = TrainingItem::new(report, progress, Some(step), Some(rate));
                self.event_train(LearnerEvent::ProcessedItem(item))?;
            }
            let samples = self.setup.samples.as_ref();
            if shares.len() > 0 && samples.is_some_and(|samples| samples.is_due(step)) {
                self.show_sample(&model)?;
            }
            if (votes.save || self.saves_after(step)) && shares.len() > 0 {
                self.outcome.so_far = epoch_tally;
                model = self.save_within_epoch(model, ddp, epoch)?;
                clock.restart();
            }
            if votes.stop {
                // On whichever rank: this one may learn of a signal only after the others.
                self.outcome.stopped = Some(stopped_by_user(step));
            }
            if votes.stop || self.limit_is_reached() {
                finished = shares.len() == 0;
                break;
            }
        }
        self.event_train(LearnerEvent::EndSplit(epoch))?;
        let mut line = MetricLine::new(MetricKind::Train, epoch, self.outcome.step, &epoch_tally);
        line.cost = epoch_cost;
        self.log(&line)?;
        if finished {
            (self.outcome.batches, self.outcome.so_far) = (0, Tally::default());
        }
        Ok((model, finished))
    }

    fn validate(&mut self, model: &M, epoch: usize) -> Result<Option<f64>, TrainError> {
        let Some(loader) = self.setup.validation.clone() else {
            return Ok(None);
        };
        let total_items = loader.sampler().samples_per_epoch();
        self.event_valid(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items,
        })?;
        let start = Instant::now();
        let (is_first, mut processed, mut iteration) = (self.is_first(), 0, 0);
        let (group, step) = (self.setup.group.clone(), self.outcome.step);
        let stop = (self.setup.stop.clone(), self.interrupter.clone());
        let stop_wanted = || stop.0.is_set() || stop.1.should_stop();
        let model = model.valid();
        let over = self.setup.over.clone();
        let infer = |batch| infer(&model, over.as_deref(), batch);
        let evaluated = evaluate(infer, &loader, &group, stop_wanted, |batch| {
            if !is_first {
                return Ok(());
            }
            processed += batch.samples;
            iteration += 1;
            let report = Report::of_all_ranks(batch, StepCost::default());
            let progress = items(processed, total_items);
            let item = TrainingItem::new(report, progress, Some(iteration), None);
            self.event_valid(LearnerEvent::ProcessedItem(item))
        })?;
        self.event_valid(LearnerEvent::EndSplit(epoch))?;
        let Some(tally) = evaluated else {
            self.outcome.stopped = Some(stopped_by_user(step));
            return Ok(None);
        };
        require_finite_loss("validation loss", tally.mean_loss(), epoch, step)?;
        let mut line = MetricLine::new(MetricKind::Validation, epoch, step, &tally);
        line.cost.seconds = start.elapsed().as_secs_f64();
        self.log(&line)?;
        Ok(Some(tally.mean_loss()))
    }

    /// Rank 0 draws; where several ranks hold the model, all of them bring their part.
    fn show_sample(&self, model: &M) -> Result<(), TrainError> {
        let Some(samples) = &self.setup.samples else {
            return Ok(());
        };
        let model = match &self.setup.over {
            Some(over) => over.gather(model.valid())?,
            None if self.is_first() => model.valid(),
            None => return Ok(()),
        };
        if self.is_first()
            && let Some(text) = samples.draw(&model, self.outcome.step)?
        {
            self.setup.display.show(&text);
        }
        Ok(())
    }

    /// Remembers the best epoch, decides about stopping early and writes the checkpoint. The
    /// numbers are equal to the bit on every rank, and so is the decision.
    fn finish_epoch(
        &mut self,
        model: &M,
        epoch: usize,
        validation_loss: Option<f64>,
    ) -> Result<(), TrainError> {
        if self.is_first() {
            self.event_train(LearnerEvent::EndEpoch(epoch))?;
        }
        if let Some(validation_loss) = validation_loss
            && self.outcome.epoch == epoch
            && self
                .outcome
                .best
                .is_none_or(|best| validation_loss < best.validation_loss)
        {
            self.outcome.best = Some(BestEpoch {
                epoch,
                validation_loss,
            });
        }
        // Before the checkpoint: a run that stops here has one, whatever the interval.
        if let (Some(rule), Some(best)) = (&self.setup.config.early_stopping, self.outcome.best)
            && epoch < self.setup.config.epochs
            && epoch - best.epoch >= rule.patience
        {
            self.outcome.stopped = Some(format!(
                "early: no lower validation loss since epoch {}",
                best.epoch
            ));
        }
        if self.outcome.epoch == epoch {
            if validation_loss.is_none() {
                require_finite(model, epoch, self.outcome.step)?;
            }
            if self.saves_at_the_end_of(epoch) {
                self.save_checkpoint(model)?;
            }
        }
        Ok(())
    }

    /// Random numbers (dropout) depend on seed, step and rank, so that a run that is resumed draws
    /// those that it would have drawn.
    fn seed(&self, step: usize) {
        let seed = self.setup.config.seed;
        let over = self.setup.over.as_ref();
        let stream = over.map_or(self.setup.group.rank(), |over| over.random_stream());
        let seed = mix(mix(seed ^ mix(step as u64)) ^ stream as u64);
        self.setup.device.seed(seed);
    }

    fn limit_is_reached(&self) -> bool {
        let limit = self.setup.config.steps;
        limit.is_some_and(|limit| self.outcome.step >= limit)
    }

    fn is_first(&self) -> bool {
        self.setup.group.rank() == 0
    }

    fn stop_wanted(&self) -> bool {
        self.setup.stop.is_set() || self.interrupter.should_stop()
    }

    fn log(&mut self, line: &MetricLine) -> Result<(), TrainError> {
        match &mut self.setup.metrics {
            Some(metrics) => metrics.write(line),
            None => Ok(()),
        }
    }

    fn event_train(
        &mut self,
        event: LearnerEvent<<M as TrainStep>::Output>,
    ) -> Result<(), TrainError> {
        let result = self.events.process_train(event);
        result.map_err(|error| TrainError::BurnTrain(error.to_string()))
    }

    fn event_valid(
        &mut self,
        event: LearnerEvent<<M as InferenceStep>::Output>,
    ) -> Result<(), TrainError> {
        let result = self.events.process_valid(event);
        result.map_err(|error| TrainError::BurnTrain(error.to_string()))
    }
}

fn items(processed: u64, total: usize) -> ItemProgress {
    ItemProgress::new(processed as usize, total, Some("items".to_string()))
}
