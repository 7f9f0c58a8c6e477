//! A training that continues when ranks are lost or come.

use std::time::{Duration, Instant};

use everburn_distributed::{Buffers, find_divergence};
use everburn_record::{Event, EventKind, Phase, Saving};
use serde::{Deserialize, Serialize};

use super::RankLoop;
use super::interrupted_round::FailedGroup;
use super::lateness::{Lateness, too_slow};
use super::records::Recent;
use crate::checkpoint::sharing::{agree_on_newest, share};
use crate::checkpoint::{Checkpoint, CheckpointFolder, Progress};
use crate::elastic::regroup::Regroup;
use crate::error::TrainError;
use crate::model::erased::AnyModel;
use crate::record::outcome::LoopOutcome;

/// How often in a row ranks may meet in vain.
const FUTILE: usize = 20;

/// What a rank that comes needs to know besides a checkpoint.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Standing {
    /// Its time includes that of the process it comes from.
    outcome: LoopOutcome,
    recent: Recent,
    /// How long ago the newest step was finished.
    since_step: Duration,
}

impl Standing {
    /// Gives a rank, whose process runs for `ran`, the outcome of another.
    fn hand_over(self, own: &mut LoopOutcome, ran: Duration) {
        *own = LoopOutcome {
            earlier: self.outcome.earlier.saturating_sub(ran),
            past: own.past,
            ..self.outcome
        };
    }
}

/// How the ranks of a group, which its errors may name as it does, are called in the job, whose logs have these numbers.
fn as_in_the_job(members: &[usize]) -> String {
    let same = members
        .iter()
        .enumerate()
        .all(|(rank, member)| rank == *member);
    match same {
        true => format!("; the ranks of the group were {members:?}"),
        false => {
            let pairs = members.iter().enumerate();
            let pairs = pairs.map(|(rank, member)| format!("{rank} is rank {member}"));
            let pairs = pairs.collect::<Vec<_>>().join(", ");
            format!(
                "; ranks are counted in their group here: in the job, and in the names of logs, {pairs}"
            )
        }
    }
}

impl RankLoop {
    /// Where ranks may be lost, `model` is what the training continues with if one is.
    pub(super) fn take_snapshot(&mut self, model: &AnyModel) -> Result<(), TrainError> {
        if self.setup.elasticity.rolls_back() {
            // Running statistics change after a clone's back.
            self.elastic.snapshot = Some((self.common(model), Buffers::read(model)?));
        }
        Ok(())
    }

    /// The model after the newest finished step, with which the training continues after `error`: in another group, or in
    /// this one after a repair. The error itself where it ends the training.
    pub(super) fn continue_after(&mut self, error: TrainError) -> Result<AnyModel, TrainError> {
        let Some((snapshot, buffers)) = self.elastic.snapshot.take() else {
            return Err(error);
        };
        let model = everburn_nn::isolate_batch_norms(buffers.write(snapshot));
        if !matches!(error, TrainError::Repaired) {
            let Some(regroup) = self.setup.elasticity.next_after(&error) else {
                return Err(error);
            };
            self.notify_failure(&error, true);
            self.regroup(&*regroup, &model, &error)?;
        }
        Ok(model)
    }

    /// Leaves the present group, because of `error`, for the next one. `model` is what has been learnt: it
    /// is written down where there will be no next group.
    fn regroup(
        &mut self,
        regroup: &dyn Regroup,
        model: &AnyModel,
        error: &TrainError,
    ) -> Result<(), TrainError> {
        // Those who have not noticed yet shall come, too.
        error.abort(&self.setup.group);
        // Errors count ranks as the group does, and the user as the job did at its start.
        let step = self.outcome.step;
        let before = regroup.members();
        match error {
            // No loss, and all find it out: one says so.
            TrainError::SomebodyWaits if self.is_first() => {
                tracing::info!("after step {step}: more ranks come, and all meet again");
            }
            TrainError::SomebodyWaits => {}
            _ => tracing::warn!("after step {step}: {error}{}", as_in_the_job(&before)),
        }
        self.setup.live.enter(Phase::Regrouping);
        self.elastic.interrupted = true;
        self.leave_if_too_slow(&before, error)?;
        self.elastic.futile += 1;
        if self.elastic.futile > FUTILE {
            let kept = self.write_down(model);
            return Err(TrainError::Elastic(format!(
                "the ranks have met {FUTILE} times without making a step together, the last time after: \
                 {error}; {kept}"
            )));
        }
        let group = match regroup.regroup(self.outcome.step, error) {
            Ok(group) => group,
            // The others know more.
            Err(error @ (TrainError::JobFinished | TrainError::NotMember(_))) => return Err(error),
            Err(no_group) => {
                let why = match no_group {
                    TrainError::Elastic(why) => why,
                    error => error.to_string(),
                };
                let kept = self.write_down(model);
                return Err(TrainError::Elastic(format!("{why}; {kept}")));
            }
        };
        let (rank, world_size) = (group.rank(), group.world_size());
        self.setup.group = group;
        self.elastic.failed_group = FailedGroup::default();
        if rank == 0 {
            let members = regroup.members();
            let lost = before.iter().find(|member| !members.contains(member));
            let kind = match error {
                TrainError::SomebodyWaits => None,
                _ if error.is_timeout() => Some(EventKind::Stall),
                _ => Some(EventKind::Loss),
            };
            if let Some(kind) = kind {
                self.note(Event {
                    rank: lost.copied(),
                    ..Event::new(kind, format!("{error}{}", as_in_the_job(&before)))
                });
            }
        }
        self.setup.train = self.setup.train.clone().on_rank(rank, world_size)?;
        let evaluated = [&mut self.setup.validation, &mut self.setup.test];
        for loader in evaluated.into_iter().flatten() {
            *loader = loader.clone().on_rank(rank, world_size)?;
        }
        Ok(())
    }

    /// Ends this rank if it is the one that keeps the others from the next step.
    fn leave_if_too_slow(
        &mut self,
        members: &[usize],
        error: &TrainError,
    ) -> Result<(), TrainError> {
        if matches!(error, TrainError::SomebodyWaits) {
            return Ok(());
        }
        let group = &self.setup.group;
        let timeout = group.timeout();
        let lateness = &mut self.elastic.lateness;
        let Some(took) = lateness.failed(timeout, &group.flight_record()) else {
            return Ok(());
        };
        let (rank, step) = (members[group.rank()], self.outcome.step + 1);
        Err(TrainError::TooSlow(too_slow(rank, step, took, timeout)))
    }

    /// Notes that a step is finished, with `model` after it; where ranks were lost before it, says what that has cost.
    pub(super) fn finish_step(&mut self, model: &AnyModel, step: usize) -> Result<(), TrainError> {
        if std::mem::take(&mut self.elastic.interrupted) && self.is_first() {
            let ranks = self.members();
            let seconds = self.elastic.finished_at.elapsed().as_secs_f64();
            let text = format!(
                "ranks {ranks:?} have made step {step}, {seconds:.2} s after the step before"
            );
            tracing::warn!("{text}");
            self.note(Event {
                step: Some(step as u64),
                ranks: Some(ranks),
                ..Event::new(EventKind::Regroup, text)
            });
        }
        self.elastic.finished_at = Instant::now();
        self.elastic.lateness = Lateness::new();
        self.take_snapshot(model)
    }

    /// How far this rank has come, in the order in which ranks compare it: whether it remembers anything, its step and
    /// epoch, and whether all steps of that are made.
    fn position(&self) -> Vec<i64> {
        let LoopOutcome { step, epoch, .. } = self.outcome;
        let trained = self.outcome.trained.is_some();
        vec![
            self.elastic.entered.into(),
            step as i64,
            epoch as i64,
            trained.into(),
        ]
    }

    /// Comes to terms with the other ranks of a new group, in an elastic job: all continue from the state of the one that
    /// has come furthest, or from the newest checkpoint where none remembers anything.
    pub(super) fn enter(&mut self, mut model: AnyModel) -> Result<AnyModel, TrainError> {
        if !self.setup.elasticity.is_elastic() {
            return Ok(model);
        }
        let group = self.setup.group.clone();
        self.setup.agreement.clone().check(&group)?;
        let own = self.position();
        let all = group.all_gather(own.clone()).wait()?;
        let furthest = all.iter().max().unwrap_or(&own);
        let any_has_entered = furthest[0] > 0;
        if !any_has_entered {
            model = self.resume_together(model)?;
        } else {
            let (have_it, takers): (Vec<_>, Vec<_>) =
                (0..all.len()).partition(|rank| all[*rank] == *furthest);
            if !takers.is_empty() {
                model = self.share_from(model, have_it[0], &takers)?;
            }
        }
        // The next step ends an interruption of the others: a rank that comes may be the one that reports it.
        self.elastic.interrupted |= any_has_entered && !self.elastic.entered;
        // This rank is now known to be where the others are, so it must not fall back to what it was before.
        self.elastic.entered = true;
        self.take_snapshot(&model)?;
        if any_has_entered && self.setup.config.compare_every > 0 {
            // What comes next would hide a difference: all are given rank 0's parameters.
            if let Some(found) = find_divergence(&model, &group)? {
                model = self.mend(model, found)?;
                self.take_snapshot(&model)?;
            }
        }
        self.elastic.lateness.again();
        Ok(model)
    }

    /// Nobody remembers anything: the run begins, or has lost all its ranks at once.
    fn resume_together(&mut self, model: AnyModel) -> Result<AnyModel, TrainError> {
        let setup = &self.setup;
        let run = setup.run.as_ref().filter(|_| self.is_first());
        let keep = setup.config.keep_checkpoints;
        let folder = run.map(|run| CheckpointFolder::new(run.checkpoints(), keep));
        let mut wanted = u8::from(setup.resume_wanted);
        if let Some(folder) = &folder {
            folder.clean()?;
            // Continues from a checkpoint where there is one and some process took the place of another.
            if wanted == 0 && !folder.places()?.is_empty() {
                wanted = 2;
            }
        }
        // Rank 0's word counts: it has the folder.
        let flags = vec![wanted, u8::from(setup.begun_before)];
        let flags = setup.group.all_gather(flags).wait()?;
        let lost = flags.iter().any(|flags| flags[1] > 0);
        let (there, wanted) = (flags[0][0] > 1, flags[0][0] == 1);
        if !(wanted || lost && there) {
            return Ok(model);
        }
        let checkpoint = agree_on_newest(&self.setup.group, folder.as_ref())?;
        self.resume(model, &checkpoint)
    }

    /// The ranks `takers` are given the state of rank `source`, which all others have already.
    pub(super) fn share_from(
        &mut self,
        model: AnyModel,
        source: usize,
        takers: &[usize],
    ) -> Result<AnyModel, TrainError> {
        let group = self.setup.group.clone();
        let found = match group.rank() == source {
            true => {
                let checkpoint = self.setup.state.checkpoint(&model, self.progress());
                checkpoint.map_err(|error| error.to_string())
            }
            false => Ok(Checkpoint::default()),
        };
        let checkpoint = share(&group, source, takers, found)?;
        let started = self.setup.started;
        let standing = Standing {
            outcome: LoopOutcome {
                earlier: self.outcome.earlier + started.elapsed(),
                ..self.outcome.clone()
            },
            recent: self.elastic.recent.clone(),
            since_step: self.elastic.finished_at.elapsed(),
        };
        let wrong = |error: serde_json::Error| TrainError::Config(error.to_string());
        let standing = serde_json::to_vec(&standing).map_err(wrong)?;
        let standing = group.all_gather_varied(standing).wait()?;
        let checkpoint = match checkpoint {
            Some(checkpoint) if group.rank() != source => checkpoint,
            _ => return Ok(model),
        };
        let mut standing = serde_json::from_slice::<Standing>(&standing[source]).map_err(wrong)?;
        self.elastic.recent = std::mem::take(&mut standing.recent);
        let finished_at = Instant::now().checked_sub(standing.since_step);
        self.elastic.finished_at = finished_at.unwrap_or_else(Instant::now);
        standing.hand_over(&mut self.outcome, started.elapsed());
        // After it: the numbers of a checkpoint are exact.
        let model = self.restore(model, &checkpoint)?;
        // Who gave its state still owes what its differences have lost.
        self.setup.state.waiting.another_owes = true;
        Ok(model)
    }

    /// The last thing that a rank does whose group is not available any more: a checkpoint, unless there is
    /// one that has come as far. Returns where it is.
    fn write_down(&self, model: &AnyModel) -> String {
        let Some(run) = &self.setup.run else {
            return "this rank has no run directory to leave a checkpoint in".to_string();
        };
        let folder = CheckpointFolder::new(run.checkpoints(), self.setup.config.keep_checkpoints);
        let progress: Progress = self.progress();
        let place = progress.place();
        let _saving = Saving::begin();
        // Several ranks that are left have the same state, and may come here together.
        let written = run.with_lock(".last-checkpoint", || {
            if folder.places()?.contains(&place) {
                return Ok(());
            }
            let checkpoint = self.setup.state.checkpoint(model, progress)?;
            folder.save(&checkpoint).map(drop)
        });
        let step = self.outcome.step;
        match written {
            Ok(()) => {
                format!(
                    "step {step} is in the checkpoint {place}: `Trainer::resume` continues from it"
                )
            }
            Err(error) => {
                let error = error.to_string();
                self.note(Event::new(EventKind::CheckpointFailed, &error));
                format!("a last checkpoint of step {step} could not be written: {error}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use everburn_record::{RankStep, StepCost};

    use super::*;
    use crate::metrics::rank_times::PastStep;

    #[test]
    fn a_rank_that_came_back_counts_times_and_losses_from_where_its_steps_are_counted_from() {
        let past = |step| {
            Some(PastStep {
                step,
                times: RankStep::default(),
            })
        };
        let given = Standing {
            outcome: LoopOutcome {
                resumed_after: Some((1, 20)),
                losses: Some([2.5, 0.5]),
                said_to_diverge: true,
                earlier: Duration::from_secs(100),
                samples: 640,
                cost: StepCost {
                    seconds: 60.0,
                    ..StepCost::default()
                },
                past: past(20),
                ..LoopOutcome::default()
            },
            ..Standing::default()
        };
        let given = serde_json::to_vec(&given).unwrap();
        let given: Standing = serde_json::from_slice(&given).unwrap();
        let mut outcome = LoopOutcome {
            past: past(15),
            ..LoopOutcome::default()
        };
        given.hand_over(&mut outcome, Duration::from_secs(2));
        assert_eq!(outcome.resumed_after, Some((1, 20)));
        assert_eq!(outcome.losses, Some([2.5, 0.5]));
        assert!(outcome.said_to_diverge, "the warning comes once");
        assert_eq!(outcome.samples, 640);
        assert_eq!(outcome.earlier, Duration::from_secs(98));
        assert_eq!(outcome.cost.seconds, 60.0);
        assert_eq!(outcome.past, past(15), "its own, not the other rank's");
    }
}
