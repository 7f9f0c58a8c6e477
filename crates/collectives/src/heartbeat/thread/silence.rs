//! What a heartbeat thread does about ranks that send no beats.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::waits::{ends_after, waited};
use super::{Beat, Followed, Heartbeat};
use crate::group::{Core, FlightEntry, ranks};
use crate::heartbeat::machine::SilentMachine;
use crate::heartbeat::status::LATE_BEATS;
use crate::runtime;
use crate::sync::lock;

/// A rank is warned of after this part of the timeout, and not before it has missed this many beats.
const WARN_AFTER: u32 = 3;

/// A rank that sends no beats.
#[derive(Debug, Clone)]
pub(super) struct Silent {
    pub(super) rank: usize,
    pub(super) member: usize,
    pub(super) silence: Duration,
    pub(super) beat: Beat,
}

impl Heartbeat {
    /// Warns of each rank whose last beat is old at `now`, and fails the group if one is too old. `now` is taken before
    /// the beats are read, so that a pause of this rank in between is not counted.
    pub(in crate::heartbeat) fn check_timeouts(&self, now: Instant) {
        let Some(limit) = self.options.timeout else {
            return;
        };
        let early = (limit / WARN_AFTER).max(WARN_AFTER * self.options.interval);
        for silent in self.newly_silent(now, early) {
            tracing::warn!(
                "rank {}: {}{}; {}",
                silent.rank,
                describe(silent.silence, &silent.beat),
                self.how_to_continue(&silent.beat),
                end_of_silence(silent.silence, limit, self.wait_left())
            );
            self.begin_silence(&silent, now);
        }
        let followed = lock(&self.state).followed.clone();
        let lost = self.silent(now, limit).into_iter().next();
        let core = followed.and_then(|followed| followed.core.upgrade());
        let (Some(lost), Some(core)) = (lost, core) else {
            return;
        };
        if core.mailbox.failure().is_none() {
            let mut detail = describe(lost.silence, &lost.beat);
            // The last beats of ranks that were stopped together were read one after the other.
            let about = limit.saturating_sub(2 * self.options.interval);
            let silent = self.silent_together(now, about);
            let (machine, text) = self.silent_too(lost.rank, &silent);
            detail += &text;
            core.heartbeat_timed_out(lost.rank, machine, detail);
        }
    }

    /// How long the group's longest wait may still take; `None` if nothing waits.
    fn wait_left(&self) -> Option<Duration> {
        let followed = lock(&self.state).followed.clone()?;
        let core = followed.core.upgrade()?;
        wait_left(&core.flight_record(), core.timeout())
    }

    /// When the first of the ranks whose beats are watched counts as lost, if none comes from it after `now`. Without a look at that
    /// moment, a lost rank would be found up to an interval later.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let limit = self.options.timeout?;
        let state = lock(&self.state);
        let followed = state.followed.as_ref()?;
        let watched = self.watched(&state);
        let peers = watched
            .iter()
            .filter(|member| followed.members.contains(member));
        let peers = peers.filter_map(|member| state.peers.get(*member));
        let beats = peers.filter(|peer| peer.found.beat().is_some_and(|beat| !beat.goodbye));
        beats
            .map(|peer| peer.moved + limit)
            .filter(|at| *at > now)
            .min()
    }

    /// How the rank of `beat` is continued, if it is on this machine and its process is stopped.
    pub(super) fn how_to_continue(&self, beat: &Beat) -> String {
        match self.stopped_here(beat) {
            Some(pid) => {
                format!("; its process is stopped: `kill -CONT {pid}` on this machine continues it")
            }
            None => String::new(),
        }
    }

    /// The process of the rank of `beat`, if it is on this machine and stopped.
    pub(super) fn stopped_here(&self, beat: &Beat) -> Option<u32> {
        let here = self.host.is_some() && beat.host == self.host;
        beat.pid.filter(|pid| here && runtime::is_stopped(*pid))
    }

    /// The number of `rank`'s machine if that is silent as a whole, and what is to be said of the ranks that are as `silent`
    /// as `rank`, its own machine first.
    fn silent_too(&self, rank: usize, silent: &[usize]) -> (Option<usize>, String) {
        let followed = lock(&self.state).followed.clone();
        let members = followed.map_or(Vec::new(), |followed| followed.members);
        let per_machine = self.options.ranks_per_machine;
        let is_silent = |rank| silent.contains(&rank);
        let machine = SilentMachine::of(rank, &members, per_machine, is_silent);
        let mut text = String::new();
        if let Some(machine) = &machine {
            text += &format!("; {}", machine.said());
        }
        let is_named = |other: &usize| {
            let here = machine.as_ref().map(|machine| &machine.ranks);
            *other == rank || here.is_some_and(|ranks| ranks.contains(other))
        };
        let others: Vec<usize> = silent.iter().copied().filter(|it| !is_named(it)).collect();
        if !others.is_empty() {
            text += &format!("; none of {} either", ranks(&others));
        }
        (machine.map(|machine| machine.number), text)
    }

    /// The ranks of the group that had been silent for `least` at `now`, in order.
    fn silent(&self, now: Instant, least: Duration) -> Vec<Silent> {
        let state = lock(&self.state);
        let Some(followed) = state.followed.as_ref().filter(|_| !state.stop) else {
            return Vec::new();
        };
        let watched = self.watched(&state);
        let members = followed.members.iter().enumerate();
        let others = members
            .filter(|(rank, member)| {
                *rank != followed.rank && watched.binary_search(member).is_ok()
            })
            .filter_map(|(rank, member)| {
                let peer = state.peers.get(*member)?;
                // A member without any beat may run without heartbeats. A restarted process has a random
                // `life`, so its beats count as new.
                let beat = peer.found.beat().filter(|beat| !beat.goodbye)?;
                let silence = now.saturating_duration_since(peer.moved);
                (silence >= least).then(|| Silent {
                    rank,
                    member: *member,
                    silence,
                    beat: beat.clone(),
                })
            });
        others.collect()
    }

    /// The ranks that had been silent for `least` at `now`; of those that are watched only since one of their machine is
    /// silent, all that have missed a few beats since.
    fn silent_together(&self, now: Instant, least: Duration) -> Vec<usize> {
        let suspects = lock(&self.state).suspects.clone();
        let late = least.min(LATE_BEATS * self.options.interval);
        let is_long = |silent: &Silent| {
            silent.silence >= least || suspects.binary_search(&silent.member).is_ok()
        };
        let silent = self.silent(now, late).into_iter().filter(is_long);
        silent.map(|silent| silent.rank).collect()
    }

    /// The ranks of the group that are silent, in order.
    pub(in crate::heartbeat) fn known_silent(&self) -> Vec<usize> {
        let now = lock(&self.state).answered;
        let silent = self.silent(now, LATE_BEATS * self.options.interval);
        silent.iter().map(|silent| silent.rank).collect()
    }

    /// The other ranks of the group on this machine whose processes are stopped, in order. One that was continued beats again
    /// soon; one that is still stopped may have beaten a moment ago.
    pub(in crate::heartbeat) fn known_stopped(&self) -> Vec<usize> {
        let state = lock(&self.state);
        let Some(followed) = state.followed.as_ref().filter(|_| self.host.is_some()) else {
            return Vec::new();
        };
        let is_stopped = |member: &usize| {
            let beat = state.peers.get(*member).and_then(|peer| peer.found.beat());
            let here = beat.filter(|beat| beat.host == self.host && !beat.goodbye);
            let process = here.and_then(|beat| beat.pid);
            *member != self.member && process.is_some_and(runtime::is_stopped)
        };
        let members = followed.members.iter().enumerate();
        let stopped = members.filter(|(_, member)| is_stopped(member));
        stopped.map(|(rank, _)| rank).collect()
    }

    /// Those of them that have sent a beat since they were last asked for, if it is this rank that says so: the first of
    /// the ranks that are alive.
    pub(super) fn newly_silent(&self, now: Instant, least: Duration) -> Vec<Silent> {
        let mut silent = self.silent(now, least);
        let mut state = lock(&self.state);
        let Some(Followed { rank, members, .. }) = state.followed.clone() else {
            return Vec::new();
        };
        let peer = |rank: usize| {
            members
                .get(rank)
                .and_then(|member| state.peers.get(*member))
        };
        let beats = |rank: usize| peer(rank).is_some_and(|peer| peer.found.beat().is_some());
        let is_silent = |rank: usize| silent.iter().any(|silent| silent.rank == rank);
        if (0..rank).any(|before| beats(before) && !is_silent(before)) {
            return Vec::new();
        }
        // Others warn of ranks that are watched for their machine only.
        let neighbours = self.neighbours(&state);
        silent.retain(|silent| neighbours.binary_search(&silent.member).is_ok());
        silent.retain(|silent| {
            let member = members.get(silent.rank);
            let peer = member.and_then(|member| state.peers.get_mut(*member));
            peer.is_some_and(|peer| !std::mem::replace(&mut peer.warned, true))
        });
        silent
    }

    /// Ends a collective's wait for a rank while the store is silent too: whether the rank beats is not known then, and the
    /// machine that serves the store may be stopped or cut off together with its ranks. As long as no collective waits,
    /// ranks need no store. Runs on its own thread, since the one that beats waits for the store; returns after
    /// [`Heartbeat::stop`].
    pub(in crate::heartbeat) fn watch_store(&self) {
        let Some(limit) = self.options.timeout else {
            return;
        };
        let interval = self.options.interval;
        // Of one look alone it is not known whether this process was stopped itself.
        let mut seen_before = false;
        let mut state = lock(&self.state);
        while !state.stop {
            let began = runtime::now();
            let silent_for = began.saturating_duration_since(state.answered);
            let is_late = silent_for >= limit;
            if is_late && seen_before {
                drop(state);
                self.end_long_wait(limit, silent_for);
                state = lock(&self.state);
            }
            let pause = limit.saturating_sub(silent_for).max(interval);
            let until = began + pause;
            (state, _) = self
                .changed
                .wait_while(&self.state, state, until, |it| !it.stop);
            let was_stopped = runtime::elapsed(began) > pause + interval;
            seen_before = is_late && !was_stopped;
        }
    }

    /// Fails the group if one of its collectives has waited for a rank for at least `limit`.
    pub(super) fn end_long_wait(&self, limit: Duration, silent_for: Duration) {
        let followed = lock(&self.state).followed.clone();
        let Some(core) = followed.and_then(|followed| followed.core.upgrade()) else {
            return;
        };
        if let Some(peer) = waited_for(&core, limit)
            && core.mailbox.failure().is_none()
        {
            let silence = silent_for.as_secs_f64();
            core.heartbeat_timed_out(
                peer,
                None,
                format!(
                    "the store has not answered for {silence:.1} s, so that no heartbeats arrive: check first whether the \
                     machine and the process that serve the store (without etcd, machine 0 and its launcher) are \
                     stopped, swapped out or cut off"
                ),
            );
        }
    }

    /// How long the store has not answered, if that is longer than a few beats.
    pub(in crate::heartbeat) fn store_silent_for(&self) -> Option<Duration> {
        let silent_for = runtime::elapsed(lock(&self.state).answered);
        (silent_for > WARN_AFTER * self.options.interval).then_some(silent_for)
    }

    /// The time since the last new beat of `member`; `None` if this one does not watch it, or the store does not answer:
    /// beats that are not read are no sign of silence.
    pub(in crate::heartbeat) fn silence_of(&self, member: usize) -> Option<Duration> {
        if self.store_silent_for().is_some() {
            return None;
        }
        let state = lock(&self.state);
        // First: of few of many members a beat has been read.
        let peer = state.peers.get(member)?;
        peer.found.beat()?;
        let is_watched = self.watched(&state).contains(&member);
        is_watched.then(|| state.silence_of(peer))
    }
}

/// The first rank that an operation of the group has waited for, for at least `limit`.
fn waited_for(core: &Arc<Core>, limit: Duration) -> Option<usize> {
    let mut records = core.flight_record().into_iter();
    let entry = records.find(|entry| entry.is_waiting() && entry.began >= limit)?;
    entry.waiting_for.first().copied()
}

/// How long the longest wait of a group with this `timeout` may still take.
fn wait_left(records: &[FlightEntry], timeout: Duration) -> Option<Duration> {
    Some(timeout.saturating_sub(waited(records)?))
}

/// What ends the wait for a rank that has been silent for `silence`: the `limit` of silence, or the timeout of the group, if that
/// has less than the rest of it `left`.
fn end_of_silence(silence: Duration, limit: Duration, left: Option<Duration>) -> String {
    let lost_in = limit.saturating_sub(silence);
    match left.filter(|left| *left < lost_in) {
        Some(left) => ends_after(left, "GroupOptions::timeout"),
        None => format!(
            "after {:.1} s without one (`HeartbeatOptions::timeout`) it counts as lost",
            limit.as_secs_f64()
        ),
    }
}

fn describe(silence: Duration, beat: &Beat) -> String {
    // A program that does not say at which step it is stays at 0.
    let step = (beat.step > 0).then(|| format!("at step {}", beat.step));
    let doing = beat.records.first();
    // Whom it waited for then says nothing of now.
    let doing = doing.map(|entry| format!("in or after {}", entry.without_waits()));
    let last: Vec<String> = step.into_iter().chain(doing).collect();
    let last = match last.is_empty() {
        true => "before its first step".to_owned(),
        false => last.join(", "),
    };
    format!(
        "no heartbeat for {:.1} s (the last one was {last}); check whether its process is \
         stopped (SIGSTOP, a debugger) or swapped out, and whether its machine still runs",
        silence.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heartbeat::thread::tests::barrier;

    #[test]
    fn the_warning_of_a_silent_rank_names_the_deadline_that_comes_first() {
        let seconds = Duration::from_secs;
        let said = |records: &[FlightEntry], timeout: u64| {
            let left = wait_left(records, seconds(timeout));
            end_of_silence(seconds(10), seconds(30), left)
        };
        let lost = "after 30.0 s without one (`HeartbeatOptions::timeout`) it counts as lost";
        assert_eq!(said(&[], 11), lost, "nothing waits");
        // For 12 s.
        let waits = [barrier(vec![1])];
        assert_eq!(said(&waits, 300), lost);
        assert_eq!(said(&waits, 32), lost);
        let end = "the wait ends after 11 s more (`GroupOptions::timeout`)";
        assert_eq!(said(&waits, 23), end);
    }

    #[test]
    fn of_a_rank_that_has_told_no_step_none_is_named() {
        let said = |step: u64, records| {
            let beat = Beat {
                step,
                records,
                ..Beat::default()
            };
            describe(Duration::from_secs(5), &beat)
        };
        let barrier = || vec![barrier(vec![0])];
        for (text, last) in [
            (
                said(0, Vec::new()),
                "(the last one was before its first step);",
            ),
            (
                said(0, barrier()),
                "(the last one was in or after barrier() ",
            ),
            (said(7, Vec::new()), "(the last one was at step 7);"),
            (
                said(7, barrier()),
                "(the last one was at step 7, in or after barrier() ",
            ),
        ] {
            assert!(text.contains(last), "{text}");
            assert!(!text.contains("waiting for"), "{text}");
        }
    }
}
