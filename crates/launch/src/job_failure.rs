//! Why a job failed, as the message for the user.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use everburn_record::ranks;

use crate::cause::{Blame, blame};
use crate::ended_alike::EndedAlike;
use crate::exit::{EXIT_PEER_LOST, EXIT_STALLED, EXIT_UNAVAILABLE, RankExit};
use crate::lost_machine::LostMachine;
use crate::outcome::{EndedRank, Restart};

/// What begins the advice in the error of a rank that has waited in vain.
const ADVICE: &str = "; check whether ";

/// Why a job failed: the rank that is to blame first, then what became of the others.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{EndedRank, JobFailure, RankExit};
///
/// let failure = JobFailure {
///     cause: EndedRank {
///         rank: 1,
///         exit: RankExit::Signal(9),
///         ended_by_launcher: false,
///         unix_time_ms: 0,
///         report: None,
///     },
///     logged: 1,
///     log: "runs/a/rank-1.log".into(),
///     log_tail: Some(vec!["step 12".into()]),
///     others: Vec::new(),
///     restarts: Vec::new(),
///     given_up: None,
///     unproved: None,
///     left_early: None,
///     lost_machine: None,
///     stopped: Vec::new(),
///     own_pause: None,
///     out_of_memory: true,
///     exit_code: 137,
/// };
/// assert!(failure.to_string().contains("lack of memory"));
/// ```
#[derive(Debug, Clone)]
pub struct JobFailure {
    /// The first rank that failed by itself; where none did, the first that ended.
    pub cause: EndedRank,
    /// The rank whose log is shown: the one that is to blame, or the one that it lost, if that is on this machine.
    pub logged: usize,
    /// The log of that rank.
    pub log: PathBuf,
    /// The log's last lines; `None` of a report on a stall that has just been on the screen.
    pub log_tail: Option<Vec<String>>,
    /// The other ranks that did not end well, in the order in which they ended. The text groups those that ended
    /// alike.
    pub others: Vec<EndedRank>,
    /// An elastic job's restarts on this machine, in order.
    pub restarts: Vec<Restart>,
    /// Why an elastic job could not continue, or the launcher ended another.
    pub given_up: Option<String>,
    /// Why an elastic job that is said to have finished has not succeeded.
    pub unproved: Option<String>,
    /// The rank that `cause` lost, where that had ended without an error: it has made fewer calls than `cause`.
    pub left_early: Option<EndedRank>,
    /// The other machine whose ranks were lost, if `cause` lost one of them; or machine 0, if its launcher hosts the store and
    /// that was lost, in a job that is not elastic while the ranks met.
    pub lost_machine: Option<LostMachine>,
    /// The ranks of this machine, in order, whose processes were stopped (SIGSTOP) when another one failed, in a job that is
    /// not elastic.
    pub stopped: Vec<usize>,
    /// In a job of several machines: how long this machine's launcher did not run shortly before.
    pub own_pause: Option<Duration>,
    /// Whether the kernel ended some process of this machine for lack of memory during the job.
    pub out_of_memory: bool,
    /// What the launcher returns: the code of `cause`, unless its end alone would not have ended the job.
    pub exit_code: i32,
}

impl JobFailure {
    /// Who was lost, or did not run, before what the cause itself says.
    fn write_lost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pause) = self.own_pause {
            writeln!(
                f,
                "this machine has not run for {:.0} s (its launcher was stopped, or it was suspended): meanwhile the other \
                 machines may have given up its ranks, and have continued or ended the job without them",
                pause.as_secs_f64()
            )?;
        }
        if let Some(stopped) = self.stopped_first() {
            let (were, them) = match stopped.len() {
                1 => ("was", "it"),
                _ => ("were", "them"),
            };
            let stopped = ranks(stopped);
            return write!(
                f,
                "{stopped} {were} stopped (SIGSTOP), and the launcher has ended {them}: "
            );
        }
        let Some(lost) = self.cause.lost_rank() else {
            return Ok(());
        };
        if let Some(left) = &self.left_early {
            let step = left.report.as_ref().and_then(|report| report.step);
            let step = step.map_or(String::new(), |step| format!(" at step {step}"));
            let waiting = self.cause.rank;
            return write!(
                f,
                "rank {lost} ended without an error{step}, while rank {waiting} waited for it: "
            );
        }
        let machine = self.lost_machine.as_ref();
        let whole = machine.and_then(|machine| machine.silent_as_a_whole(&self.cause));
        let (who, many) = match (machine, whole) {
            (_, Some(whole)) => (whole, false),
            (Some(machine), None) => {
                let who = format!("{} of {machine}", ranks(&machine.ranks));
                (who, machine.ranks.len() > 1)
            }
            (None, None) => (format!("rank {lost}"), false),
        };
        let what = match (&self.cause.exit, many) {
            (RankExit::Code(EXIT_STALLED), _) => "did not answer",
            (_, true) => "were lost",
            (_, false) => "was lost",
        };
        write!(f, "{who} {what}: ")
    }

    /// The ranks that were stopped, where the cause has waited in vain. It need not know of any of them: without heartbeats it
    /// may have heard only of another one that waited.
    fn stopped_first(&self) -> Option<&[usize]> {
        let cause = &self.cause;
        let waited = blame(cause) == Blame::Victim || cause.exit == RankExit::Code(EXIT_STALLED);
        let is_elsewhere = self.lost_machine.is_some() || self.left_early.is_some();
        let is_first = waited && !is_elsewhere && !self.stopped.is_empty();
        is_first.then_some(&self.stopped)
    }

    /// Why the launcher has ended the ranks of this machine, where none of them has failed or lost another.
    #[must_use]
    pub fn why_ended(&self) -> Option<&str> {
        let by_launcher = self.cause.ended_by_launcher && self.cause.failure().is_none();
        self.given_up.as_deref().filter(|_| by_launcher)
    }

    /// Whether the lost machine is known by the store alone.
    fn lost_with_the_store(&self) -> bool {
        self.lost_machine.is_some() && self.cause.lost_rank().is_none()
    }

    /// Whether machine 0 was lost with the store of a job that is not elastic, which its ranks need only to meet: no step was
    /// made.
    #[must_use]
    pub fn lost_before_ranks_met(&self) -> bool {
        let unavailable = self.cause.exit == RankExit::Code(EXIT_UNAVAILABLE);
        unavailable && self.given_up.is_none() && self.lost_with_the_store()
    }

    /// Where the error is to be found if no rank of this machine has it.
    fn write_where_to_look(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_victim =
            self.left_early.is_none() && self.cause.exit == RankExit::Code(EXIT_PEER_LOST);
        if of_victim && self.logged == self.cause.rank && !self.lost_with_the_store() {
            match &self.lost_machine {
                Some(machine) => writeln!(
                    f,
                    "  no rank of this machine failed by itself: look at {machine}, at the output of its launcher first; \
                     where the launcher itself was killed or the machine stopped, there is none"
                )?,
                None => writeln!(
                    f,
                    "  no rank of this machine failed by itself: look at the rank that was lost, or \
                     at the other machines' output"
                )?,
            }
        }
        if let Some(machine) = self
            .lost_machine
            .as_ref()
            .filter(|_| self.lost_with_the_store())
        {
            writeln!(
                f,
                "  {machine}, whose launcher hosts the store of the job, is lost: look at the output of that launcher first; \
                 where it was killed or the machine stopped, there is none"
            )?;
        }
        Ok(())
    }

    /// The log that is shown, without the lines that the error has said.
    fn write_log(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.cause.lost_rank() {
            // Of the two ranks that the error speaks of.
            Some(_) => format!("the log of rank {}", self.logged),
            None => "its log".to_owned(),
        };
        let log = self.log.display();
        let said = self.cause.failure().map_or("", |it| &it.message);
        let is_said = |line: &&String| {
            let line = line.trim();
            let line = line.strip_prefix("error: ").unwrap_or(line);
            said.lines().any(|said| said.trim() == line)
        };
        let Some(tail) = &self.log_tail else {
            return writeln!(f, "{whose}: {log}");
        };
        let rest: Vec<&String> = tail.iter().filter(|line| !is_said(line)).collect();
        match (tail.is_empty(), rest.is_empty()) {
            (true, _) => writeln!(f, "{whose}: {log} (empty)")?,
            (false, true) => writeln!(f, "{whose}: {log}")?,
            (false, false) => writeln!(f, "{whose}: {log}, which ends with")?,
        }
        for line in rest {
            writeln!(f, "  | {line}")?;
        }
        Ok(())
    }
}

impl fmt::Display for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_lost(f)?;
        if let Some(reason) = self.why_ended() {
            writeln!(f, "{reason}")?;
        }
        writeln!(f, "{}", self.cause)?;
        if let Some(failure) = self.cause.failure() {
            for line in failure.message.lines() {
                // What to check is known.
                let known = self.stopped_first().and_then(|_| line.split_once(ADVICE));
                writeln!(f, "  {}", known.map_or(line, |(what, _)| what))?;
            }
        } else if self.cause.exit.is_success() && !self.cause.was_not_needed() {
            writeln!(
                f,
                "  code of its own may have ended it, or code that it calls (`exit(0)`). A rank has finished when its \
                 function in `launch::run` has returned, or `RankEnvironment::report_finished` was called; of this one \
                 neither is so, and what it was to write may be missing"
            )?;
        }
        if let Some(reason) = &self.unproved {
            writeln!(f, "  {reason}")?;
        }
        if self.cause.exit == RankExit::Signal(signal_hook::consts::SIGKILL) && self.out_of_memory {
            writeln!(
                f,
                "  during this job the kernel ended a process for lack of memory, most likely \
                 this one: try fewer ranks or a smaller batch"
            )?;
        }
        if let Some(left) = &self.left_early {
            writeln!(
                f,
                "  every rank has to make the same calls: check whether rank {} left its loop early, or had fewer batches \
                 than the others",
                left.rank
            )?;
        }
        self.write_where_to_look(f)?;
        self.write_log(f)?;
        if !self.others.is_empty() {
            writeln!(f, "then")?;
            for group in EndedAlike::groups(&self.cause, &self.others) {
                writeln!(f, "  {group}")?;
            }
        }
        if !self.restarts.is_empty() {
            writeln!(f, "before that, restarts")?;
            for restart in &self.restarts {
                writeln!(f, "  {restart}")?;
            }
        }
        if let Some(reason) = self
            .given_up
            .as_ref()
            .filter(|_| self.why_ended().is_none())
        {
            writeln!(f, "the job cannot continue: {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{RankReport, ReportKind};

    /// Rank 2 ended with `code` because of rank 1; the log of rank `logged` is shown.
    fn because_of_rank_1(code: i32, logged: usize, log_tail: Option<&[&str]>) -> JobFailure {
        let message = "rank 2 lost rank 1 in barrier\ncheck its process";
        let report = RankReport {
            lost_rank: Some(1),
            ..RankReport::new(2, ReportKind::PeerLost, message)
        };
        JobFailure {
            cause: EndedRank {
                rank: 2,
                exit: RankExit::Code(code),
                ended_by_launcher: false,
                unix_time_ms: 0,
                report: Some(report),
            },
            logged,
            log: format!("logs/rank-{logged}.log").into(),
            log_tail: log_tail.map(|tail| tail.iter().map(ToString::to_string).collect()),
            others: Vec::new(),
            restarts: Vec::new(),
            given_up: None,
            unproved: None,
            left_early: None,
            lost_machine: None,
            stopped: Vec::new(),
            own_pause: None,
            out_of_memory: false,
            exit_code: code,
        }
    }

    #[test]
    fn the_rank_that_did_not_answer_comes_first_and_its_log_is_shown() {
        let text = because_of_rank_1(EXIT_STALLED, 1, Some(&["reading shard 7"])).to_string();
        assert!(text.starts_with("rank 1 did not answer: rank 2 "), "{text}");
        let log = "the log of rank 1: logs/rank-1.log, which ends with\n  | reading shard 7\n";
        assert!(text.ends_with(log), "{text}");
        assert!(!text.contains("other machines"), "{text}");
        let seen = because_of_rank_1(EXIT_STALLED, 2, None).to_string();
        assert!(
            seen.ends_with("the log of rank 2: logs/rank-2.log\n"),
            "{seen}"
        );
    }

    #[test]
    fn a_rank_that_was_stopped_comes_before_the_victim_that_another_has_lost() {
        let of = |code, stopped: &[usize]| {
            let failure = JobFailure {
                stopped: stopped.to_vec(),
                ..because_of_rank_1(code, 2, None)
            };
            failure.to_string()
        };
        let victim = of(EXIT_PEER_LOST, &[3]);
        let begin = "rank 3 was stopped (SIGSTOP), and the launcher has ended it: rank 2 ";
        assert!(victim.starts_with(begin), "{victim}");
        let several = of(EXIT_STALLED, &[0, 3]);
        assert!(
            several.starts_with(
                "ranks 0, 3 were stopped (SIGSTOP), and the launcher has ended them: "
            ),
            "{several}"
        );
        let mut named = because_of_rank_1(EXIT_STALLED, 2, None);
        named.stopped = vec![1];
        let report = named.cause.report.as_mut().unwrap();
        report.message =
            "rank 2 lost rank 1: no heartbeat for 5 s; check whether its machine runs".to_owned();
        let named = named.to_string();
        assert!(
            named.starts_with("rank 1 was stopped (SIGSTOP), and "),
            "{named}"
        );
        assert!(named.contains("no heartbeat for 5 s\n"), "{named}");
        // It has failed by itself.
        let mut own = because_of_rank_1(1, 2, None);
        own.stopped = vec![3];
        own.cause.report = None;
        assert!(own.to_string().starts_with("rank 2 ended with exit code 1"));
    }

    #[test]
    fn of_a_rank_lost_elsewhere_the_other_machines_are_named_and_no_line_comes_twice() {
        let tail = [
            "error: rank 2 lost rank 1 in barrier",
            "check its process",
            "step 9",
        ];
        let text = because_of_rank_1(EXIT_PEER_LOST, 2, Some(&tail)).to_string();
        assert!(
            text.starts_with("rank 1 was lost: rank 2 lost rank 1"),
            "{text}"
        );
        assert!(text.contains("at the other machines' output"), "{text}");
        assert!(text.ends_with("which ends with\n  | step 9\n"), "{text}");
    }

    #[test]
    fn a_lost_machine_is_named_by_its_number_and_its_name() {
        let machine = |ranks: &[usize]| LostMachine {
            number: 1,
            ranks: ranks.to_vec(),
            host: Some("node7".to_owned()),
        };
        for (ranks, begin) in [
            (
                &[1, 2][..],
                "ranks 1, 2 of machine 1 (node7) were lost: rank 2 ",
            ),
            (&[1], "rank 1 of machine 1 (node7) was lost: rank 2 "),
        ] {
            let failure = JobFailure {
                lost_machine: Some(machine(ranks)),
                ..because_of_rank_1(EXIT_PEER_LOST, 2, None)
            };
            let text = failure.to_string();
            assert!(text.starts_with(begin), "{text}");
            assert!(text.contains("look at machine 1 (node7), at"), "{text}");
        }
    }

    #[test]
    fn a_machine_that_is_lost_with_the_store_is_named_though_no_rank_of_it_was() {
        let mut failure = JobFailure {
            lost_machine: Some(LostMachine {
                number: 0,
                ranks: vec![0, 1],
                host: Some("node7".to_owned()),
            }),
            ..because_of_rank_1(EXIT_UNAVAILABLE, 2, None)
        };
        let report = failure.cause.report.as_mut().unwrap();
        report.lost_rank = None;
        let text = failure.to_string();
        let line =
            "\n  machine 0 (node7), whose launcher hosts the store of the job, is lost: look";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("ranks 0, 1"), "{text}");
        assert!(failure.lost_before_ranks_met());
        // An elastic job that was to start a rank again.
        failure.given_up = Some("the store is lost".to_owned());
        assert!(!failure.lost_before_ranks_met());
    }

    #[test]
    fn a_machine_that_did_not_run_says_so_before_it_blames_another() {
        let failure = JobFailure {
            own_pause: Some(Duration::from_secs(47)),
            ..because_of_rank_1(EXIT_PEER_LOST, 2, None)
        };
        let text = failure.to_string();
        let begin = "this machine has not run for 47 s (its launcher was stopped, or it was suspended): meanwhile";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.contains("\nrank 1 was lost: rank 2 "), "{text}");
    }

    #[test]
    fn why_the_launcher_has_ended_ranks_that_had_not_failed_comes_first() {
        let mut failure = JobFailure {
            given_up: Some("all ranks of this machine have been stopped".to_owned()),
            ..because_of_rank_1(EXIT_STALLED, 2, None)
        };
        let text = failure.to_string();
        assert!(
            text.contains("\nthe job cannot continue: all ranks"),
            "{text}"
        );
        assert_eq!(failure.why_ended(), None);
        failure.cause.report = None;
        failure.cause.ended_by_launcher = true;
        let text = failure.to_string();
        let begin = "all ranks of this machine have been stopped\nrank 2 was ended by the launcher";
        assert!(text.starts_with(begin), "{text}");
        assert!(!text.contains("cannot continue"), "{text}");
    }

    #[test]
    fn a_lost_rank_that_had_ended_without_an_error_is_said_to_have_left_early() {
        let finished = RankReport {
            step: Some(7),
            ..RankReport::new(1, ReportKind::Finished, "")
        };
        let failure = JobFailure {
            left_early: Some(EndedRank {
                rank: 1,
                exit: RankExit::Code(0),
                ended_by_launcher: false,
                unix_time_ms: 0,
                report: Some(finished),
            }),
            ..because_of_rank_1(EXIT_PEER_LOST, 2, None)
        };
        let text = failure.to_string();
        let begin =
            "rank 1 ended without an error at step 7, while rank 2 waited for it: rank 2 lost";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.contains("rank 1 left its loop early"), "{text}");
        assert!(!text.contains("failed by itself"), "{text}");
    }
}
