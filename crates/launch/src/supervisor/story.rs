//! What became of an elastic job on this machine, and whether that is a success.

use std::time::Duration;

use everburn_record::ranks;

use crate::cause::root_cause;
use crate::outcome::{EndedRank, Restart};

/// What has become of an elastic job on this machine so far.
#[derive(Default)]
pub(super) struct Story {
    /// A rank has ended well or the store says so, and nobody has interrupted the job before.
    pub(super) finished: bool,
    pub(super) given_up: Option<String>,
    /// Why the store could not be reached any more.
    pub(super) store_lost: Option<String>,
    /// In the order in which they were decided.
    pub(super) restarts: Vec<Restart>,
    /// The last ends of ranks that stay away.
    pub(super) away: Vec<EndedRank>,
    /// The last ends of ranks that were to be started again when the job ended.
    pub(super) cancelled: Vec<EndedRank>,
}

impl Story {
    /// Leaves in `ended` the ranks without which a job that is said to have finished would have succeeded, and
    /// says why it has not. Only what ranks of this machine have said themselves counts: anybody who can write to
    /// the store can say there that the job has finished.
    pub(super) fn judge(&self, ended: &mut Vec<EndedRank>, patience: Duration) -> Option<String> {
        let patience = patience.as_secs_f64();
        let killed = ended.iter().filter(|it| it.ended_by_launcher);
        let mut killed: Vec<usize> = killed.map(|it| it.rank).collect();
        killed.sort_unstable();
        let were = if killed.len() > 1 { "were" } else { "was" };
        let killed = (!killed.is_empty()).then(|| {
            format!(
                "{} still ran {patience:.1} s after that and {were} killed",
                ranks(&killed)
            )
        });
        let ends_well = |it: &EndedRank| it.has_finished() || it.was_stopped();
        if ended.iter().any(ends_well) {
            ended.retain(|it| !ends_well(it) && !it.was_not_needed());
            return killed
                .map(|killed| format!("another rank of this machine had ended well; {killed}"));
        }
        ended.splice(0..0, self.away.iter().cloned());
        if ended.is_empty() {
            ended.extend(self.cancelled.iter().cloned());
        }
        let killed = killed.map_or(String::new(), |killed| format!(" ({killed})"));
        Some(format!(
            "the job's store says that the job has finished, and no rank of this machine has reported that \
             it had{killed}. That is no success: any process that can write to the store can write that. See whether ranks \
             of other machines have finished, by their launchers; whether another job meets at the same \
             address; and who can reach the store, if it is open, or has its token"
        ))
    }

    /// Leaves in `ended` the ranks because of which a job that has not finished has failed: none where a rank of this machine
    /// has ended well and no other has failed. Where none has ended well, those are to blame that were to be started again.
    /// `false` where no rank of this machine has run.
    pub(super) fn blames(
        &self,
        ended: &mut Vec<EndedRank>,
        ends_well: impl Fn(&EndedRank) -> bool,
    ) -> bool {
        let one_is_well = ended.iter().any(&ends_well);
        ended.retain(|it| !ends_well(it));
        ended.splice(0..0, self.away.iter().cloned());
        if ended.is_empty() && !one_is_well {
            ended.extend(self.cancelled.iter().cloned());
        }
        !ended.is_empty() || one_is_well
    }

    /// Whether the end of a rank was to be followed by another start of it.
    pub(super) fn was_to_start_again(&self, ended: &EndedRank) -> bool {
        self.cancelled.contains(ended)
    }

    /// Why nobody is started any more, if that is known.
    pub(super) fn reason(&self) -> Option<String> {
        let lost = self.store_lost.as_ref().filter(|_| !self.finished);
        let lost = || lost.map(|reason| format!("no rank is started again: {reason}"));
        self.given_up.clone().or_else(lost)
    }

    /// The end to show for a rank that stays away: that of its first process which has said what was wrong.
    pub(super) fn first_error_of(&self, cause: EndedRank) -> EndedRank {
        let earlier = self.restarts.iter().map(|restart| &restart.ended);
        let earlier: Vec<EndedRank> = earlier
            .filter(|ended| ended.rank == cause.rank && ended.failure().is_some())
            .cloned()
            .collect();
        match root_cause(&earlier) {
            Some(position) if self.given_up.is_some() => earlier[position].clone(),
            _ => cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::RankExit;
    use crate::failure::{RankReport, ReportKind};

    fn ended(rank: usize, code: i32, kind: Option<ReportKind>) -> EndedRank {
        EndedRank {
            report: kind.map(|kind| RankReport::new(rank, kind, "")),
            ..EndedRank::new(rank, RankExit::Code(code))
        }
    }

    #[test]
    fn ranks_that_were_killed_are_named() {
        let story = story(Vec::new(), Vec::new());
        let mut all = [3, 1].map(|rank| EndedRank {
            ended_by_launcher: true,
            ..ended(rank, 137, None)
        });
        let of = |ended: &[EndedRank]| {
            let why = story.judge(&mut ended.to_vec(), Duration::from_secs(60));
            why.unwrap()
        };
        let text = of(&all);
        let both = "ranks 1, 3 still ran 60.0 s after that and were killed";
        assert!(text.contains(both), "{text}");
        all.reverse();
        let text = of(&all[..1]);
        assert!(
            text.contains("rank 1 still ran 60.0 s after that and was killed"),
            "{text}"
        );
    }

    fn story(cancelled: Vec<EndedRank>, away: Vec<EndedRank>) -> Story {
        Story {
            finished: true,
            away,
            cancelled,
            ..Story::default()
        }
    }

    fn judged(story: &Story, mut ended: Vec<EndedRank>) -> (Vec<usize>, bool) {
        let unproved = story.judge(&mut ended, Duration::ZERO);
        let left = ended.iter().map(|ended| ended.rank).collect();
        (left, unproved.is_some())
    }

    #[test]
    fn one_that_has_finished_makes_up_for_those_that_were_away_or_not_needed() {
        let finished = ended(0, 0, Some(ReportKind::Finished));
        let late = ended(1, 0, Some(ReportKind::NotNeeded));
        let story = story(Vec::new(), vec![ended(2, 2, None)]);
        assert_eq!(
            judged(&story, vec![finished.clone(), late.clone()]),
            (vec![], false)
        );
        assert_eq!(judged(&story, vec![late]), (vec![2, 1], true));
        // Those that were there must end well.
        let silent = ended(3, 0, None);
        let failed = ended(4, 1, Some(ReportKind::Own));
        assert_eq!(
            judged(&story, vec![finished, silent, failed]),
            (vec![3, 4], false)
        );
    }

    #[test]
    fn ranks_that_wait_for_a_restart_have_not_finished() {
        let story = story(vec![ended(1, 3, None)], Vec::new());
        assert_eq!(judged(&story, Vec::new()), (vec![1], true));
    }
}
