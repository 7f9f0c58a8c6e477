//! The supervisor of an elastic job: restarts ranks that end, within the limits.

mod state;

use std::time::Instant;

use everburn_record::{proc, ranks};
use rustix::process::Signal;
use signal_hook::consts::SIGINT;

pub(super) use self::state::Elastic;
use self::state::{EXIT_USAGE, FailuresInARow, Next};
use super::machine_processes::StoreEvent;
use super::stopped::Process;
use super::{Plan, Supervisor};
use crate::error::{LaunchError, which_limit};
use crate::event::LaunchEvent;
use crate::exit::{EXIT_FAILS_AGAIN, EXIT_UNAVAILABLE, RankExit};
use crate::failure::{RankReport, ReportKind};
use crate::outcome::{EndedRank, Expulsion, loss};
use crate::rank_log::continue_log;

/// What is said of another machine without ranks in the job.
fn machine_lost(machine: usize, lost: &[usize], left: &[usize]) -> String {
    let were = if lost.len() == 1 { "was" } else { "were" };
    format!(
        "machine {machine} is lost: {} {were} its last in the job, which continues with {}; its launcher starts ranks again, if \
         that still runs: look at its output",
        ranks(lost),
        ranks(left)
    )
}

/// What is said of a process that could not be started again.
fn not_started(error: &LaunchError) -> String {
    let why = match error {
        LaunchError::Spawn { source, .. } => format!("{source}{}", which_limit(source)),
        error => error.to_string(),
    };
    format!("it could not be started: {why}")
}

/// Why a rank is not started again.
fn why_away(ended: &EndedRank, failures: &FailuresInARow) -> String {
    let why = match ended.exit {
        RankExit::Code(EXIT_USAGE) => "it would refuse its arguments again",
        RankExit::Code(EXIT_FAILS_AGAIN) => "the same would happen again",
        RankExit::Code(EXIT_UNAVAILABLE) => "it has waited as long as it may",
        _ => {
            let loops = failures.crash_loop();
            let loops = loops.map_or_else(String::new, |loops| format!(", and has {loops}"));
            return format!("it has no restarts left{loops}");
        }
    };
    why.to_owned()
}

impl Supervisor<'_> {
    /// The process of a rank has ended.
    pub(super) fn settle(&mut self, local_rank: usize, ended: EndedRank) {
        let goes_on = self.goes_on();
        let ends_well = self.ends_well(&ended) || ended.was_not_needed();
        let log = self.config.log_path(ended.rank);
        let Some(elastic) = &mut self.elastic else {
            return;
        };
        let slot = &elastic.slots[local_rank];
        let (incarnation, expelled) = (slot.incarnation, slot.expelled);
        elastic.store_client.note_end(local_rank, incarnation);
        let stopping = matches!(self.plan, Plan::Train | Plan::Stopping(_));
        if ends_well {
            self.ended.push(ended);
            if stopping {
                self.finish();
            }
            return;
        }
        if !goes_on {
            let after_the_end = elastic.story.finished;
            if after_the_end {
                tracing::warn!(
                    "after the job's end, {}",
                    loss(&ended, incarnation, expelled)
                );
            }
            if after_the_end && expelled.is_some() {
                // It had no part in the end.
                elastic.story.away.push(ended);
                return;
            }
            // One that a request to stop has ended, before it could obey, takes no time from the others.
            let by_request = self.was_interrupted() && ended.ended_by_launcher;
            self.ended.push(ended);
            if stopping && !after_the_end && !by_request {
                self.plan = Plan::Grace(Instant::now() + self.config.grace);
            }
            return;
        }
        match elastic.next_restart(local_rank, ended) {
            Ok(restart) => {
                let (loss, when) = (restart.loss(), restart.when());
                tracing::warn!("{loss}; its log: {}; {when}", log.display());
                (self.tell)(&LaunchEvent::Restart {
                    rank: restart.ended.rank,
                    text: restart.to_string(),
                });
            }
            Err(ended) => {
                let why = why_away(&ended, &elastic.slots[local_rank].failures);
                let loss = loss(&ended, incarnation, expelled);
                if ended.exit == RankExit::Code(EXIT_USAGE) && self.config.nodes > 1 {
                    let machine = self.config.node_rank;
                    elastic
                        .store_client
                        .note_refusal(format!("machine {machine}: {loss}"));
                }
                let rank = ended.rank;
                elastic.story.away.push(*ended);
                match self.hosted.is_none() && !self.has_ranks() {
                    // The launcher ends, and its last words are the same.
                    true => tracing::debug!("{loss}"),
                    false => tracing::warn!(
                        "{loss}; its log: {}; it is not started again: {why}",
                        log.display()
                    ),
                }
                (self.tell)(&LaunchEvent::Lost {
                    rank,
                    text: format!("{loss}; it is not started again: {why}"),
                });
                self.give_up_if_hopeless();
            }
        }
    }

    /// Says that a rank of another machine was refused, where the job continues.
    fn say_who_was_refused(&self, text: &str) {
        let own = format!("machine {}: ", self.config.node_rank);
        if !text.starts_with(&own) && self.goes_on() {
            let text = format!(
                "{text}; the job continues without it until it is started with the same settings"
            );
            tracing::warn!("{text}");
            (self.tell)(&LaunchEvent::RefusedElsewhere { text });
        }
    }

    /// Whether ranks that end are started again.
    pub(super) fn goes_on(&self) -> bool {
        let story = self.elastic.as_ref().map(|elastic| &elastic.story);
        matches!(self.plan, Plan::Train)
            && !self.was_interrupted()
            && story
                .is_some_and(|it| !it.finished && it.given_up.is_none() && it.store_lost.is_none())
    }

    pub(super) fn take(&mut self, event: StoreEvent) -> Result<(), LaunchError> {
        match event {
            StoreEvent::Numbered {
                local_rank,
                incarnation,
            } => return self.begin(local_rank, incarnation),
            StoreEvent::Expelled {
                local_rank,
                incarnation,
            } => self.expel(local_rank, incarnation),
            StoreEvent::MachineLost {
                machine,
                ranks: lost,
                left,
            } => {
                if machine != self.config.node_rank && self.goes_on() {
                    let text = machine_lost(machine, &lost, &left);
                    tracing::warn!("{text}");
                    (self.tell)(&LaunchEvent::MachineLost { machine, text });
                }
            }
            StoreEvent::Finished => self.finish(),
            StoreEvent::GivenUp(reason) => self.give_up(reason),
            StoreEvent::StopRequested(by) => {
                if !self.was_interrupted() {
                    self.stop(SIGINT, &by);
                }
            }
            StoreEvent::Refused(text) => self.say_who_was_refused(&text),
            StoreEvent::LeaseTaken(other) => {
                return Err(LaunchError::NodeRankTaken {
                    node_rank: self.config.node_rank,
                    other,
                });
            }
            StoreEvent::Awaited { text, left } => {
                tracing::warn!("{text}");
                (self.tell)(&LaunchEvent::StoreAwaited { text, left });
            }
            StoreEvent::Lost(reason) => return self.lose_store(reason),
        }
        Ok(())
    }

    /// Starts the process that now has a number.
    fn begin(&mut self, local_rank: usize, incarnation: u64) -> Result<(), LaunchError> {
        let rank = self.config.global_rank(local_rank);
        let Some(elastic) = &mut self.elastic else {
            return Ok(());
        };
        let slot = &mut elastic.slots[local_rank];
        if !matches!(slot.next, Next::Number) {
            return Ok(());
        }
        slot.next = Next::Nothing;
        slot.failures.begin(Instant::now());
        slot.incarnation = incarnation;
        slot.expelled = None;
        let first = slot.log.take();
        let is_first = first.is_some();
        let log = match first {
            Some(log) => Ok(log),
            None => continue_log(self.config, rank, incarnation).map_err(|source| {
                let path = self.config.log_path(rank);
                LaunchError::LogDir { path, source }
            }),
        };
        let started = log.and_then(|log| self.start_rank(local_rank, Some(incarnation), log));
        match started {
            Err(error) if !is_first => {
                // What the system refuses for a moment (a full disk, too many processes) it may give to the next restart.
                let report = RankReport::new(rank, ReportKind::Own, not_started(&error));
                let ended = EndedRank {
                    unix_time_ms: report.unix_time_ms,
                    report: Some(report),
                    ..EndedRank::new(rank, RankExit::Code(1))
                };
                self.settle(local_rank, ended);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The others continue without a process that lives: only SIGKILL is sure to end it, as it may be stopped.
    fn expel(&mut self, local_rank: usize, incarnation: u64) {
        let (Some(elastic), Some(rank)) = (&mut self.elastic, &mut self.running[local_rank]) else {
            return;
        };
        let slot = &mut elastic.slots[local_rank];
        if slot.incarnation == incarnation {
            let found = match proc::is_stopped(rank.process_id()) {
                true => Expulsion::Stopped,
                false => Expulsion::Silent,
            };
            slot.expelled.get_or_insert(found);
            rank.signal(Signal::KILL);
        }
    }

    /// Ends ranks that are stopped, so that the others continue without them at once.
    pub(super) fn end_stopped_ranks(&mut self) {
        let goes_on = self.goes_on();
        let Some(elastic) = &mut self.elastic else {
            return;
        };
        let now = Instant::now();
        let due = elastic.stopped.as_mut().filter(|ranks| ranks.is_due(now));
        let Some(ranks) = due else { return };
        let stopped = ranks.look(now, &Process::all(&self.running));
        for local_rank in stopped.into_iter().filter(|_| goes_on) {
            let incarnation = elastic.slots[local_rank].incarnation;
            if let Some(rank) = &mut self.running[local_rank]
                && elastic.slots[local_rank].expelled.is_none()
            {
                tracing::debug!("process {incarnation} of local rank {local_rank} is stopped");
                elastic.slots[local_rank].expelled = Some(Expulsion::Stopped);
                rank.signal(Signal::KILL);
            }
        }
    }

    /// A rank has ended well, or the store says so: the others have as long as after Ctrl-C. Whether the job has
    /// succeeded is not decided here.
    fn finish(&mut self) {
        let interrupted = self.was_interrupted();
        let Some(elastic) = &mut self.elastic else {
            return;
        };
        if elastic.story.finished || elastic.story.given_up.is_some() {
            return;
        }
        elastic.store_client.finish();
        elastic.cancel();
        elastic.story.finished = !interrupted;
        if let Plan::Train = self.plan {
            let now = Instant::now();
            self.writing.begin(now, &self.processes());
            self.plan = Plan::Stopping(now + self.config.stop_patience);
        }
    }

    fn give_up_if_hopeless(&mut self) {
        let elastic = self.elastic.as_ref();
        if let Some(reason) = elastic.and_then(|it| it.hopeless(self.config)) {
            self.give_up(reason);
        }
    }

    /// Ends a job that waits for ranks which a request to stop keeps from starting.
    pub(super) fn give_up_if_stopped_while_waiting(&mut self) {
        let elastic = self.elastic.as_ref();
        if let Some(too_few) = elastic.and_then(|it| it.too_few(self.config)) {
            self.give_up(format!(
                "{too_few}: no rank is started after a request to stop"
            ));
        }
    }

    fn give_up(&mut self, reason: String) {
        let Some(elastic) = &mut self.elastic else {
            return;
        };
        if elastic.story.finished || elastic.story.given_up.is_some() {
            return;
        }
        tracing::warn!("the job is given up: {reason}");
        elastic.store_client.give_up(&reason);
        elastic.story.given_up = Some(reason);
        elastic.cancel();
        if let Plan::Train = self.plan {
            self.plan = Plan::Grace(Instant::now() + self.config.grace);
        }
    }

    /// Ranks cannot be numbered any more, so none is started. Those that run notice by themselves.
    fn lose_store(&mut self, reason: String) -> Result<(), LaunchError> {
        let Some(elastic) = &mut self.elastic else {
            return Ok(());
        };
        let nobody_started = elastic.slots.iter().all(|slot| slot.incarnation == 0);
        if nobody_started && elastic.will_start() {
            let in_etcd = self.config.store.is_some();
            return Err(LaunchError::StoreUnreachable { reason, in_etcd });
        }
        if !elastic.story.finished {
            tracing::warn!("ranks are not started again from now on: {reason}");
        }
        elastic.story.store_lost = Some(reason);
        elastic.cancel();
        Ok(())
    }
}
