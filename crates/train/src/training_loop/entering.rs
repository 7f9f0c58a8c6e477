//! How the ranks of a new group of an elastic job come to the same state.

use std::time::{Duration, Instant};

use everburn_distributed::{all_gather_object, find_divergence, hash_of_parameters};
use serde::{Deserialize, Serialize};

use super::RankLoop;
use super::entry::{Entry, EntryPlan};
use super::records::Recent;
use crate::checkpoint::sharing::{agree_on_newest, share};
use crate::checkpoint::{Checkpoint, CheckpointFolder};
use crate::error::TrainError;
use crate::metrics::layout::MetricAgreement;
use crate::model::erased::AnyModel;
use crate::record::outcome::LoopOutcome;

/// The name of a rank's standing among the files of the state that it gives to others.
const STANDING: &str = "standing.json";

/// What a rank that comes needs to know besides a checkpoint.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Standing {
    /// Its time includes that of the process it comes from.
    outcome: LoopOutcome,
    recent: Recent,
    /// How long ago the newest step was finished.
    since_step: Duration,
    /// The hash of the trained parameters.
    parameters: [u8; 32],
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

impl RankLoop {
    /// What this rank, which has `model`, brings into a group.
    fn entry(&self, model: &AnyModel) -> Result<Entry, TrainError> {
        let LoopOutcome { step, epoch, .. } = self.outcome;
        let entered = self.elastic.entered;
        let compares = entered && self.setup.config.compare_every > 0;
        let connector = self.setup.connector.as_ref();
        Ok(Entry {
            agreement: self.setup.agreement.hash(),
            position: (entered, step, epoch, self.outcome.trained.is_some()),
            parameters: compares.then(|| hash_of_parameters(model)).transpose()?,
            has_round: self.elastic.interrupted_round.is_some(),
            host_only: connector.and_then(|connector| connector.host_only()),
            metrics: self.metrics.names(),
        })
    }

    /// Comes to terms with the other ranks of a new group, in an elastic job: all continue from the state of the one that
    /// has come furthest, or from the newest checkpoint where none remembers anything.
    pub(super) fn enter(&mut self, mut model: AnyModel) -> Result<AnyModel, TrainError> {
        if !self.setup.elasticity.is_elastic() {
            return Ok(model);
        }
        let group = self.setup.group.clone();
        let entries = all_gather_object::<Entry>(&group, &self.entry(&model)?)?;
        let plan = EntryPlan::of(&entries);
        if !plan.agrees {
            self.setup.agreement.clone().check(&group)?;
        }
        if !plan.any_has_entered {
            model = self.resume_together(model)?;
        } else if !plan.takers.is_empty() {
            model = self.share_from(model, plan.source(), &plan.takers)?;
        }
        // The next step ends an interruption of the others: a rank that comes may be the one that reports it.
        self.elastic.interrupted |= plan.any_has_entered && !self.elastic.entered;
        // This rank is now known to be where the others are, so it must not fall back to what it was before.
        self.elastic.entered = true;
        self.elastic.resumes_round = !plan.with_round.is_empty();
        self.elastic.is_host_only = plan.is_host_only;
        self.metrics = MetricAgreement::on(plan.metrics);
        self.take_snapshot(&model)?;
        // What comes next would hide a difference: all are given rank 0's parameters.
        if plan.differs
            && let Some(mut found) = find_divergence(&model, &group)?
        {
            // Ranks that were given a state have no vote.
            found.trusted = plan.trusted;
            // A rank that is given another's state drops the round that it has set aside.
            let keeps_round = |rank: &usize| !found.ranks.contains(rank);
            self.elastic.resumes_round = plan.with_round.iter().any(keeps_round);
            model = self.mend(model, found)?;
            self.take_snapshot(&model)?;
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

    /// The ranks `takers` are given the state of rank `source`, which all others have already. A taker that has other parameters
    /// than `source` once it has restored them ends with [`TrainError::RestoredOthers`].
    pub(super) fn share_from(
        &mut self,
        model: AnyModel,
        source: usize,
        takers: &[usize],
    ) -> Result<AnyModel, TrainError> {
        let group = self.setup.group.clone();
        let found = match group.rank() == source {
            true => self
                .state_to_give(&model)
                .map_err(|error| error.to_string()),
            false => Ok(Checkpoint::default()),
        };
        let mut checkpoint = match share(&group, source, takers, found)? {
            Some(checkpoint) if group.rank() != source => checkpoint,
            _ => return Ok(model),
        };
        let standing = checkpoint.files.remove(STANDING).unwrap_or_default();
        let standing = serde_json::from_slice::<Standing>(&standing);
        let mut standing = standing.map_err(|error| TrainError::Config(error.to_string()))?;
        self.elastic.recent = std::mem::take(&mut standing.recent);
        let finished_at = Instant::now().checked_sub(standing.since_step);
        self.elastic.finished_at = finished_at.unwrap_or_else(Instant::now);
        let given = standing.parameters;
        standing.hand_over(&mut self.outcome, self.setup.started.elapsed());
        // After it: the numbers of a checkpoint are exact.
        let model = self.restore(model, &checkpoint)?;
        if hash_of_parameters(&model)? != given {
            let members = self.members();
            return Err(TrainError::RestoredOthers {
                taker: members[group.rank()],
                giver: members[source],
                step: self.outcome.step,
            });
        }
        // Who gave its state still owes what its differences have lost.
        self.setup.state.waiting.another_owes = true;
        Ok(model)
    }

    /// This rank's state as a checkpoint, with its standing as a further file.
    fn state_to_give(&self, model: &AnyModel) -> Result<Checkpoint, TrainError> {
        let mut checkpoint = self.setup.state.checkpoint(model, self.progress())?;
        let standing = Standing {
            outcome: LoopOutcome {
                earlier: self.outcome.earlier + self.setup.started.elapsed(),
                ..self.outcome.clone()
            },
            recent: self.elastic.recent.clone(),
            since_step: self.elastic.finished_at.elapsed(),
            parameters: hash_of_parameters(model)?,
        };
        let standing = serde_json::to_vec(&standing);
        let standing = standing.map_err(|error| TrainError::Config(error.to_string()))?;
        checkpoint.files.insert(STANDING.to_owned(), standing);
        Ok(checkpoint)
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
