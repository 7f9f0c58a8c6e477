//! A training that continues when ranks are lost or come.

use std::time::Instant;

use everburn_distributed::Buffers;
use everburn_record::{Event, EventKind, Phase, Saving};

use super::RankLoop;
use super::interrupted_round::FailedGroup;
use super::lateness::{Lateness, too_slow};
use crate::checkpoint::{CheckpointFolder, Progress};
use crate::elastic::regroup::Regroup;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

/// How often in a row ranks may meet in vain.
const FUTILE: usize = 20;

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
