//! What ranks must agree on, and the test.

use burn::module::Module;
use burn_train::InferenceStep;

use super::{Trainer, TrainingData};
use crate::agreement::Agreement;
use crate::checkpoint::{Checkpoint, CheckpointFolder};
use crate::error::TrainError;
use crate::evaluation::{evaluate, infer};
use crate::finite::require_finite_loss;
use crate::model_over_ranks::ModelOverRanks;
use crate::outcome::LoopOutcome;
use crate::run_directory::{MetricKind, MetricLine};
use crate::tally::{Report, Tally};
use crate::training_state::agree_on_newest;

impl Trainer {
    /// Evaluates `model` on the test samples, each counted once, over all ranks; `None` if a rank
    /// was asked to stop first.
    ///
    /// # Errors
    /// [`TrainError`] when a rank fails, or the ranks have different data.
    pub fn evaluate<M, I, B>(
        &self,
        model: &M,
        data: &TrainingData<I, B>,
    ) -> Result<Option<Tally>, TrainError>
    where
        M: Module + InferenceStep<Input = B>,
        <M as InferenceStep>::Output: Report,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        self.evaluate_over(model, data, None)
    }

    pub(super) fn evaluate_over<M, I, B>(
        &self,
        model: &M,
        data: &TrainingData<I, B>,
        over: Option<&dyn ModelOverRanks<M, B>>,
    ) -> Result<Option<Tally>, TrainError>
    where
        M: Module + InferenceStep<Input = B>,
        <M as InferenceStep>::Output: Report,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        self.about_data(data).check(&self.group)?;
        let readers = over.map_or(&self.group, ModelOverRanks::replicas);
        let loader = self.ordered_loader(data.test.clone(), data, readers)?;
        let stop_wanted = || self.stop.is_set();
        let model = model.valid();
        let infer = |batch| infer(&model, over, batch);
        evaluate(infer, &loader, &self.group, stop_wanted, |_| Ok(()))
    }

    pub(super) fn about_data<I, B>(&self, data: &TrainingData<I, B>) -> Agreement {
        Agreement::default()
            .and("model", &self.model_name)
            .and("data", &data.name)
            .and("training samples", data.train.len())
            .and("test samples", data.test.len())
            .and("fingerprint of the data", &data.fingerprint)
    }

    /// Ranks with other data, another seed or another batch size would train together and learn
    /// something that nobody asked for.
    pub(super) fn agreement<I, B>(
        &self,
        data: &TrainingData<I, B>,
    ) -> Result<Agreement, TrainError> {
        let about = self.about_data(data);
        let about = match self.regroup {
            // A rank that comes later goes on all the same.
            Some(_) => about,
            None => about.and("resume", self.resume),
        };
        about.and_config(&self.config)
    }

    /// Rank 0's newest good checkpoint, on every rank.
    pub(super) fn newest_checkpoint(&self) -> Result<Checkpoint, TrainError> {
        let run = self.run.as_ref().filter(|_| self.is_first());
        let keep = self.config.keep_checkpoints;
        let folder = run.map(|run| CheckpointFolder::new(run.checkpoints(), keep));
        if let Some(folder) = &folder {
            folder.clean()?;
        }
        agree_on_newest(&self.group, folder.as_ref())
    }

    pub(super) fn test<M, I, B>(
        &self,
        model: &M,
        data: &TrainingData<I, B>,
        over: Option<&dyn ModelOverRanks<M, B>>,
    ) -> Result<Option<Tally>, TrainError>
    where
        M: Module + InferenceStep<Input = B>,
        <M as InferenceStep>::Output: Report,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        self.evaluate_over(model, data, over)
    }

    pub(super) fn record_test(
        &self,
        tally: &Tally,
        seconds: f64,
        outcome: &LoopOutcome,
    ) -> Result<(), TrainError> {
        require_finite_loss("test loss", tally.mean_loss(), outcome.epoch, outcome.step)?;
        if let Some(run) = self.run.as_ref().filter(|_| self.is_first()) {
            let mut line = MetricLine::new(MetricKind::Test, outcome.epoch, outcome.step, tally);
            line.cost.seconds = seconds;
            let mut metrics = run.metrics()?.on_failure(self.config.on_checkpoint_failure);
            metrics.write(&line)?;
        }
        Ok(())
    }
}
