//! Whether the lists of all ranks together are one whole step.

use crate::{Action, Pass, Schedule, ScheduleError};

/// What has been seen of one micro-batch in one stage.
#[derive(Clone, Copy, Default)]
struct Seen {
    forward: bool,
    backward_input: bool,
    backward_weight: bool,
}

/// Checks that each micro-batch passes each stage forward and backward, once, on the rank that has
/// the stage. The order is not looked at.
pub(crate) fn check(schedule: &Schedule) -> Result<(), ScheduleError> {
    let micro_batches = schedule.micro_batches();
    let mut seen = vec![Seen::default(); schedule.stages() * micro_batches];
    for rank in 0..schedule.ranks() {
        for &action in schedule.actions(rank) {
            check_place(schedule, rank, action)?;
            let seen = &mut seen[action.stage() * micro_batches + action.micro_batch()];
            if !seen.note(action.pass()) {
                return Err(ScheduleError::Twice { rank, action });
            }
        }
    }
    let missing = seen.iter().enumerate().find_map(|(index, seen)| {
        let (stage, micro_batch) = (index / micro_batches, index % micro_batches);
        seen.missing(micro_batch, stage)
    });
    missing.map_or(Ok(()), |action| {
        let rank = schedule.rank_of(action.stage());
        Err(ScheduleError::Missing { rank, action })
    })
}

fn check_place(schedule: &Schedule, rank: usize, action: Action) -> Result<(), ScheduleError> {
    let (stages, micro_batches) = (schedule.stages(), schedule.micro_batches());
    if action.stage() >= stages || action.micro_batch() >= micro_batches {
        return Err(ScheduleError::OutOfRange {
            rank,
            action,
            stages,
            micro_batches,
        });
    }
    let owner = schedule.rank_of(action.stage());
    if owner != rank {
        return Err(ScheduleError::WrongRank {
            rank,
            action,
            owner,
            ranks: schedule.ranks(),
        });
    }
    Ok(())
}

impl Seen {
    /// Notes a pass; `false` if it, or a part of it, has been seen before.
    fn note(&mut self, pass: Pass) -> bool {
        match pass {
            Pass::Forward => !std::mem::replace(&mut self.forward, true),
            Pass::BackwardInput => !std::mem::replace(&mut self.backward_input, true),
            Pass::BackwardWeight => !std::mem::replace(&mut self.backward_weight, true),
            Pass::Backward => {
                let new = !self.backward_input && !self.backward_weight;
                (self.backward_input, self.backward_weight) = (true, true);
                new
            }
        }
    }

    fn missing(self, micro_batch: usize, stage: usize) -> Option<Action> {
        match (self.forward, self.backward_input, self.backward_weight) {
            (true, true, true) => None,
            (false, _, _) => Some(Action::Forward { micro_batch, stage }),
            (_, false, false) => Some(Action::Backward { micro_batch, stage }),
            (_, false, true) => Some(Action::BackwardInput { micro_batch, stage }),
            (_, true, false) => Some(Action::BackwardWeight { micro_batch, stage }),
        }
    }
}
