//! Which of several failed ranks is to blame.

use std::cmp::Reverse;

use crate::exit::{EXIT_PEER_LOST, RankExit};
use crate::outcome::EndedRank;

/// The position, in `ended` (in the order in which the launcher saw them end), of the rank that
/// caused the job to fail; `None` when it is empty. Ranks that have ended well are not among `ended`.
///
/// A rank's own failure goes before that of one which only lost a peer or was ended by the
/// launcher. Of those that only lost a peer, that one goes first whose peer is to blame: it is no such victim itself, its
/// machine is silent, or most have lost it. Among equals the earlier goes before the later. A rank's own clock dates its
/// failure better than its process's end: the process may take a while to wind up.
pub(crate) fn root_cause(ended: &[EndedRank]) -> Option<usize> {
    let is_victim = |rank: usize| {
        let mut victims = ended.iter().filter(|it| blame(it) == Blame::Victim);
        victims.any(|it| it.rank == rank)
    };
    let losers = |rank: usize| {
        ended
            .iter()
            .filter(|it| it.lost_rank() == Some(rank))
            .count()
    };
    let of_lost = |it: &EndedRank| match it.lost_rank() {
        Some(lost) => {
            let machine = it.failure().and_then(|failure| failure.silent_machine);
            (is_victim(lost), machine.is_none(), Reverse(losers(lost)))
        }
        None => (true, true, Reverse(0)),
    };
    ended
        .iter()
        .enumerate()
        .min_by_key(|(_, rank)| (blame(rank), of_lost(rank), failed_at(rank)))
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
            unix_time_ms: at,
            ..EndedRank::new(rank, exit)
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
    fn of_victims_that_one_is_shown_whose_peer_is_to_blame() {
        let lost = |rank: usize, peer: usize, machine: Option<usize>, at: u64| {
            let mut ended = reported(rank, EXIT_PEER_LOST, at, ReportKind::PeerLost, at);
            let report = ended.report.as_mut().unwrap();
            (report.lost_rank, report.silent_machine) = (Some(peer), machine);
            ended
        };
        // Rank 1 was asked by rank 0 to give up, which has lost rank 2.
        let chain = [lost(1, 0, None, 1), lost(0, 2, None, 2)];
        assert_eq!(blamed(&chain), Some(0));
        // They name each other, and one of them a machine that is silent.
        let each_other = [
            lost(0, 1, None, 1),
            lost(1, 0, None, 2),
            lost(3, 4, Some(2), 3),
        ];
        assert_eq!(blamed(&each_other), Some(3));
        let silent = [lost(1, 4, None, 1), lost(0, 2, Some(1), 2)];
        assert_eq!(blamed(&silent), Some(0));
        let most = [
            lost(0, 5, None, 1),
            lost(1, 4, None, 2),
            lost(3, 4, None, 3),
        ];
        assert_eq!(blamed(&most), Some(1));
        // One that says whom it has lost goes before one that does not.
        let unknown = ended(0, RankExit::Code(EXIT_PEER_LOST), 1);
        assert_eq!(blamed(&[unknown, lost(1, 4, None, 2)]), Some(1));
        // An own failure goes before all of them, whenever it was.
        let own = reported(2, 1, 9, ReportKind::Own, 9);
        assert_eq!(blamed(&[chain.to_vec(), vec![own]].concat()), Some(2));
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
