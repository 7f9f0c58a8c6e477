//! Rounds of local steps that the ranks could not end together, and which the next group completes.

use std::time::{Duration, Instant};

use everburn_distributed::Buffers;

use super::RankLoop;
use super::round_stats::Round;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

/// How long ranks continue with a round after another rank was lost. Most processes that take the place of one that was
/// lost are there by then.
const AFTER_A_LOSS: Duration = Duration::from_secs(10);

/// A round that was under way when the ranks lost each other: what this rank has made of the parameters from
/// which all had begun.
pub(super) struct InterruptedRound {
    round: Round,
    parameters: Vec<f32>,
    buffers: Buffers,
}

impl RankLoop {
    /// The error that has kept the ranks from ending a round together; in an elastic job this rank keeps what it has learnt
    /// in it.
    pub(super) fn interrupt(
        &mut self,
        model: &AnyModel,
        round: Round,
        error: TrainError,
    ) -> Result<TrainError, TrainError> {
        if round.made() > 0 && self.setup.elasticity.next_after(&error).is_some() {
            self.elastic.interrupted_round = Some(InterruptedRound {
                parameters: self.outer().read(model)?,
                buffers: Buffers::read(model)?,
                round,
            });
        }
        Ok(error)
    }

    /// Whether this rank ends its round early, because its group has failed. In an elastic job it first waits for somebody
    /// who joins the next group, and learns meanwhile: the process that takes the place of the lost rank, so that all meet
    /// once for the loss and the return, or a rank that has come to the end of its round. `failed_at` is when it first saw
    /// the failure.
    pub(super) fn leaves_round(&self, failed_at: &mut Option<Instant>) -> bool {
        let elasticity = &self.setup.elasticity;
        if self.setup.group.failure().is_none() {
            // Rank 0's vote at the end of the round is what it has found by then.
            if self.is_first() {
                elasticity.somebody_waits();
            }
            return false;
        }
        let failed_at = failed_at.get_or_insert_with(Instant::now);
        let is_over = failed_at.elapsed() >= AFTER_A_LOSS;
        !elasticity.is_elastic() || is_over || elasticity.somebody_waits()
    }

    /// Whether a rank has set a round aside: the next outer step then comes at once. All ranks ask.
    pub(super) fn any_round_interrupted(&self) -> Result<bool, TrainError> {
        if !self.setup.elasticity.rolls_back() {
            return Ok(false);
        }
        let own = i64::from(self.elastic.interrupted_round.is_some());
        let all = self.setup.group.all_gather(vec![own]).wait()?;
        Ok(all.iter().any(|begun| begun[0] > 0))
    }

    /// Continues with the round that this rank has set aside, if it has.
    pub(super) fn resume_round(
        &mut self,
        model: AnyModel,
        round: &mut Round,
    ) -> Result<AnyModel, TrainError> {
        let Some(interrupted_round) = self.elastic.interrupted_round.take() else {
            return Ok(model);
        };
        *round = interrupted_round.round;
        let model = self.outer().write(model, &interrupted_round.parameters);
        Ok(interrupted_round.buffers.write(model))
    }
}
