//! What is called behind steps and epochs: hooks of ours, and those of users.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use everburn_collectives::group::CollectiveError;
use everburn_collectives::worker::message_of;
use everburn_distributed::Ddp;
use serde::{Deserialize, Serialize};

use super::run::{Moment, Run};
use super::{RankLoop, lock};
use crate::erased::AnyModel;
use crate::error::TrainError;
use crate::hook::{EpochLines, Hook, HookError};
use crate::metric_line::MetricLine;
use crate::metric_sums::MetricSums;
use crate::step_exchange::Votes;

/// The hooks of a rank, and what they want.
#[derive(Default)]
pub(super) struct HookState {
    /// In the order in which they are called: ours, the user's, and checkpoints last, behind what the user's may have
    /// to say.
    list: Vec<Box<dyn Hook>>,
    has_users: bool,
    /// They know that the training has begun.
    begun: bool,
    /// What they want, and no other rank has been told yet.
    pub(super) wishes: Vec<Wish>,
    /// One of them wants a checkpoint.
    pub(super) save_wanted: bool,
    /// One of them has failed, on whichever rank; the training ends of it when all is saved.
    failed: Option<TrainError>,
    /// Checkpoints that they have not been told of.
    pub(super) written: Arc<Mutex<Vec<PathBuf>>>,
}

impl HookState {
    pub(super) fn new(of_user: Vec<Box<dyn Hook>>) -> Self {
        let mut list: Vec<Box<dyn Hook>> = vec![
            Box::new(CompareReplicas),
            Box::new(HashState),
            Box::new(DrawSamples),
        ];
        let has_users = !of_user.is_empty();
        list.extend(of_user);
        list.push(Box::new(SaveCheckpoints));
        Self {
            list,
            has_users,
            ..Self::default()
        }
    }

    /// The user's hooks.
    pub(super) fn into_users(mut self) -> Vec<Box<dyn Hook>> {
        self.list.pop();
        self.list.split_off(OURS_BEFORE)
    }

    /// Whether there are any of a user: the same on all ranks.
    pub(super) fn has_users(&self) -> bool {
        self.has_users
    }
}

/// How many of ours come before the user's.
const OURS_BEFORE: usize = 3;

/// What a user's hook wants of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wish {
    /// Ends the training early.
    Stop { hook: String, why: String },
    /// It has failed.
    Fail { hook: String, reason: String },
}

/// Finds replicas that are no longer equal.
struct CompareReplicas;

impl Hook for CompareReplicas {
    fn after_steps(&mut self, _: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        let config = &run.ranks.setup.config;
        let due = config.compares_after_any(run.moment.made.clone());
        // Of what each rank has a part of its own of, there is nothing to compare.
        if due && !run.ranks.cuts_parameters() {
            run.change_model(|ranks, model, at| ranks.compare(model, at.ddp, Some(&at.sums)))?;
        }
        Ok(())
    }
}

/// Writes fingerprints of all that was learnt.
struct HashState;

impl Hook for HashState {
    fn after_steps(&mut self, _: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        run.change_model(|ranks, model, at| {
            ranks.hash(&model, at.made.clone(), &at.sums)?;
            Ok(model)
        })?;
        Ok(())
    }
}

/// Shows what the model can do by now.
struct DrawSamples;

impl Hook for DrawSamples {
    fn after_steps(&mut self, _: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        if run.moment.left > 0 && run.ranks.shows_after(run.moment.made.clone()) {
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

/// Writes checkpoints within an epoch; the one at its end belongs to the epoch.
struct SaveCheckpoints;

impl Hook for SaveCheckpoints {
    fn after_steps(&mut self, _: &[MetricLine], run: &mut Run<'_>) -> Result<(), HookError> {
        run.ranks.check_on_checkpoint()?;
        let Moment {
            votes, made, left, ..
        } = run.moment;
        // Whatever ends a training within an epoch: it can go on. Where ranks take steps by themselves, a checkpoint
        // changes what they learn, and the newest is good enough after a stop: from there come the same bits.
        let alone = run.ranks.setup.config.sync.steps().is_some();
        let stops = votes.stop || run.ranks.limit_is_reached();
        let ends = votes.heed || stops && !alone;
        let due = ends || votes.save || run.ranks.saves_after(made.clone());
        if due && *left > 0 {
            run.change_model(|ranks, model, at| {
                let model = ranks.save_within_epoch(model, at.ddp, at.epoch)?;
                ranks.keep(&model)?;
                ranks.clock.restart();
                Ok(model)
            })?;
        }
        Ok(())
    }
}

impl RankLoop {
    /// Calls `method` of each hook, in their order.
    pub(super) fn call_hooks(
        &mut self,
        model: AnyModel,
        moment: &Moment<'_>,
        method: impl Fn(&mut dyn Hook, &mut Run<'_>) -> Result<(), HookError>,
    ) -> Result<AnyModel, TrainError> {
        let mut hooks = std::mem::take(&mut self.hooks.list);
        let mut run = Run {
            ranks: self,
            model: Some(model),
            moment,
            hook: String::new(),
        };
        let called = hooks
            .iter_mut()
            .try_for_each(|hook| run.call(&mut **hook, &method));
        let model = run.model;
        self.hooks.list = hooks;
        called?;
        model.ok_or_else(|| TrainError::Panicked("a hook has left no model".to_string()))
    }

    /// Tells the hooks that the training begins: once in a process.
    pub(super) fn begin_hooks(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
    ) -> Result<AnyModel, TrainError> {
        if std::mem::replace(&mut self.hooks.begun, true) {
            return Ok(model);
        }
        let moment = self.moment(ddp, self.outcome.epoch + 1);
        self.call_hooks(model, &moment, Hook::at_start)
    }

    /// Tells the hooks of an epoch and its validation, and all ranks what the hooks want.
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
        let moment = self.moment(ddp, epoch);
        let model = self.call_hooks(model, &moment, |hook, run| hook.after_epoch(&lines, run))?;
        if self.hooks.has_users() {
            self.heed_hooks()?;
        }
        Ok(model)
    }

    /// What is left to tell when the last step is made: the last checkpoint, and what hooks want or failed of.
    pub(super) fn end_hooks(
        &mut self,
        mut model: AnyModel,
        ddp: &Ddp,
    ) -> Result<AnyModel, TrainError> {
        if let Some(checkpoints) = &mut self.setup.checkpoints {
            checkpoints.finish()?;
        }
        let moment = self.moment(ddp, self.outcome.epoch);
        model = self.tell_of_checkpoints(model, &moment)?;
        if self.hooks.has_users() {
            self.heed_hooks()?;
        }
        self.hooks.failed.take().map_or(Ok(model), Err)
    }

    /// Between two steps.
    fn moment<'a>(&self, ddp: &'a Ddp, epoch: usize) -> Moment<'a> {
        let step = self.outcome.step;
        Moment {
            ddp,
            epoch,
            made: step + 1..=step,
            left: 0,
            votes: Votes::default(),
            sums: MetricSums::default(),
        }
    }

    /// Tells the hooks of checkpoints that were written meanwhile.
    pub(super) fn tell_of_checkpoints(
        &mut self,
        mut model: AnyModel,
        moment: &Moment<'_>,
    ) -> Result<AnyModel, TrainError> {
        let written = std::mem::take(&mut *lock(&self.hooks.written));
        for folder in written {
            model = self.call_hooks(model, moment, |hook, run| {
                hook.after_checkpoint(&folder, run)
            })?;
        }
        Ok(model)
    }

    /// Tells the hooks of a failure of this rank or of others. What they make of it changes nothing.
    pub(super) fn tell_of_failure(&mut self, error: &TrainError, goes_on: bool) {
        for hook in &mut self.hooks.list {
            let told = catch_unwind(AssertUnwindSafe(|| hook.after_failure(error, goes_on)));
            if told.is_err() {
                tracing::error!("the hook `{}` has panicked", hook.name());
            }
        }
    }

    /// Comes to know what the hooks of all ranks want. All ranks call it.
    pub(super) fn heed_hooks(&mut self) -> Result<(), TrainError> {
        let own = std::mem::take(&mut self.hooks.wishes);
        let wrong = |error: serde_json::Error| TrainError::Config(error.to_string());
        let own = serde_json::to_vec(&own).map_err(wrong)?;
        let all = self.setup.group.all_gather_varied(own).wait()?;
        let step = self.outcome.step;
        for (rank, member) in self.members().into_iter().enumerate() {
            for wish in serde_json::from_slice::<Vec<Wish>>(&all[rank]).map_err(wrong)? {
                match wish {
                    Wish::Stop { hook, why } if self.outcome.stopped.is_none() => {
                        self.outcome.stopped = Some(format!("early, by the hook `{hook}`: {why}"));
                    }
                    Wish::Fail { hook, reason } if self.hooks.failed.is_none() => {
                        self.outcome.stopped = Some(format!("by the hook `{hook}`, which failed"));
                        self.hooks.failed = Some(TrainError::Hook {
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
    /// Calls a hook. An error of the training itself ends it; one of a user's hook is a wish to end it.
    fn call(
        &mut self,
        hook: &mut dyn Hook,
        method: impl Fn(&mut dyn Hook, &mut Run<'_>) -> Result<(), HookError>,
    ) -> Result<(), TrainError> {
        self.hook = hook.name().into_owned();
        let failed = |wish: &Wish| matches!(wish, Wish::Fail { hook, .. } if *hook == self.hook);
        if self.ranks.hooks.wishes.iter().any(failed) {
            // Its failure is told with the next step.
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
        self.ranks.hooks.wishes.push(Wish::Fail { hook, reason });
        Ok(())
    }
}

/// The same error, if it is one that ranks may outlive, or ours.
fn into_training_error(error: HookError) -> Result<TrainError, HookError> {
    match error.downcast::<TrainError>() {
        Ok(error) => Ok(*error),
        Err(error) => Ok((*error.downcast::<CollectiveError>()?).into()),
    }
}
