//! The supervisor of an elastic job: restarts ranks that end, within the limits.

use std::fs::File;
use std::time::Instant;

use rustix::process::Signal;

use super::machine_processes::StoreEvent;
use super::stopped::{Process, StoppedRanks};
use super::store_client::StoreClient;
use super::story::Story;
use super::{Plan, Supervisor};
use crate::config::{ElasticLaunch, LaunchConfig};
use crate::error::LaunchError;
use crate::event::LaunchEvent;
use crate::exit::{EXIT_FAILS_AGAIN, RankExit};
use crate::outcome::{EndedRank, Restart, loss};
use crate::ranks::continue_log;

/// The exit code for wrong arguments. A restarted rank would fail again.
const EXIT_USAGE: i32 = 2;

/// The next action for a rank that is not running.
enum Next {
    /// Nothing: it runs, or it stays away.
    Nothing,
    /// It is started once its process has a number.
    Number,
    /// It is started after this.
    Pause(Instant),
}

/// A rank of this machine, over all its processes.
struct RankSlot {
    /// For its first process.
    log: Option<File>,
    incarnation: u64,
    restarts: usize,
    next: Next,
    /// It will not be started again.
    away: bool,
    /// The others continued without the current process.
    expelled: bool,
}

/// The state of an elastic job on this machine.
pub(super) struct Elastic {
    limits: ElasticLaunch,
    store_client: StoreClient,
    /// `None`: ranks may be stopped for as long as the others wait for them.
    stopped: Option<StoppedRanks>,
    /// By local rank.
    slots: Vec<RankSlot>,
    /// In the order in which they were decided.
    restarts: Vec<Restart>,
    /// The last ends of ranks that stay away.
    away: Vec<EndedRank>,
    finished: bool,
    given_up: Option<String>,
    store_lost: bool,
}

impl Elastic {
    /// Requests a number for each rank; ranks start as their numbers come.
    pub(super) fn new(limits: ElasticLaunch, store_client: StoreClient, logs: Vec<File>) -> Self {
        let slot = |(local_rank, log)| {
            store_client.number(local_rank);
            RankSlot {
                log: Some(log),
                incarnation: 0,
                restarts: 0,
                next: Next::Number,
                away: false,
                expelled: false,
            }
        };
        let slots: Vec<RankSlot> = logs.into_iter().enumerate().map(slot).collect();
        let limit = limits.stopped_limit;
        Self {
            limits,
            stopped: limit.map(|limit| StoppedRanks::new(limit, slots.len())),
            slots,
            store_client,
            restarts: Vec::new(),
            away: Vec::new(),
            finished: false,
            given_up: None,
            store_lost: false,
        }
    }

    /// Whether some rank is yet to be started.
    pub(super) fn will_start(&self) -> bool {
        let waits = |slot: &RankSlot| !matches!(slot.next, Next::Nothing);
        self.slots.iter().any(waits)
    }

    /// When the next pause ends.
    pub(super) fn next_start(&self) -> Option<Instant> {
        let pauses = self.slots.iter().filter_map(|slot| match slot.next {
            Next::Pause(until) => Some(until),
            _ => None,
        });
        pauses.min()
    }

    /// When the processes are looked at next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let looks = !self.finished && self.given_up.is_none();
        self.stopped
            .as_ref()
            .filter(|_| looks)
            .map(StoppedRanks::next_look)
    }

    /// Asks for numbers for those whose pause has ended.
    pub(super) fn start_those_due(&mut self) {
        let now = Instant::now();
        for (local_rank, slot) in self.slots.iter_mut().enumerate() {
            if matches!(slot.next, Next::Pause(until) if until <= now) {
                slot.next = Next::Number;
                self.store_client.number(local_rank);
            }
        }
    }

    /// Starts nobody any more.
    pub(super) fn cancel(&mut self) {
        for slot in &mut self.slots {
            slot.away |= !matches!(slot.next, Next::Nothing);
            slot.next = Next::Nothing;
        }
    }

    /// All processes that have ended and are not among the supervisor's.
    pub(super) fn ends(&self) -> impl Iterator<Item = &EndedRank> {
        let restarted = self.restarts.iter().map(|restart| &restart.ended);
        restarted.chain(&self.away)
    }

    /// That too few ranks can ever be there, if that is so.
    fn too_few(&self, config: &LaunchConfig) -> Option<String> {
        let here = self.slots.iter().filter(|slot| !slot.away).count();
        let elsewhere = config.world_size() - self.slots.len();
        let (possible, min) = (here + elsewhere, self.limits.min);
        let plural = if possible == 1 { "" } else { "s" };
        (possible < min).then(|| {
            format!("at most {possible} rank{plural} can be there, and the job needs {min}")
        })
    }

    /// The same, with the ranks that are not started again.
    fn hopeless(&self, config: &LaunchConfig) -> Option<String> {
        self.too_few(config).map(|too_few| {
            let mut away: Vec<usize> = self.away.iter().map(|ended| ended.rank).collect();
            away.sort_unstable();
            let away: Vec<String> = away.iter().map(usize::to_string).collect();
            let again = match &*away {
                [one] => format!("rank {one} is not started again"),
                several => format!("ranks {} are not started again", several.join(", ")),
            };
            format!("{too_few}: {again}")
        })
    }

    /// The end of the process of a rank: the restart that follows, if one does.
    fn next_restart(&mut self, local_rank: usize, ended: EndedRank) -> Result<&Restart, EndedRank> {
        let slot = &mut self.slots[local_rank];
        let fails_again = [EXIT_USAGE, EXIT_FAILS_AGAIN].map(RankExit::Code);
        if fails_again.contains(&ended.exit) || slot.restarts >= self.limits.max_restarts {
            slot.away = true;
            return Err(ended);
        }
        slot.restarts += 1;
        let after = self.limits.pause_before(slot.restarts);
        slot.next = Next::Pause(Instant::now() + after);
        self.restarts.push(Restart {
            ended,
            incarnation: slot.incarnation,
            expelled: slot.expelled,
            number: slot.restarts,
            of: self.limits.max_restarts,
            after,
        });
        Ok(self.restarts.last().expect("it was pushed just now"))
    }
}

impl Elastic {
    pub(super) fn end(self) -> Story {
        self.store_client.close();
        Story {
            finished: self.finished,
            given_up: self.given_up,
            restarts: self.restarts,
            away: self.away,
        }
    }
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
            let after_the_end = elastic.finished;
            if after_the_end {
                tracing::warn!(
                    "after the job's end, {}",
                    loss(&ended, incarnation, expelled)
                );
            }
            if after_the_end && expelled {
                // It had no part in the end.
                elastic.away.push(ended);
                return;
            }
            // One that a request to stop has ended, before it could obey, takes no time from the others.
            let by_request = self.interrupted_by.is_some() && ended.ended_by_launcher;
            self.ended.push(ended);
            if stopping && !after_the_end && !by_request {
                self.plan = Plan::Grace(Instant::now() + self.config.grace);
            }
            return;
        }
        match elastic.next_restart(local_rank, ended) {
            Ok(restart) => {
                let (loss, pause) = (restart.loss(), restart.after.as_secs_f64());
                let (number, of) = (restart.number, restart.of);
                let log = log.display();
                tracing::warn!("{loss}; its log: {log}; restart {number} of {of} in {pause:.1} s");
                (self.tell)(&LaunchEvent::Restart {
                    rank: restart.ended.rank,
                    text: restart.to_string(),
                });
            }
            Err(ended) => {
                let why = match ended.exit {
                    RankExit::Code(EXIT_USAGE) => "it would refuse its arguments again",
                    RankExit::Code(EXIT_FAILS_AGAIN) => "the same would happen again",
                    _ => "it has no restarts left",
                };
                let loss = loss(&ended, incarnation, expelled);
                tracing::warn!(
                    "{loss}; its log: {}; it is not started again: {why}",
                    log.display()
                );
                (self.tell)(&LaunchEvent::Lost {
                    rank: ended.rank,
                    text: format!("{loss}; it is not started again: {why}"),
                });
                elastic.away.push(ended);
                self.give_up_if_hopeless();
            }
        }
    }

    /// Whether ranks that end are started again.
    pub(super) fn goes_on(&self) -> bool {
        let elastic = self.elastic.as_ref();
        matches!(self.plan, Plan::Train)
            && self.interrupted_by.is_none()
            && elastic.is_some_and(|it| !it.finished && it.given_up.is_none() && !it.store_lost)
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
            StoreEvent::Finished => self.finish(),
            StoreEvent::GivenUp(reason) => self.give_up(reason),
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
        slot.incarnation = incarnation;
        slot.expelled = false;
        let first = slot.log.take();
        let is_first = first.is_some();
        let log = match first {
            Some(log) => Ok(log),
            None => continue_log(self.config, rank, incarnation)
                .map_err(|source| LaunchError::Spawn { rank, source }),
        };
        let started = log.and_then(|log| self.start_rank(local_rank, Some(incarnation), log));
        match started {
            Err(error) if !is_first => {
                tracing::warn!("{error}; rank {rank} is not started again");
                if let Some(elastic) = &mut self.elastic {
                    elastic.store_client.note_end(local_rank, incarnation);
                    elastic.slots[local_rank].away = true;
                    let last = elastic.restarts.iter().rev().map(|restart| &restart.ended);
                    let last = last.filter(|ended| ended.rank == rank).take(1).cloned();
                    elastic.away.extend(last);
                }
                self.give_up_if_hopeless();
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The others have gone on without a process that lives, stopped perhaps: only SIGKILL is sure to end it.
    fn expel(&mut self, local_rank: usize, incarnation: u64) {
        let (Some(elastic), Some(rank)) = (&mut self.elastic, &mut self.running[local_rank]) else {
            return;
        };
        let slot = &mut elastic.slots[local_rank];
        if slot.incarnation == incarnation {
            slot.expelled = true;
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
                && !elastic.slots[local_rank].expelled
            {
                tracing::debug!("process {incarnation} of local rank {local_rank} is stopped");
                elastic.slots[local_rank].expelled = true;
                rank.signal(Signal::KILL);
            }
        }
    }

    /// A rank has ended well, or the store says so: the others have as long as after Ctrl-C. Whether the job has
    /// succeeded is not decided here.
    fn finish(&mut self) {
        let interrupted = self.interrupted_by.is_some();
        let Some(elastic) = &mut self.elastic else {
            return;
        };
        if elastic.finished || elastic.given_up.is_some() {
            return;
        }
        elastic.store_client.finish();
        elastic.cancel();
        elastic.finished = !interrupted;
        if let Plan::Train = self.plan {
            self.plan = Plan::Stopping(Instant::now() + self.config.stop_patience);
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
        if elastic.finished || elastic.given_up.is_some() {
            return;
        }
        tracing::warn!("the job is given up: {reason}");
        (self.tell)(&LaunchEvent::GivenUp {
            text: format!("the job is given up: {reason}"),
        });
        elastic.store_client.give_up(&reason);
        elastic.given_up = Some(reason);
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
            return Err(LaunchError::StoreUnreachable { reason });
        }
        if !elastic.finished {
            tracing::warn!("ranks are not started again from now on: {reason}");
        }
        elastic.store_lost = true;
        elastic.cancel();
        Ok(())
    }
}
