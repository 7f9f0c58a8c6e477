//! Rounds of local steps that the ranks could not end together, and which the next group completes.

use everburn_distributed::Buffers;

use super::RankLoop;
use super::round_stats::Round;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

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
