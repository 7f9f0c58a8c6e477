//! A training as its hooks see it.

use std::ops::RangeInclusive;
use std::path::Path;

use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::Ddp;
use everburn_record::{Event, EventKind};

use super::RankLoop;
use super::hooks::Wish;
use crate::config::TrainingConfig;
use crate::erased::AnyModel;
use crate::error::TrainError;
use crate::metric_sums::MetricSums;
use crate::run_directory::RunDirectory;
use crate::step_exchange::Votes;

/// The training that calls a [`Hook`](crate::Hook), on one of its ranks.
pub struct Run<'a> {
    pub(super) ranks: &'a mut RankLoop,
    /// `None` while a hook of ours works on it, and after it has failed.
    pub(super) model: Option<AnyModel>,
    pub(super) moment: &'a Moment<'a>,
    /// Which hook is called.
    pub(super) hook: String,
}

/// Where a training is.
pub(super) struct Moment<'a> {
    pub(super) ddp: &'a Ddp,
    pub(super) epoch: usize,
    /// The newest steps.
    pub(super) made: RangeInclusive<usize>,
    /// How many global batches of the epoch are left.
    pub(super) left: usize,
    /// What the ranks have voted for after the newest step.
    pub(super) votes: Votes,
    /// What the newest step has shown on all ranks.
    pub(super) sums: MetricSums,
}

impl Run<'_> {
    /// This rank in the present group.
    pub fn rank(&self) -> usize {
        self.group().rank()
    }

    /// How many ranks train.
    pub fn world_size(&self) -> usize {
        self.group().world_size()
    }

    /// The ranks that train: for what hooks tell each other. All of them make the same calls.
    pub fn group(&self) -> &ProcessGroup {
        &self.ranks.setup.group
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.ranks.setup.device
    }

    /// How the training was asked for.
    pub fn config(&self) -> &TrainingConfig {
        &self.ranks.setup.config
    }

    /// The name of what is trained.
    pub fn model_name(&self) -> &str {
        &self.ranks.setup.model_name
    }

    /// The present epoch, counted from 1.
    pub fn epoch(&self) -> usize {
        self.moment.epoch
    }

    /// How many steps have been made over all epochs.
    pub fn step(&self) -> usize {
        self.ranks.outcome.step
    }

    /// The run directory, on a rank that has it: rank 0, and those that may take its place.
    pub fn directory(&self) -> Option<&Path> {
        self.ranks.setup.run.as_ref().map(RunDirectory::path)
    }

    /// The model, as a Burn module: its parameters are walked by a `ModuleVisitor`. Where ranks share the parameters
    /// out (`--shard parameters`, meshes), it has this rank's part.
    pub fn model(&self) -> &AnyModel {
        let model = self.model.as_ref();
        model.expect("no hook of a user is called while the model is away")
    }

    /// Ends the training after the next step on all ranks, as early stopping does: with model, test and report.
    pub fn stop(&mut self, why: impl Into<String>) {
        let (hook, why) = (self.hook.clone(), why.into());
        self.ranks.hooks.wishes.push(Wish::Stop { hook, why });
    }

    /// Has a checkpoint written after the next step.
    pub fn save(&mut self) {
        self.ranks.hooks.save_wanted = true;
    }

    /// Shows a text on rank 0's terminal, among its progress.
    pub fn show(&self, text: &str) {
        if self.ranks.is_first() {
            self.ranks.setup.display.show(text);
        }
    }

    /// Writes a line into `events.jsonl`, which report and monitor show, on rank 0.
    pub fn note(&self, text: impl Into<String>) {
        if self.ranks.is_first() {
            self.ranks.note(Event::new(EventKind::Warning, text.into()));
        }
    }

    /// Has a hook of ours work on the model, which an error leaves nobody.
    pub(super) fn change_model(
        &mut self,
        change: impl FnOnce(&mut RankLoop, AnyModel, &Moment<'_>) -> Result<AnyModel, TrainError>,
    ) -> Result<(), TrainError> {
        let model = self.model.take().expect("the hook before has put it back");
        self.model = Some(change(self.ranks, model, self.moment)?);
        Ok(())
    }
}
