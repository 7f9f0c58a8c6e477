//! What ranks must agree on, and the test.

use burn::module::Module;
use everburn_record::{ConfusionMatrix, MetricKind};

use super::{Trainer, TrainingData};
use crate::checkpoint::sharing::agree_on_newest;
use crate::checkpoint::weights::with_safetensors;
use crate::checkpoint::{Checkpoint, CheckpointFolder};
use crate::elastic::agreement::Agreement;
use crate::error::TrainError;
use crate::evaluation::{self, Tested};
use crate::metrics::sums::MetricSums;
use crate::model::erased::{AnyBatch, AnyData, AnyModel, Trainable, erase_data};
use crate::model::finite::DivergenceSign;
use crate::model::input_search::{InputSearch, Suspect};
use crate::parallel::model::ParallelModel;
use crate::record::outcome::LoopOutcome;
use crate::record::tensor_board::TensorBoard;

impl Trainer {
    /// Evaluates `model` on the test samples, each counted once, over all ranks; `None` if a rank
    /// was asked to stop first.
    ///
    /// # Errors
    /// [`TrainError`] when a rank fails, the test set is empty, the ranks have different data, or the loss is NaN or infinite:
    /// if a sample is the cause, it is named ([`TrainError::InputNotFinite`]).
    pub fn evaluate<M, I>(
        &self,
        model: &M,
        data: &TrainingData<I, M::Batch>,
    ) -> Result<Option<MetricSums>, TrainError>
    where
        M: Trainable,
        I: Send + Sync + Clone + 'static,
    {
        let (model, data) = (AnyModel::new(model.valid()), erase_data(data));
        let tested = self.test(&model, &data, None, None)?;
        Ok(tested.map(|tested| tested.sums))
    }

    /// What `model` shows on the test samples; after the training of `outcome` also what it takes for what.
    pub(super) fn test(
        &self,
        model: &AnyModel,
        data: &AnyData,
        over: Option<&dyn ParallelModel<AnyModel, AnyBatch>>,
        outcome: Option<&LoopOutcome>,
    ) -> Result<Option<Tested>, TrainError> {
        self.about_data(data)?.check(&self.group)?;
        self.config.check_test(data.test.len())?;
        let readers = over.map_or(&self.group, ParallelModel::replicas);
        let loader = self.ordered_loader(data.test.clone(), data, readers)?;
        let explain = |error: TrainError, batch: Option<usize>| {
            let suspect = Suspect {
                loader: &loader,
                epoch: 0,
                batch,
                first: 0,
                step: outcome.map(|outcome| outcome.step),
                of: "the test",
            };
            let checkpointing = self.config.activation_checkpointing;
            let search = InputSearch {
                group: &self.group,
                members: (0..self.group.world_size()).collect(),
                device: checkpointing.autodiff(self.device.clone()),
                task: self.task.as_deref(),
                shared: true,
            };
            let losses = outcome.and_then(|outcome| outcome.losses);
            search.explain(error, &suspect, DivergenceSign::find(model, losses))
        };
        everburn_nn::autocast(self.config.precision.compute_type(), || {
            evaluation::test(
                (&model.valid(), over),
                (&loader, &self.group),
                || self.stop.is_set(),
                outcome.map(|_| &self.class_names[..]),
                outcome.map(|outcome| (outcome.epoch, outcome.step)),
                explain,
            )
        })
    }

    pub(super) fn about_data(&self, data: &AnyData) -> Result<Agreement, TrainError> {
        let mut about = Agreement::default().and("model", &self.model_name);
        // Before the data, which may follow from them.
        if let Some(task) = &self.task {
            for (setting, value) in task.agreed_settings()? {
                about = about.and(&setting, value);
            }
        }
        // The same data may have another folder, and with it another name, on each machine.
        let about = match data.fingerprint.is_empty() {
            true => about.and("data", &data.name),
            false => about,
        };
        let about = about.and("training samples", data.train.len());
        let about = match &data.validation {
            Some(own) => about.and("validation samples", own.len()),
            None => about,
        };
        Ok(about
            .and("test samples", data.test.len())
            .and("fingerprint of the data", &data.fingerprint.all))
    }

    /// Ranks with other data, another seed or another batch size would train together and learn
    /// something that nobody asked for.
    pub(super) fn agreement(&self, data: &AnyData) -> Result<Agreement, TrainError> {
        let about = self.about_data(data)?;
        // A rank that comes later continues all the same.
        let about = match self.elasticity.is_elastic() {
            true => about,
            false => about.and("resume", self.resume),
        };
        let about = match &*self.begins_with {
            "" => about.and("first weights", "drawn"),
            given => about.and("first weights", given),
        };
        let about = about.and("profile", self.recorder.is_some());
        let about = about.and("hooks", self.hooks.names().join(", "));
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

    /// The model that is tested: the averaged one, where that is what was validated.
    pub(super) fn measured(
        &self,
        model: &AnyModel,
        outcome: &LoopOutcome,
    ) -> Result<AnyModel, TrainError> {
        match (self.config.ema, &outcome.averaged) {
            (Some(ema), Some(averaged)) if ema.validate => {
                let file = averaged.as_ref().clone();
                with_safetensors(model.clone(), file).map_err(TrainError::BurnTrain)
            }
            _ => Ok(model.clone()),
        }
    }

    pub(super) fn record_test(
        &self,
        tested: &Tested,
        outcome: &LoopOutcome,
    ) -> Result<(), TrainError> {
        if let Some(run) = self.run.as_ref().filter(|_| self.is_first()) {
            let (epoch, step) = (outcome.epoch, outcome.step);
            let mut line = tested.sums.line(MetricKind::Test, epoch, step);
            line.cost.seconds = tested.seconds;
            let mut metrics = run.metrics()?.on_failure(self.config.on_checkpoint_failure);
            metrics.write(&line)?;
            if self.config.tensorboard
                && let Some(mut tensor_board) = TensorBoard::open(run, step)
            {
                tensor_board.write(&line);
            }
            if let Some(confusion) = &tested.confusion {
                let confusion = ConfusionMatrix {
                    step: Some(step as u64),
                    ..confusion.clone()
                };
                run.write_json(ConfusionMatrix::FILE, &confusion)?;
            }
        }
        Ok(())
    }
}
