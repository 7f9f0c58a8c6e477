//! When and what a training saves.

use burn_train::{InferenceStep, LearnerModel, TrainStep};
use everburn_distributed::Ddp;

use super::RankLoop;
use crate::checkpoint::Progress;
use crate::error::TrainError;
use crate::finite::require_finite;
use crate::state_hashes::StateHashes;
use crate::tally::{Report, Tally};

impl<M, I, B> RankLoop<M, I, B>
where
    M: LearnerModel + TrainStep<Input = B> + InferenceStep<Input = B>,
    <M as TrainStep>::Output: Report,
    <M as InferenceStep>::Output: Report,
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    /// Whether a checkpoint is due within an epoch, after step `step`.
    pub(super) fn saves_after(&self, step: usize) -> bool {
        self.setup.config.checkpoint_every.is_due_after_step(step)
    }

    /// Whether a checkpoint is due at the end of `epoch`.
    pub(super) fn saves_at_the_end_of(&self, epoch: usize) -> bool {
        let config = &self.setup.config;
        let ends = self.limit_is_reached() || self.outcome.stopped.is_some();
        ends || config
            .checkpoint_every
            .is_due_after_epoch(epoch, config.epochs)
    }

    /// Writes a checkpoint in the middle of an epoch; running statistics, which differ between ranks, are
    /// made equal for it.
    pub(super) fn save_within_epoch(
        &mut self,
        model: M,
        ddp: &Ddp,
        epoch: usize,
    ) -> Result<M, TrainError> {
        let model = ddp.synchronize_buffers(model)?;
        require_finite(&model, epoch, self.outcome.step)?;
        self.save_checkpoint(&model)?;
        Ok(model)
    }

    /// Rank 0 writes; where several ranks hold the model, all of them bring their part.
    pub(super) fn save_checkpoint(&mut self, model: &M) -> Result<(), TrainError> {
        let state = &self.setup.state;
        let whole = match &self.setup.over {
            None => None,
            Some(over) => {
                let optimizer = over.gather_optimizer(model, state.optimizer_bytes()?)?;
                Some((over.gather(model.clone())?, optimizer))
            }
        };
        if self.setup.checkpoints.is_none() {
            return Ok(());
        }
        let checkpoint = match &whole {
            None => state.checkpoint(model, None, self.progress())?,
            Some((model, optimizer)) => {
                state.checkpoint(model, Some(optimizer.clone()), self.progress())?
            }
        };
        match &mut self.setup.checkpoints {
            Some(checkpoints) => checkpoints.write(checkpoint),
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
            so_far: self.outcome.so_far,
            ..Progress::start(&setup.model_name, &setup.config, samples)
        }
    }

    /// Writes the fingerprints of all that has been learnt, where that is asked for and due.
    pub(super) fn hash(&mut self, model: &M, step: usize, tally: &Tally) -> Result<(), TrainError> {
        let due = |every| step.is_multiple_of(every);
        if let Some(file) = &mut self.setup.hashes
            && self.setup.config.hash_every.is_some_and(due)
        {
            let optimizer = self.setup.state.optimizer_bytes()?;
            file.write(&StateHashes::of(step, tally, model, optimizer)?)?;
        }
        Ok(())
    }
}
