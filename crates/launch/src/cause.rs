//! Which of several failed ranks is to blame.

use crate::exit::{EXIT_PEER_LOST, RankExit};
use crate::outcome::EndedRank;

/// The position, in `ended` (in the order in which the launcher saw them end), of the rank that
/// caused the job to fail; `None` when it is empty. Ranks that have ended well are not among `ended`.
///
/// A rank's own failure goes before that of one which only lost a peer or was ended by the
/// launcher, and among equals the earlier before the later. A rank's own clock dates its failure
/// better than its process's end: the process may take a while to wind up.
pub(crate) fn root_cause(ended: &[EndedRank]) -> Option<usize> {
    ended
        .iter()
        .enumerate()
        .min_by_key(|(_, rank)| (blame(rank), failed_at(rank)))
        .map(|(position, _)| position)
}

/// How a rank's end bears on the job's, most to blame first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blame {
    /// It failed by itself.
    Own,
    /// It lost a peer, or was asked to give up.
    Victim,
    /// The launcher ended it: it had neither failed nor noticed anything.
    Bystander,
}

pub(crate) fn blame(rank: &EndedRank) -> Blame {
    match rank.failure() {
        // A signal that it dies of later, while it winds up, does not turn a victim into a cause.
        Some(failure) if !failure.kind.is_own_failure() => Blame::Victim,
        Some(_) => Blame::Own,
        None if rank.was_not_needed() => Blame::Victim,
        None if rank.ended_by_launcher => Blame::Bystander,
        None if rank.exit == RankExit::Code(EXIT_PEER_LOST) => Blame::Victim,
        None => Blame::Own,
    }
}

fn failed_at(rank: &EndedRank) -> u64 {
    rank.failure()
        .map_or(rank.unix_time_ms, |failure| failure.unix_time_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{RankReport, ReportKind};

    fn ended(rank: usize, exit: RankExit, at: u64) -> EndedRank {
        EndedRank {
            rank,
            exit,
            ended_by_launcher: false,
            unix_time_ms: at,
            report: None,
        }
    }

    fn reported(rank: usize, code: i32, seen: u64, kind: ReportKind, failed: u64) -> EndedRank {
        let report = Some(RankReport {
            unix_time_ms: failed,
            ..RankReport::new(rank, kind, "because")
        });
        EndedRank {
            report,
            ..ended(rank, RankExit::Code(code), seen)
        }
    }

    fn blamed(ranks: &[EndedRank]) -> Option<usize> {
        root_cause(ranks).map(|position| ranks[position].rank)
    }

    #[test]
    fn who_ended_with_0_and_said_nothing_is_blamed_before_its_victims() {
        assert_eq!(blamed(&[]), None);
        let victim = ended(0, RankExit::Code(EXIT_PEER_LOST), 1);
        let silent = ended(1, RankExit::Code(0), 2);
        assert_eq!(blamed(&[victim, silent]), Some(1));
    }

    #[test]
    fn who_lost_a_peer_first_is_not_blamed() {
        let victim = ended(0, RankExit::Code(EXIT_PEER_LOST), 1);
        assert_eq!(
            blamed(&[victim.clone(), ended(2, RankExit::Signal(9), 5)]),
            Some(2)
        );
        let told = reported(0, 1, 1, ReportKind::Aborted, 1);
        assert_eq!(
            blamed(&[told, victim.clone(), ended(3, RankExit::Code(1), 9)]),
            Some(3)
        );
        assert_eq!(
            blamed(&[victim]),
            Some(0),
            "with nobody else, the victim is shown"
        );
    }

    #[test]
    fn who_failed_first_is_blamed_though_it_took_long_to_end() {
        let slow = reported(1, 1, 900, ReportKind::Panic, 100);
        let quick = reported(0, 1, 200, ReportKind::Own, 150);
        assert_eq!(blamed(&[quick, slow]), Some(1));
    }

    #[test]
    fn who_was_ended_by_the_launcher_is_blamed_last() {
        let hung = EndedRank {
            ended_by_launcher: true,
            ..ended(1, RankExit::Signal(9), 2)
        };
        let victim = ended(0, RankExit::Code(EXIT_PEER_LOST), 1);
        assert_eq!(blamed(&[hung.clone(), victim]), Some(0));
        assert_eq!(blamed(&[hung]), Some(1));
    }

    #[test]
    fn a_victim_that_crashes_while_it_winds_up_stays_a_victim() {
        let mut victim = reported(0, 0, 1, ReportKind::PeerLost, 1);
        victim.exit = RankExit::Signal(11);
        assert_eq!(blamed(&[victim, ended(1, RankExit::Code(1), 2)]), Some(1));
    }
}
