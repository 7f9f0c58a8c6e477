//! The hooks of a training: the built-in ones and the user's.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use everburn_collectives::group::CollectiveError;
use everburn_collectives::worker::message_of;
use everburn_distributed::{Ddp, all_gather_object};
use everburn_record::sync::lock;
use everburn_record::{MetricLine, Saving};
use serde::{Deserialize, Serialize};

use super::RankLoop;
use super::run::{Run, StepContext};
use crate::error::TrainError;
use crate::hook::{EpochLines, Hook, HookError};
use crate::metrics::step_reduction::Votes;
use crate::metrics::sums::MetricSums;
use crate::model::erased::AnyModel;
use crate::record::outcome::Stopped;

/// The hooks of a rank, and their requests.
#[derive(Default)]
pub(super) struct HookState {
    /// In the order of the calls: built-in ones, the user's, and last the checkpoints, which a user's hook may request.
    list: Vec<Box<dyn Hook>>,
    /// Where the user's begin in `list`.
    built_in_before: usize,
    has_user_hooks: bool,
    /// [`Hook::at_start`] was called.
    started: bool,
    /// Requests of this rank that the other ranks do not have yet.
    pub(super) requests: Vec<HookRequest>,
    /// A hook has requested a checkpoint, for which the ranks have not voted yet.
    pub(super) save_wanted: bool,
    /// The positions in `list` of hooks of this rank that have failed; they are not called again.
    failed: BTreeSet<usize>,
    /// The first failure on any rank. The training ends with it after a last checkpoint.
    failure: Option<TrainError>,
    /// Checkpoints for which [`Hook::after_checkpoint`] is due.
    pub(super) written: Arc<Mutex<Vec<PathBuf>>>,
}

impl HookState {
    pub(super) fn new(user_hooks: Vec<Box<dyn Hook>>) -> Self {
        let mut list: Vec<Box<dyn Hook>> = vec![
            Box::new(CompareReplicas),
            Box::new(HashState),
            Box::new(DrawSamples),
        ];
        let (built_in_before, has_user_hooks) = (list.len(), !user_hooks.is_empty());
        list.extend(user_hooks);
        list.push(Box::new(SaveCheckpoints));
        Self {
            list,
            built_in_before,
            has_user_hooks,
            ..Self::default()
        }
    }

    pub(super) fn into_user_hooks(mut self) -> Vec<Box<dyn Hook>> {
        self.list.pop();
        self.list.split_off(self.built_in_before)
    }

    /// All ranks have these `votes`. What a hook requested before an exchange that failed is requested again in the next one.
    pub(super) fn vote_counts(&mut self, votes: Votes) {
        self.save_wanted &= !votes.save;
    }

    /// Whether the user has hooks: the same on all ranks.
    pub(super) fn has_user_hooks(&self) -> bool {
        self.has_user_hooks
    }
}

/// What a user's hook requests of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum HookRequest {
    /// Ends the training early.
    Stop { hook: String, why: String },
    /// Ends the training with a failure of the hook.
    Fail { hook: String, reason: String },
}

struct CompareReplicas;

impl Hook for CompareReplicas {
    fn after_steps(&mut self, _: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        let config = &run.ranks.setup.config;
        let due = config.compares_after_any(run.context.steps.clone());
        // Shards differ from rank to rank.
        if due && !run.ranks.shards_parameters() {
            run.change_model(|ranks, model, at| ranks.compare(model, at.ddp, Some(&at.sums)))?;
        }
        Ok(())
    }
}

struct HashState;

impl Hook for HashState {
    fn after_steps(&mut self, _: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        run.change_model(|ranks, model, at| {
            ranks.hash(&model, at.steps.clone(), &at.sums)?;
            Ok(model)
        })?;
        Ok(())
    }
}

struct DrawSamples;

impl Hook for DrawSamples {
    fn after_steps(&mut self, _: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        if run.context.left > 0 && run.ranks.shows_after(run.context.steps.clone()) {
            run.change_model(|ranks, model, _| {
                let model = ranks.open(model)?;
                ranks.show_sample(&model)?;
                Ok(model)
            })?;
        }
        Ok(())
    }

    fn after_epoch(&mut self, _: &EpochLines, run: &mut Run<'_>) -> Result<(), HookError> {
        run.change_model(|ranks, model, _| {
            ranks.show_sample(&model)?;
            Ok(model)
        })?;
        Ok(())
    }
}

/// Writes checkpoints within an epoch; the loop writes the one at its end.
struct SaveCheckpoints;

impl Hook for SaveCheckpoints {
    fn after_steps(&mut self, _: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        run.ranks.check_on_checkpoint()?;
        let StepContext {
            votes, steps, left, ..
        } = run.context;
        // A training that ends within an epoch can be resumed. With local steps a checkpoint averages the optimizer's states,
        // which changes the bits: at its last step such a training leaves the newest one, from which a longer run has the
        // bits of one that was not interrupted. A stop on request has ended a round early anyway, and its steps are kept.
        let local = run.ranks.setup.config.sync.steps().is_some();
        let at_limit =
            run.ranks.limit_is_reached() && (!local || run.ranks.no_checkpoint_was_due());
        let ends = votes.hook_requests || votes.stop || at_limit;
        let due = ends || votes.save || run.ranks.saves_after(steps.clone());
        if due && *left > 0 && !run.ranks.setup.is_trial {
            run.change_model(|ranks, model, at| {
                let model = ranks.save_within_epoch(model, at.ddp, at.epoch)?;
                ranks.take_snapshot(&model)?;
                ranks.clock.restart();
                Ok(model)
            })?;
        }
        Ok(())
    }
}

impl RankLoop {
    /// Calls `method` of each hook, in order.
    pub(super) fn call_hooks(
        &mut self,
        model: AnyModel,
        context: &StepContext<'_>,
        method: impl Fn(&mut dyn Hook, &mut Run<'_>) -> Result<(), HookError>,
    ) -> Result<AnyModel, TrainError> {
        let mut hooks = std::mem::take(&mut self.hooks.list);
        let mut run = Run {
            ranks: self,
            model: Some(model),
            context,
            hook: String::new(),
        };
        let called = (0..)
            .zip(&mut hooks)
            .try_for_each(|(index, hook)| run.call(index, &mut **hook, &method));
        let model = run.model;
        self.hooks.list = hooks;
        called?;
        model.ok_or_else(|| TrainError::Panicked("a hook has left no model".to_string()))
    }

    /// Calls [`Hook::at_start`], once per process.
    pub(super) fn begin_hooks(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
    ) -> Result<AnyModel, TrainError> {
        if std::mem::replace(&mut self.hooks.started, true) {
            return Ok(model);
        }
        let context = self.context(ddp, self.outcome.epoch + 1);
        self.call_hooks(model, &context, Hook::at_start)
    }

    /// Calls [`Hook::after_epoch`], and gathers the hooks' requests.
    pub(super) fn after_epoch(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
        validation: Option<MetricLine>,
    ) -> Result<AnyModel, TrainError> {
        let lines = EpochLines {
            train: self.epoch_line(epoch),
            validation,
        };
        let context = self.context(ddp, epoch);
        let model = self.call_hooks(model, &context, |hook, run| hook.after_epoch(&lines, run))?;
        if self.hooks.has_user_hooks() {
            self.gather_hook_requests()?;
        }
        Ok(model)
    }

    /// Ends the hooks' work after the last step: the last checkpoint, requests and failures.
    pub(super) fn end_hooks(
        &mut self,
        mut model: AnyModel,
        ddp: &Ddp,
    ) -> Result<AnyModel, TrainError> {
        // Hooks on the other ranks wait for rank 0.
        let _saving = Saving::begin();
        if let Some(checkpoints) = &mut self.records.checkpoints {
            checkpoints.finish()?;
        }
        let context = self.context(ddp, self.outcome.epoch);
        model = self.notify_checkpoints(model, &context)?;
        if self.hooks.has_user_hooks() {
            self.gather_hook_requests()?;
        }
        self.hooks.failure.take().map_or(Ok(model), Err)
    }

    fn context<'a>(&self, ddp: &'a Ddp, epoch: usize) -> StepContext<'a> {
        let step = self.outcome.step;
        StepContext {
            ddp,
            epoch,
            steps: step + 1..=step,
            left: 0,
            votes: Votes::default(),
            sums: MetricSums::default(),
        }
    }

    /// Calls [`Hook::after_checkpoint`] for the checkpoints written since.
    pub(super) fn notify_checkpoints(
        &mut self,
        mut model: AnyModel,
        context: &StepContext<'_>,
    ) -> Result<AnyModel, TrainError> {
        let written = std::mem::take(&mut *lock(&self.hooks.written));
        for folder in written {
            model = self.call_hooks(model, context, |hook, run| {
                hook.after_checkpoint(&folder, run)
            })?;
        }
        Ok(model)
    }

    /// Calls [`Hook::after_failure`] for a failure of this rank or of others. A panic in it is only logged.
    pub(super) fn notify_failure(&mut self, error: &TrainError, goes_on: bool) {
        for hook in &mut self.hooks.list {
            let called = catch_unwind(AssertUnwindSafe(|| hook.after_failure(error, goes_on)));
            if called.is_err() {
                tracing::error!("the hook `{}` has panicked", hook.name());
            }
        }
    }

    /// Gathers the requests of all ranks' hooks. All ranks call it.
    pub(super) fn gather_hook_requests(&mut self) -> Result<(), TrainError> {
        let own = std::mem::take(&mut self.hooks.requests);
        let all = all_gather_object::<Vec<HookRequest>>(&self.setup.group, &own)?;
        let step = self.outcome.step;
        for (member, requests) in self.members().into_iter().zip(all) {
            for request in requests {
                match request {
                    HookRequest::Stop { hook, why } if self.outcome.stopped.is_none() => {
                        let why = format!("early, by the hook `{hook}`: {why}");
                        self.outcome.stopped = Some(Stopped::Early(why));
                    }
                    HookRequest::Fail { hook, reason } if self.hooks.failure.is_none() => {
                        let why = format!("by the hook `{hook}`, which failed");
                        self.outcome.stopped = Some(Stopped::Interrupted(why));
                        self.hooks.failure = Some(TrainError::Hook {
                            hook,
                            rank: member,
                            step,
                            reason,
                        });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Calls the hook at `index`. An error of the training itself ends it; one of a user's hook requests its end.
    fn call(
        &mut self,
        index: usize,
        hook: &mut dyn Hook,
        method: impl Fn(&mut dyn Hook, &mut Run<'_>) -> Result<(), HookError>,
    ) -> Result<(), TrainError> {
        self.hook = hook.name().into_owned();
        if self.ranks.hooks.failed.contains(&index) {
            return Ok(());
        }
        let reason = match catch_unwind(AssertUnwindSafe(|| method(hook, self))) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => match into_training_error(error) {
                Ok(error) => return Err(error),
                Err(error) => error.to_string(),
            },
            Err(panic) => format!("it panicked: {}", message_of(&*panic)),
        };
        let hook = self.hook.clone();
        self.ranks.hooks.failed.insert(index);
        self.ranks
            .hooks
            .requests
            .push(HookRequest::Fail { hook, reason });
        Ok(())
    }
}

/// An error of the training itself, which passes through a built-in hook.
fn into_training_error(error: HookError) -> Result<TrainError, HookError> {
    match error.downcast::<TrainError>() {
        Ok(error) => Ok(*error),
        Err(error) => Ok((*error.downcast::<CollectiveError>()?).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_wanted_until_the_ranks_have_voted_for_one() {
        let mut hooks = HookState {
            save_wanted: true,
            ..HookState::default()
        };
        // With fragments, the votes may be of before the request.
        let stop = Votes {
            stop: true,
            ..Votes::default()
        };
        hooks.vote_counts(stop);
        assert!(hooks.save_wanted);
        let save = Votes {
            save: true,
            ..Votes::default()
        };
        hooks.vote_counts(save);
        assert!(!hooks.save_wanted);
        hooks.vote_counts(save);
        assert!(!hooks.save_wanted);
    }
}
