//! When and what a training saves.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use everburn_distributed::Ddp;
use everburn_record::sync::lock;
use everburn_record::{Event, EventKind, Phase, Saving};

use super::RankLoop;
use crate::checkpoint::training_state;
use crate::checkpoint::{Checkpoint, CheckpointFolder, Progress};
use crate::error::TrainError;
use crate::model::erased::AnyModel;
use crate::model::finite::require_finite;

impl RankLoop {
    /// Continues the run that has left a checkpoint.
    pub(super) fn resume(
        &mut self,
        model: AnyModel,
        checkpoint: &Checkpoint,
    ) -> Result<AnyModel, TrainError> {
        let model = self.restore(model, checkpoint)?;
        self.outcome.resumed_after = Some((self.outcome.epoch, self.outcome.step));
        Ok(model)
    }

    /// Takes over the state of a checkpoint.
    pub(super) fn restore(
        &mut self,
        model: AnyModel,
        checkpoint: &Checkpoint,
    ) -> Result<AnyModel, TrainError> {
        let progress = &checkpoint.progress;
        let fits = self.progress().fits(progress);
        fits.map_err(|reason| training_state::refuse(progress, &reason))?;
        self.compare_data(progress);
        let model = self.setup.state.restore(model, checkpoint)?;
        self.stretch_schedule(progress);
        self.outcome.epoch = progress.epoch;
        self.outcome.step = progress.step;
        let by = &self.setup.config.best_by;
        self.outcome.best = progress.best.filter(|_| progress.best_by == *by);
        if progress.best.is_some() && self.outcome.best.is_none() {
            let before = &progress.best_by;
            tracing::warn!(
                "the best epoch was chosen by `{before}`: by `{by}`, the next epoch is the first"
            );
        }
        self.outcome.batches = progress.batches;
        self.outcome.so_far = progress.so_far.clone();
        self.outcome.cost_so_far = progress.cost_so_far;
        // A run that continues in another precision begins with it.
        if let (Some(own), Some(before)) = (&mut self.outcome.loss_scaling, progress.loss_scaling) {
            *own = before;
        }
        self.elastic.interrupted_round = None;
        Ok(model)
    }

    /// Keeps which data the run has learnt from, and warns where those of this process are others.
    fn compare_data(&mut self, progress: &Progress) {
        let data = &self.setup.data_fingerprint;
        let mut earlier = progress.earlier_data.clone();
        if !progress.data.is_empty() && progress.data.all != data.all {
            if self.is_first() {
                tracing::warn!(
                    "the data are not those of the checkpoint: files were added, removed or changed, or this version reads \
                     them in another order; what is left of an epoch that was begun has other samples, and the test may \
                     have samples that the training learned from: eval and the report say so from here on"
                );
            }
            if !earlier.contains(&progress.data) {
                earlier.push(progress.data.clone());
            }
        }
        self.outcome.earlier_data = earlier;
    }

    /// Where the run has more steps, or fewer, than when its checkpoint was written, its learning rates follow the
    /// schedule of a run of this length from here on.
    fn stretch_schedule(&mut self, progress: &Progress) {
        let own = self.progress();
        let lengths = [progress.total_steps, own.total_steps];
        if lengths[0] == lengths[1] {
            return;
        }
        let numbers = own.schedule_numbers;
        let schedule = match self.setup.state.own_schedule {
            true => "task's own".to_string(),
            false if numbers.differ_after(progress.step, own.schedule, lengths) => {
                own.schedule.to_string()
            }
            false => return,
        };
        let left = own.total_steps.saturating_sub(progress.step);
        let state = &mut self.setup.state;
        let rates_differ = state.stretch_schedule(progress.scheduled_steps(), left);
        // A task's own schedule may be the same for any number of steps.
        let changes = rates_differ || !state.own_schedule;
        if self.is_first() && changes && left > 0 {
            let rate = self.setup.state.scheduler.clone().step().base();
            tracing::warn!(
                "the {schedule} schedule of the learning rate was that of {} steps; from step {} on it is that of {}, and begins \
                 at {rate:.3e}",
                progress.total_steps,
                progress.step + 1,
                own.total_steps
            );
        }
    }

    /// Whether a checkpoint is due within an epoch, after one of the steps `steps`.
    pub(super) fn saves_after(&self, mut steps: RangeInclusive<usize>) -> bool {
        let every = self.setup.config.checkpoint_every;
        steps.any(|step| every.is_due_after_step(step))
    }

    /// Whether none was due so far at the end of an epoch or after a number of steps: the same on all ranks.
    pub(super) fn no_checkpoint_was_due(&self) -> bool {
        let mut epochs = 1..=self.outcome.epoch;
        let due = epochs.any(|epoch| self.is_due_at_the_end_of(epoch));
        !due && !self.saves_after(1..=self.outcome.step)
    }

    /// Whether the checkpoint of `epoch` is written.
    pub(super) fn saves_at_the_end_of(&self, epoch: usize) -> bool {
        let ends = self.limit_is_reached() || self.outcome.stopped.is_some();
        ends || self.is_due_at_the_end_of(epoch)
    }

    fn is_due_at_the_end_of(&self, epoch: usize) -> bool {
        let config = &self.setup.config;
        // The best one is kept, so it must have been written.
        let is_best = self.outcome.best.is_some_and(|best| best.epoch == epoch);
        let every = config.checkpoint_every;
        is_best || every.is_due_after_epoch(epoch, config.epochs)
    }

    /// Writes a checkpoint in the middle of an epoch. Running statistics, which differ between ranks, are made equal in what
    /// is written; then each rank continues with its own, which the checkpoint has, too. So checkpoints change no training.
    pub(super) fn save_within_epoch(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
    ) -> Result<AnyModel, TrainError> {
        let _saving = Saving::begin();
        let model = self.open(model)?;
        let own = match &self.setup.over {
            None => ddp.rank_buffers(&model)?,
            // Ranks that hold a model together have no file for theirs, and continue with the mean.
            Some(_) => None,
        };
        let model = match own.is_some() || self.setup.over.is_some() {
            true => ddp.synchronize_buffers(model)?,
            false => model,
        };
        ddp.settle()?;
        require_finite(&model, epoch, self.outcome.step)?;
        self.make_states_equal(&model)?;
        self.setup.state.buffers = own;
        let saved = self.save_checkpoint(&model);
        let own = self.setup.state.buffers.take();
        saved?;
        match own {
            Some(own) => Ok(ddp.with_rank_buffers(model, &own)?),
            None => Ok(model),
        }
    }

    /// Gives each rank its own running statistics, where a checkpoint has those of as many ranks.
    pub(super) fn restore_buffers(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
    ) -> Result<AnyModel, TrainError> {
        let ranks = self.setup.group.world_size();
        match self.setup.state.waiting.buffers.take() {
            Some(all) if self.setup.over.is_none() && all.samples.len() == ranks => {
                Ok(ddp.with_rank_buffers(model, &all)?)
            }
            _ => Ok(model),
        }
    }

    /// Rank 0 writes; where several ranks hold the model, all of them bring their part.
    pub(super) fn save_checkpoint(&mut self, model: &AnyModel) -> Result<(), TrainError> {
        let (start, saving) = (Instant::now(), Saving::begin());
        if self.setup.elasticity.any_may_be_first() {
            self.elastic.recent.due = Some(self.progress().place());
        }
        let states = self.gather_optimizer_state()?;
        let state = &self.setup.state;
        let whole = match &self.setup.over {
            None => states.map(|states| (model.clone(), states)),
            Some(over) => {
                let optimizer = over.gather_optimizer(model, state.optimizer_bytes()?)?;
                Some((over.gather(model.clone())?, optimizer))
            }
        };
        let averaged = match &state.ema {
            Some(ema) if ema.is_shared() => Some(ema.everywhere(model, &self.setup.group)?),
            _ => None,
        };
        if self.records.checkpoints.is_none() {
            return Ok(());
        }
        let progress = self.progress();
        self.setup.live.enter(Phase::Saving);
        let snapshot = match whole {
            None => state.snapshot(model, None, averaged.as_ref(), progress)?,
            Some((model, optimizer)) => {
                state.snapshot(&model, Some(optimizer), averaged.as_ref(), progress)?
            }
        };
        let held = start.elapsed();
        let (run, step) = (self.setup.run.clone(), self.outcome.step as u64);
        let for_hooks = self
            .hooks
            .has_user_hooks()
            .then(|| Arc::clone(&self.hooks.written));
        let ended = move |saved: &Result<PathBuf, TrainError>| {
            if let (Some(written), Ok(path)) = (for_hooks, saved) {
                lock(&written).push(path.clone());
            }
            let event = match saved {
                Ok(path) => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    Event::new(EventKind::Checkpoint, format!("checkpoint {name}"))
                }
                Err(error) => Event::new(EventKind::CheckpointFailed, error.to_string()),
            };
            if let Some(run) = run {
                run.note(Event {
                    step: Some(step),
                    ..event
                });
            }
            drop(saving);
        };
        let sync_hashes = self.records.begin_sync();
        let checkpoint = move || {
            sync_hashes.map_or(Ok(()), |sync| sync())?;
            snapshot.into_checkpoint()
        };
        let begun = match &mut self.records.checkpoints {
            Some(checkpoints) => checkpoints.write(checkpoint, ended),
            None => Ok(()),
        };
        tracing::debug!(
            "a checkpoint has held the training for {held:?}, and for {:?} until the one before was \
             written",
            start.elapsed() - held
        );
        begun
    }

    /// Where the newest checkpoint that was due is not there, because rank 0 was lost while it wrote it,
    /// its successor writes one of what the ranks know now.
    pub(super) fn make_up_for_checkpoint(&mut self, model: &AnyModel) -> Result<(), TrainError> {
        let setup = &self.setup;
        let (Some(due), Some(run)) = (self.elastic.recent.due, &setup.run) else {
            return Ok(());
        };
        // After an epoch's last step comes its own.
        if self.records.checkpoints.is_none() || self.outcome.trained.is_some() {
            return Ok(());
        }
        let folder = CheckpointFolder::new(run.checkpoints(), setup.config.keep_checkpoints);
        let there = setup.config.on_checkpoint_failure.decide(folder.places())?;
        if there.contains(&due) {
            return Ok(());
        }
        let place = self.progress().place();
        tracing::warn!("the checkpoint {due} was due and is not there; {place} is written now");
        self.save_checkpoint(model)
    }

    /// Looks whether the checkpoint that is being written has failed.
    pub(super) fn check_on_checkpoint(&mut self) -> Result<(), TrainError> {
        match &mut self.records.checkpoints {
            Some(checkpoints) => checkpoints.check(),
            None => Ok(()),
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let setup = &self.setup;
        let samples = setup.train.sampler().samples_per_epoch();
        Progress {
            epoch: self.outcome.epoch,
            step: self.outcome.step,
            best: self.outcome.best,
            batches: self.outcome.batches,
            so_far: self.outcome.so_far.clone(),
            cost_so_far: self.outcome.cost_so_far,
            loss_scaling: self.outcome.loss_scaling,
            data: setup.data_fingerprint.clone(),
            earlier_data: self.outcome.earlier_data.clone(),
            chain: self.records.chain(),
            own_optimizer: setup.state.own_optimizer,
            own_schedule: setup.state.own_schedule,
            ..Progress::start(&setup.model_name, &setup.config, samples)
        }
    }
}
