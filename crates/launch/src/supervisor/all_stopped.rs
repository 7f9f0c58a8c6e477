//! A machine whose ranks are stopped: all of them, or the rest after a failure.

use std::time::{Duration, Instant};

use everburn_collectives::heartbeat::hang_is_reported;
use everburn_collectives::rendezvous::have_met;

use super::stopped::{LongStopped, Process, all_are_stopped, some_are_stopped};
use super::{LOOK, Plan, Supervisor};
use crate::config::LaunchConfig;
use crate::event::LaunchEvent;

impl Supervisor<'_> {
    /// Says so where all ranks of this machine are stopped, and kills them once other machines have given them up.
    pub(super) fn end_if_all_are_stopped(&mut self) {
        let now = Instant::now();
        if now < self.long_stopped.next_look() {
            return;
        }
        let processes = Process::all(&self.running);
        let (long, found) = self.long_stopped.look(now, &processes);
        if processes.iter().flatten().any(|process| process.is_stopped) {
            self.stop_with_others();
        }
        self.say_which_continue(now, &processes);
        self.say_which_are_stopped(&found, &processes, now);
        let Some(long) = long.filter(|_| matches!(self.plan, Plan::Train)) else {
            return;
        };
        if self.long_stopped.is_to_be_said(long) {
            let text = all_are_stopped(&processes);
            tracing::warn!("{text}");
            let ranks = self.left();
            (self.tell)(&LaunchEvent::RanksStopped { ranks, text });
            let since = now.checked_sub(long).unwrap_or(now);
            self.said_stopped
                .note(0..processes.len(), &processes, since);
        }
        let Some(limit) = ends_where_all_are_stopped(self.config) else {
            return;
        };
        let beats_timeout = self.config.heartbeat_timeout.unwrap_or(limit);
        let others = match long {
            long if long >= limit => "the other machines have given them up",
            long if long >= beats_timeout && self.others_have_ended() => {
                "the other machines have ended the job without them"
            }
            _ => return,
        };
        self.gave_up = Some(format!(
            "all ranks of this machine have been stopped (SIGSTOP, a debugger) for {:.0} s, so {others}",
            long.as_secs_f64()
        ));
        self.kill_all();
    }

    /// Says which ranks of this machine were found stopped by `now` where no other rank does: it has no heartbeats yet, or none at
    /// all. A job that is elastic continues without them.
    fn say_which_are_stopped(
        &mut self,
        found: &[usize],
        processes: &[Option<Process>],
        now: Instant,
    ) {
        let trains = matches!(self.plan, Plan::Train) && self.config.elastic.is_none();
        if found.is_empty() || !trains || self.config.heartbeat_timeout.is_some() && self.have_met()
        {
            return;
        }
        let stopped = found
            .iter()
            .filter_map(|local_rank| processes.get(*local_rank).copied().flatten());
        let ids: Vec<u32> = stopped.map(|process| process.id).collect();
        let ranks = found.iter().map(|rank| self.config.global_rank(*rank));
        let ranks: Vec<usize> = ranks.collect();
        let text = some_are_stopped(&ranks, &ids);
        tracing::warn!("{text}");
        (self.tell)(&LaunchEvent::RanksStopped { ranks, text });
        let since = now.checked_sub(LongStopped::LONG).unwrap_or(now);
        self.said_stopped
            .note(found.iter().copied(), processes, since);
    }

    /// Whether all ranks of the job have joined, as far as the store says so.
    fn have_met(&self) -> bool {
        let Some(starter) = &self.starter else {
            return true;
        };
        let store = starter.job.reach_store(LOOK);
        let met = store.and_then(|store| have_met(&*store.shared));
        met.unwrap_or_else(|error| {
            tracing::debug!("whether all ranks have joined is not known: {error}");
            false
        })
    }

    /// Whether the launcher of machine 0 has gone with the store; where this one hosts it, whether ranks of other machines
    /// have reported there that they end.
    fn others_have_ended(&self) -> bool {
        let Some(starter) = &self.starter else {
            return false;
        };
        if self.hosted.is_none() {
            return starter.job.store.has_ended();
        }
        let first = self.config.global_rank(0);
        let own = first..first + self.config.ranks;
        let others = (0..self.config.world_size()).filter(|rank| !own.contains(rank));
        let store = starter.job.reach_store(LOOK);
        let reported = store.and_then(|store| hang_is_reported(&*store.shared, others));
        reported.unwrap_or_else(|error| {
            tracing::debug!("whether other machines have ended is not known: {error}");
            false
        })
    }

    /// Kills the ranks that are left after a failure where all their processes are stopped: none ends by itself, nor by
    /// SIGTERM.
    pub(super) fn end_if_the_rest_is_stopped(&mut self) {
        let looked = Process::all(&self.running);
        let mut left = looked.iter().flatten().peekable();
        let is_ending = matches!(self.plan, Plan::Grace(_) | Plan::Terminating(_));
        if is_ending && left.peek().is_some() && left.all(|process| process.is_stopped) {
            self.kill_all();
        }
    }
}

/// For how long all ranks of this machine may be stopped, if other machines give them up then.
fn ends_where_all_are_stopped(config: &LaunchConfig) -> Option<Duration> {
    let limit = config.step_limit;
    limit.filter(|_| config.elastic.is_none() && config.nodes > 1)
}
