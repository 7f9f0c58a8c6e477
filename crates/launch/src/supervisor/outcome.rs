//! How a job has ended, once no rank runs.

use std::time::Instant;

use everburn_collectives::store::TcpStoreServer;
use everburn_record::proc;
use signal_hook::consts::{SIGABRT, SIGINT, SIGKILL};

use super::Supervisor;
use super::elastic::Elastic;
use super::story::Story;
use crate::cause::{Blame, blame, root_cause};
use crate::error::LaunchError;
use crate::exit::{EXIT_STALLED, EXIT_UNAVAILABLE, RankExit};
use crate::failure::{RankReport, ReportKind};
use crate::job_failure::{JobFailure, REFUSED};
use crate::lost_machine::LostMachine;
use crate::outcome::{EndedRank, Outcome};
use crate::output::last_lines;

/// How many lines of the log of the rank to blame are shown.
const LOG_TAIL_LINES: usize = 15;

impl Supervisor<'_> {
    /// # Errors
    /// When no rank was started: [`LaunchError::FinishedBefore`] because the job is said to have finished,
    /// [`LaunchError::NothingRan`] for another reason.
    pub(crate) fn outcome(mut self, memory_kills_before: u64) -> Result<Outcome, LaunchError> {
        let story = self.elastic.take().map(Elastic::end);
        let mut failed = std::mem::take(&mut self.ended);
        // Ranks that were stopped have obeyed, and the job has not finished.
        let stopped = failed.iter().any(EndedRank::was_stopped).then_some(SIGINT);
        let finished: Vec<EndedRank> = failed
            .iter()
            .filter(|rank| rank.has_finished())
            .cloned()
            .collect();
        let ends_well = |rank: &EndedRank| self.ends_well(rank);
        let mut unproved = None;
        match story.as_ref().filter(|_| !self.was_interrupted()) {
            None => failed.retain(|rank| !ends_well(rank)),
            Some(story) if story.finished => {
                unproved = story.judge(&mut failed, self.config.stop_patience);
                if unproved.is_some() && failed.is_empty() {
                    return Err(LaunchError::FinishedBefore);
                }
            }
            Some(story) if story.blames(&mut failed, ends_well) => {}
            Some(story) => {
                let reason = story.reason().unwrap_or_default();
                return Err(LaunchError::NothingRan { reason });
            }
        }
        let Some(position) = root_cause(&failed) else {
            return Ok(match self.interrupted_by().or(stopped) {
                Some(signal) => Outcome::Interrupted { signal },
                None => Outcome::Succeeded,
            });
        };
        // One that waited in vain for another says who has not stopped.
        let stalled = failed[position].exit == RankExit::Code(EXIT_STALLED);
        if let Some(signal) = self.interrupted_by()
            && blame(&failed[position]) != Blame::Own
            && !stalled
        {
            return Ok(Outcome::Interrupted { signal });
        }
        let cause = failed.remove(position);
        let mut failure = self.failure(cause, failed, story);
        failure.unproved = unproved;
        failure.left_early = failure
            .cause
            .lost_rank()
            .and_then(|lost| finished.into_iter().find(|ended| ended.rank == lost));
        failure.out_of_memory = failure.cause.exit == RankExit::Signal(SIGKILL)
            && proc::memory_kills().unwrap_or(0) > memory_kills_before;
        Ok(Outcome::Failed(Box::new(failure)))
    }

    /// A rank that could not write its report, as on a full disk or without memory, has printed why it ends all the same.
    fn add_what_was_printed(&self, cause: &mut EndedRank) {
        if cause.report.is_some() || blame(cause) != Blame::Own {
            return;
        }
        let said = match cause.exit {
            RankExit::Code(code) if code != 0 => self.errors.last_of(cause.rank),
            RankExit::Signal(SIGABRT) => {
                let log = self.config.log_path(cause.rank);
                failed_allocation(&last_lines(&log, LOG_TAIL_LINES))
            }
            _ => None,
        };
        cause.report = said.map(|said| RankReport::new(cause.rank, ReportKind::Own, said));
    }

    /// The store may have refused ranks that did not join, and the launcher alone has seen that.
    fn add_who_was_refused(&self, cause: &mut EndedRank) {
        let refused = self.hosted.and_then(TcpStoreServer::refused);
        if let (Some(refused), Some(report)) = (refused, &mut cause.report) {
            report.message = with_refusal(&report.message, &refused);
        }
    }

    /// The failure of a job because of `cause`, after which `others` have ended badly, too.
    fn failure(
        &mut self,
        mut cause: EndedRank,
        others: Vec<EndedRank>,
        story: Option<Story>,
    ) -> JobFailure {
        let (mut restarts, mut given_up) = (Vec::new(), self.gave_up.take());
        let mut exit_code = given_up.as_ref().map(|_| EXIT_STALLED);
        let mut lost_machine = LostMachine::of(self.config, &cause, &others);
        if story.is_none() && cause.exit == RankExit::Code(EXIT_UNAVAILABLE) {
            lost_machine = lost_machine.or_else(|| LostMachine::with_the_store(self.config));
        }
        if let Some(story) = story {
            given_up.clone_from(&story.given_up);
            // Else a launcher that has ended in good order has taken its store with it.
            let of_store =
                story.store_lost.is_some() && !story.finished && story.given_up.is_none();
            let was_to_start_again = of_store && story.was_to_start_again(&cause);
            if was_to_start_again {
                given_up = story.reason();
                exit_code = Some(EXIT_UNAVAILABLE);
            }
            if was_to_start_again || of_store && blame(&cause) == Blame::Victim {
                lost_machine = lost_machine.or_else(|| LostMachine::with_the_store(self.config));
            }
            cause = story.first_error_of(cause);
            restarts = story.restarts;
        }
        self.add_what_was_printed(&mut cause);
        self.add_who_was_refused(&mut cause);
        let lost = cause.lost_rank();
        let has_log = |rank: &usize| {
            let log = std::fs::metadata(self.config.log_path(*rank));
            log.is_ok_and(|log| log.len() > 0)
        };
        // Where a dashboard had the terminal, the report of a stall is in the log of who waited, and nowhere else.
        let is_report = cause.exit == RankExit::Code(EXIT_STALLED);
        let lost = lost.filter(|lost| has_log(lost) && !(self.dashboard && is_report));
        let logged = lost.unwrap_or(cause.rank);
        let log = self.config.log_path(logged);
        let own_pause = self.own_pause.before_failure(Instant::now());
        let was_shown = is_report && logged == cause.rank && !self.dashboard;
        // The end of what it has is old.
        let is_old = self.errors.log_is_incomplete(logged);
        JobFailure {
            log_tail: (!was_shown && !is_old).then(|| last_lines(&log, LOG_TAIL_LINES)),
            logged,
            lost_machine,
            stopped: std::mem::take(&mut self.stopped_ranks),
            own_pause: own_pause.filter(|_| self.config.nodes > 1),
            others,
            restarts,
            given_up,
            exit_code: exit_code.unwrap_or_else(|| cause.exit.exit_code()),
            ..JobFailure::new(cause, log)
        }
    }
}

/// That a process has got no memory, as the last lines of its log say: Rust prints this and aborts, without a panic.
fn failed_allocation(tail: &[String]) -> Option<String> {
    let begin = "memory allocation of ";
    let line = tail.iter().rev().find(|line| line.starts_with(begin))?;
    let line = line.trim_end();
    Some(format!(
        "{line}: it had no memory left (`free -m`, `ulimit -v`): try fewer ranks or a smaller batch"
    ))
}

/// The error of a rank that has waited for others in vain, with who was `refused`; another error as it is. What to check is
/// said once, by the error.
fn with_refusal(message: &str, refused: &str) -> String {
    let refused = match refused.split_once("; check that ") {
        Some((who, _)) => who,
        None => refused,
    };
    let ways = [
        (" ranks joined within ", "; check that "),
        (" did not form within ", "; look at their logs, "),
    ];
    let said = ways.iter().find_map(|(waited, advice)| {
        let at = message.contains(waited).then(|| message.find(advice))??;
        Some(message.split_at(at))
    });
    match said {
        Some((what, advice)) => format!("{what}{REFUSED}{refused}{advice}"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use everburn_collectives::elastic::ElasticError;
    use everburn_collectives::rendezvous::MissingRanks;

    use super::*;

    #[test]
    fn who_was_refused_is_named_where_ranks_are_missing() {
        let missing = MissingRanks {
            missing: vec![1],
            world_size: 2,
            ranks_per_machine: Some(1),
            waited: Duration::from_secs(5),
        };
        let refused = "127.0.0.1: its job token does not match";
        let text = with_refusal(&missing.to_string(), refused);
        let part = format!(
            "missing: rank 1 of machine 1; the store has refused {refused}; check that it "
        );
        assert!(text.contains(&part), "{text}");
        let advised =
            format!("{refused}; check that EVERBURN_JOB_TOKEN is the same on every machine");
        assert_eq!(with_refusal(&missing.to_string(), &advised), text);
        let too_few = ElasticError::TooFew {
            generation: 1,
            joined: 1,
            min: 2,
            missing: Vec::new(),
            waited: Duration::from_secs(60),
        };
        let text = with_refusal(&too_few.to_string(), refused);
        let part = format!("; the store has refused {refused}; look at their logs, and check");
        assert!(text.contains(&part), "{text}");
        let other = "loss is NaN; check that the data are whole";
        assert_eq!(with_refusal(other, refused), other);
    }

    #[test]
    fn a_failed_allocation_is_found_in_the_log_of_who_gave_up() {
        let of = |tail: &[&str]| {
            failed_allocation(&tail.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let line = "memory allocation of 903168 bytes failed";
        let found = of(&["step 9", line, "note: run with `RUST_BACKTRACE=1`"]).unwrap();
        assert!(
            found.starts_with(&format!("{line}: it had no memory left")),
            "{found}"
        );
        assert_eq!(of(&["step 9", "free(): invalid pointer"]), None);
    }
}
