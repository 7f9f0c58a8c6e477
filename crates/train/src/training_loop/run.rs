//! A training as its hooks see it.

use std::ops::RangeInclusive;
use std::path::Path;

use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::Ddp;
use everburn_record::{Event, EventKind};

use super::RankLoop;
use super::hooks::HookRequest;
use crate::config::TrainingConfig;
use crate::error::TrainError;
use crate::metrics::step_reduction::Votes;
use crate::metrics::sums::MetricSums;
use crate::model::erased::AnyModel;
use crate::record::run_directory::RunDirectory;

/// The training that calls a [`Hook`](crate::Hook), on one of its ranks.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Hook, HookError, MetricLine, Run};
///
/// struct StopWhenGood;
///
/// impl Hook for StopWhenGood {
///     fn after_step(&mut self, line: &MetricLine, run: &mut Run<'_>) -> Result<(), HookError> {
///         if line.loss < 0.01 {
///             run.stop("the loss is low enough");
///         }
///         Ok(())
///     }
/// }
/// ```
pub struct Run<'a> {
    pub(super) ranks: &'a mut RankLoop,
    /// `None` while a built-in hook works on it, and after that hook has failed.
    pub(super) model: Option<AnyModel>,
    pub(super) context: &'a StepContext<'a>,
    /// The name of the hook that is called.
    pub(super) hook: String,
}

/// The position of a training.
pub(super) struct StepContext<'a> {
    pub(super) ddp: &'a Ddp,
    pub(super) epoch: usize,
    /// The newest steps, by number.
    pub(super) steps: RangeInclusive<usize>,
    /// How many global batches of the epoch are left.
    pub(super) left: usize,
    pub(super) votes: Votes,
    /// The metrics of the newest step over all ranks.
    pub(super) sums: MetricSums,
}

impl Run<'_> {
    /// This rank in the current group.
    pub fn rank(&self) -> usize {
        self.group().rank()
    }

    /// How many ranks train.
    pub fn world_size(&self) -> usize {
        self.group().world_size()
    }

    /// The process group of the training, for hooks that exchange something. All ranks make the same calls.
    pub fn group(&self) -> &ProcessGroup {
        &self.ranks.setup.group
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.ranks.setup.device
    }

    /// The configuration of the training.
    pub fn config(&self) -> &TrainingConfig {
        &self.ranks.setup.config
    }

    /// The name of the model.
    pub fn model_name(&self) -> &str {
        &self.ranks.setup.model_name
    }

    /// The current epoch, from 1.
    pub fn epoch(&self) -> usize {
        self.context.epoch
    }

    /// The number of steps so far, over all epochs.
    pub fn step(&self) -> usize {
        self.ranks.outcome.step
    }

    /// The run directory on ranks that have it: rank 0, and in elastic jobs those that may become rank 0.
    pub fn directory(&self) -> Option<&Path> {
        self.ranks.setup.run.as_ref().map(RunDirectory::path)
    }

    /// The model, a Burn module: a `ModuleVisitor` visits its parameters. With `--shard parameters` and meshes it
    /// holds this rank's shard; with `--outer-fragments` it is this rank's own between two exchanges.
    pub fn model(&self) -> &AnyModel {
        let model = self.model.as_ref();
        model.expect("user hooks are called while the model is here")
    }

    /// Ends the training after the next step on all ranks, as early stopping does: model, test and report are written.
    pub fn stop(&mut self, why: impl Into<String>) {
        let (hook, why) = (self.hook.clone(), why.into());
        self.ranks
            .hooks
            .requests
            .push(HookRequest::Stop { hook, why });
    }

    /// Requests a checkpoint after the next step.
    pub fn save(&mut self) {
        self.ranks.hooks.save_wanted = true;
    }

    /// Prints a text on rank 0's terminal, between the lines of progress.
    pub fn show(&self, text: &str) {
        if self.ranks.is_first() {
            self.ranks.setup.display.show(text);
        }
    }

    /// Writes an event to `events.jsonl` on rank 0; report and monitor show it.
    pub fn note(&self, text: impl Into<String>) {
        if self.ranks.is_first() {
            self.ranks.note(Event::new(EventKind::Warning, text.into()));
        }
    }

    /// Runs a built-in hook's work on the model. An error drops the model.
    pub(super) fn change_model(
        &mut self,
        change: impl FnOnce(&mut RankLoop, AnyModel, &StepContext<'_>) -> Result<AnyModel, TrainError>,
    ) -> Result<(), TrainError> {
        let model = self
            .model
            .take()
            .expect("the previous hook has put it back");
        self.model = Some(change(self.ranks, model, self.context)?);
        Ok(())
    }
}
