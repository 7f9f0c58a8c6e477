//! Rounds of local steps that the ranks could not end together, and which the next group completes.

use std::time::{Duration, Instant};

use everburn_collectives::group::ProcessGroup;
use everburn_distributed::Buffers;

use super::RankLoop;
use super::local_steps::LocalSteps;
use super::round_stats::Round;
use crate::elastic::elasticity::Elasticity;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

/// How long ranks continue with a round after their group has failed. Most processes that take the place of one that was
/// lost are there by then.
const AFTER_A_LOSS: Duration = Duration::from_secs(10);

/// How many times as many steps as another a round may have whose ranks have lost each other: those of a round, and as many
/// in wait for the process that takes the place of the lost rank.
pub(super) const LONGEST: usize = 2;

/// How long a rank has made steps since the failure of its group.
#[derive(Debug, Default)]
pub(super) struct FailedGroup {
    /// When this rank first saw the failure.
    seen: Option<Instant>,
}

impl FailedGroup {
    /// Whether a rank of `group` ends its round early at `now`, because the group has failed. In an elastic job it first waits
    /// for somebody who joins the next group, and learns meanwhile: the process that takes the place of the lost rank, so
    /// that all meet once for the loss and the return, or a rank that makes no more steps. One that `stops` on request waits
    /// for nobody.
    fn ends_round(
        &mut self,
        group: &ProcessGroup,
        elasticity: &Elasticity,
        stops: bool,
        now: Instant,
    ) -> bool {
        if group.failure().is_none() {
            self.seen = None;
            return false;
        }
        let seen = *self.seen.get_or_insert(now);
        let is_over = now.duration_since(seen) >= AFTER_A_LOSS;
        !elasticity.is_elastic() || stops || is_over || elasticity.somebody_waits()
    }
}

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

    /// Whether this rank ends its round early, because its group has failed ([`FailedGroup::ends_round`]).
    pub(super) fn leaves_round(&mut self) -> bool {
        let stops = self.stop_wanted();
        let (group, elasticity) = (&self.setup.group, &self.setup.elasticity);
        let failed = &mut self.elastic.failed_group;
        if failed.ends_round(group, elasticity, stops, Instant::now()) {
            return true;
        }
        // Rank 0's vote at the end of the round is what it has found by then.
        if group.failure().is_none() && group.rank() == 0 {
            elasticity.somebody_waits();
        }
        false
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

impl LocalSteps<'_> {
    /// Continues, with up to `more` steps, with a round that `error` has kept the ranks from ending together, until they meet
    /// again. An outer step weighs ranks by their samples, so not all need as many steps, and the steps count in it.
    pub(super) fn extend(
        &mut self,
        ranks: &mut RankLoop,
        model: AnyModel,
        round: &mut Round,
        more: usize,
        error: &TrainError,
    ) -> Result<AnyModel, TrainError> {
        // Nobody is restarted for a rank that only comes late, and the others have waited for it.
        let is_loss = ranks.setup.elasticity.next_after(error).is_some() && !error.is_timeout();
        if more == 0 || !is_loss {
            return Ok(model);
        }
        // Ranks that have not noticed the loss would wait for this one.
        error.abort(&ranks.setup.group);
        match ranks.leaves_round() {
            true => Ok(model),
            false => ranks.steps_alone(model, &self.inner, &mut self.shares, round, more),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use everburn_collectives::group::GroupOptions;

    use super::*;
    use crate::elastic::regroup::Regroup;

    /// An elastic job to whose next group somebody has come, or not.
    #[derive(Default)]
    struct NextGroup {
        somebody_waits: AtomicBool,
    }

    impl Regroup for NextGroup {
        fn group(&self) -> ProcessGroup {
            ProcessGroup::alone(GroupOptions::default())
        }

        fn regroup(&self, _: usize, _: &TrainError) -> Result<ProcessGroup, TrainError> {
            Ok(self.group())
        }

        fn somebody_waits(&self) -> bool {
            self.somebody_waits.load(Ordering::Relaxed)
        }

        fn members(&self) -> Vec<usize> {
            vec![0]
        }
    }

    fn elastic_job() -> (Arc<NextGroup>, Elasticity) {
        let next = Arc::new(NextGroup::default());
        (next.clone(), Elasticity::by(next))
    }

    fn works() -> Vec<ProcessGroup> {
        ProcessGroup::over_threads(2, GroupOptions::default())
    }

    fn has_failed() -> Vec<ProcessGroup> {
        let groups = works();
        groups[0].abort("rank 1 was killed");
        groups
    }

    #[test]
    fn a_rank_of_a_group_that_works_ends_its_round_whoever_waits() {
        let (next, elastic) = elastic_job();
        next.somebody_waits.store(true, Ordering::Relaxed);
        let (groups, fixed) = (works(), Elasticity::default());
        let mut failed = FailedGroup::default();
        assert!(!failed.ends_round(&groups[0], &elastic, false, Instant::now()));
        assert!(!failed.ends_round(&groups[0], &fixed, false, Instant::now()));
    }

    #[test]
    fn a_rank_of_a_fixed_group_that_has_failed_leaves_its_round_at_once() {
        let (groups, fixed) = (has_failed(), Elasticity::default());
        let mut failed = FailedGroup::default();
        assert!(failed.ends_round(&groups[0], &fixed, false, Instant::now()));
    }

    #[test]
    fn a_rank_of_an_elastic_job_continues_after_a_loss_until_somebody_waits() {
        let (next, elastic) = elastic_job();
        let groups = has_failed();
        let mut failed = FailedGroup::default();
        let lost_at = Instant::now();
        let mut ends_after = |seconds| {
            let now = lost_at + Duration::from_secs(seconds);
            failed.ends_round(&groups[0], &elastic, false, now)
        };
        assert_eq!([0, 1, 9].map(&mut ends_after), [false; 3]);
        next.somebody_waits.store(true, Ordering::Relaxed);
        assert!(ends_after(9));
    }

    #[test]
    fn a_rank_that_is_to_stop_makes_no_further_steps_after_a_loss() {
        let (_, elastic) = elastic_job();
        let now = Instant::now();
        let mut failed = FailedGroup::default();
        assert!(failed.ends_round(&has_failed()[0], &elastic, true, now));
        // With the others, while the group works.
        assert!(!failed.ends_round(&works()[0], &elastic, true, now));
    }

    #[test]
    fn a_rank_waits_for_nobody_longer_than_its_time_which_begins_anew_in_each_group() {
        let (_, elastic) = elastic_job();
        let (lost, works) = (has_failed(), works());
        let mut failed = FailedGroup::default();
        let lost_at = Instant::now();
        let later = lost_at + AFTER_A_LOSS;
        assert!(!failed.ends_round(&lost[0], &elastic, false, lost_at));
        assert!(failed.ends_round(&lost[0], &elastic, false, later));
        assert!(!failed.ends_round(&works[0], &elastic, false, later));
        assert!(!failed.ends_round(&lost[0], &elastic, false, later));
    }
}
