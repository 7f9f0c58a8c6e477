//! Why a job failed, as the message for the user.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use everburn_record::ranks;

use crate::cause::{Blame, blame};
use crate::ended_alike::how_others_ended;
use crate::exit::{EXIT_PEER_LOST, EXIT_STALLED, EXIT_UNAVAILABLE, RankExit};
use crate::failure::RankReport;
use crate::lost_machine::LostMachine;
use crate::outcome::{EndedRank, Restart};
use crate::panic_place::naming_lost_device;

/// What begins the advice in the error of a rank that has waited in vain, and in that of one that has heard no heartbeats.
const ADVICE: [&str; 2] = ["; check whether ", "; check whether its process "];

/// What begins whom the store has refused, which the launcher adds to the error of a rank that has waited for others in vain.
pub(crate) const REFUSED: &str = "; the store has refused ";

/// Why a job failed: the [headline](Self::headline), then its details and what became of the others.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{EndedRank, JobFailure, RankExit};
///
/// let killed = EndedRank::new(1, RankExit::Signal(9));
/// let failure = JobFailure {
///     log_tail: Some(vec!["step 12".into()]),
///     out_of_memory: true,
///     ..JobFailure::new(killed, "runs/a/rank-1.log")
/// };
/// let headline = failure.headline();
/// assert!(headline.starts_with("rank 1 was ended by SIGKILL"), "{headline}");
/// assert!(headline.contains("lack of memory"), "{headline}");
/// assert!(failure.to_string().starts_with(&headline));
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
    /// The failure of a job because of `cause`, whose log is at `log`. Nothing else is known.
    #[must_use]
    pub fn new(cause: EndedRank, log: impl Into<PathBuf>) -> Self {
        Self {
            logged: cause.rank,
            log: log.into(),
            log_tail: None,
            others: Vec::new(),
            restarts: Vec::new(),
            given_up: None,
            unproved: None,
            left_early: None,
            lost_machine: None,
            stopped: Vec::new(),
            own_pause: None,
            out_of_memory: false,
            exit_code: cause.exit.exit_code(),
            cause,
        }
    }

    /// Why the job failed, in one line: who is to blame, what the cause has said, and what the launcher saw.
    #[must_use]
    pub fn headline(&self) -> String {
        let pause = self.own_pause.map(|pause| {
            format!(
                "this machine has not run for {:.0} s (its launcher was stopped, or it was suspended): meanwhile the other \
                 machines may have given up its ranks, and have continued or ended the job without them; ",
                pause.as_secs_f64()
            )
        });
        let mut line = pause.unwrap_or_default() + &self.lost();
        let why_ended = self.why_ended();
        if let Some(reason) = why_ended {
            line += &format!("{reason}: ");
        }
        line += &self.cause.to_string();
        if let Some(said) = self.cause.failure().and_then(RankReport::headline) {
            line += &format!(": {}", self.without_known_advice(&said));
        }
        if let Some(reason) = &self.unproved {
            let what = reason.split_once(". ").map_or(&**reason, |(what, _)| what);
            line += &format!(": {what}");
        }
        if self.cause.exit == RankExit::Signal(signal_hook::consts::SIGKILL) && self.out_of_memory {
            line += "; during this job the kernel ended a process for lack of memory, most likely this one: try fewer ranks or \
                     a smaller batch";
        }
        if self.own_step().is_none()
            && let Some(step) = self.step()
        {
            line += &format!("; the others were at step {step}");
        }
        if let Some(reason) = self.given_up.as_ref().filter(|_| why_ended.is_none()) {
            line += &format!("; the job cannot continue: {reason}");
        }
        line
    }

    /// The step at which the cause has failed; where it could not say that, as after SIGKILL, the one at which the others were.
    #[must_use]
    pub fn step(&self) -> Option<u64> {
        let others = self.others.iter().filter_map(|it| it.failure()?.step);
        self.own_step().or_else(|| others.max())
    }

    fn own_step(&self) -> Option<u64> {
        self.cause.failure()?.step
    }

    /// Who was lost, or did not run, before what the cause itself says.
    fn lost(&self) -> String {
        if let Some(stopped) = self.stopped_first() {
            let (were, them) = match stopped.len() {
                1 => ("was", "it"),
                _ => ("were", "them"),
            };
            let stopped = ranks(stopped);
            return format!(
                "{stopped} {were} stopped (SIGSTOP), and the launcher has ended {them}: "
            );
        }
        let machine = self.lost_machine.as_ref();
        let Some(lost) = self.cause.lost_rank() else {
            return machine.map_or(String::new(), |machine| {
                format!("{machine}, whose launcher hosts the store of the job, is lost: ")
            });
        };
        if let Some(left) = &self.left_early {
            let step = left.report.as_ref().and_then(|report| report.step);
            let step = step.map_or(String::new(), |step| format!(" at step {step}"));
            let waiting = self.cause.rank;
            return format!(
                "rank {lost} ended without an error{step}, while rank {waiting} waited for it: "
            );
        }
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
        format!("{who} {what}: ")
    }

    /// `line` of what the cause has said, without what to check where the launcher says better where to look.
    fn without_known_advice<'a>(&self, line: &'a str) -> &'a str {
        let known = match (self.stopped_first(), &self.lost_machine) {
            (Some(_), _) => line.split_once(ADVICE[0]),
            (None, Some(_)) => line.split_once(ADVICE[1]),
            (None, None) => None,
        };
        known.map_or(line, |(what, _)| what)
    }

    /// The ranks that were stopped, where the cause has waited in vain. It need not name any of them: without heartbeats it
    /// may have heard only of another one that waited.
    fn stopped_first(&self) -> Option<&[usize]> {
        let cause = &self.cause;
        let waited = blame(cause) == Blame::Victim || cause.exit == RankExit::Code(EXIT_STALLED);
        // Ranks of another machine that have given up may do so because of one that was stopped here.
        let names_machine = cause
            .failure()
            .is_some_and(|it| it.silent_machine.is_some());
        let is_elsewhere = self.left_early.is_some() || names_machine || self.lost_with_the_store();
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
        const NO_OUTPUT: &str = "where that was killed or the machine stopped, there is none";
        let of_victim = self.left_early.is_none() && self.logged == self.cause.rank;
        let lost = self.cause.exit == RankExit::Code(EXIT_PEER_LOST);
        let waited = self.cause.exit == RankExit::Code(EXIT_STALLED);
        match &self.lost_machine {
            Some(machine) if self.lost_with_the_store() => writeln!(
                f,
                "  look at the output of the launcher of {machine} first; {NO_OUTPUT}"
            ),
            Some(machine) if of_victim && (lost || waited) => writeln!(
                f,
                "  no rank of this machine failed by itself: look at {machine}, at the output of its launcher first, which \
                 names processes that were stopped; {NO_OUTPUT}, and `ps -eo pid,stat,args` marks each that still is by a T"
            ),
            None if of_victim && lost => writeln!(
                f,
                "  no rank of this machine failed by itself: look at the rank that was lost, or \
                 at the other machines' output"
            ),
            _ => Ok(()),
        }
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
            let named = naming_lost_device(line);
            let is_before_refusal = |said: &str| {
                let parts = said.split_once(REFUSED);
                parts.is_some_and(|(what, _)| line.starts_with(what))
            };
            let mut said = said.lines().map(str::trim);
            said.any(|said| {
                said == line || Some(said) == named.as_deref() || is_before_refusal(said)
            })
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
        writeln!(f, "{}", self.headline())?;
        let failure = self.cause.failure();
        if let Some((_, rest)) = failure.and_then(RankReport::headline_and_rest) {
            for line in rest {
                writeln!(f, "  {}", self.without_known_advice(line))?;
            }
        } else if self.cause.exit.is_success() && !self.cause.was_not_needed() {
            writeln!(
                f,
                "  code of its own may have ended it, or code that it calls (`exit(0)`). A rank has finished when its \
                 function in `launch::run` has returned, or `RankEnvironment::report_finished` was called; of this one \
                 neither is so, and what it was to write may be missing"
            )?;
        }
        if let Some((_, advice)) = self.unproved.as_ref().and_then(|it| it.split_once(". ")) {
            writeln!(f, "  {advice}")?;
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
            for line in how_others_ended(&self.cause, &self.others) {
                writeln!(f, "  {line}")?;
            }
        }
        if !self.restarts.is_empty() {
            writeln!(f, "before that, restarts")?;
            for restart in &self.restarts {
                writeln!(f, "  {restart}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
