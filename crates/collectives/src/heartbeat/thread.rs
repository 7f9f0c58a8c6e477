//! The heartbeat thread: publishes this rank's beat and checks those of the others.

mod pauses;
mod silence;
mod stalls;
mod waits;
mod watched;

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use everburn_record::plain;

use self::pauses::Pause;
pub(super) use self::pauses::did_not_run;
use self::stalls::Stall;
pub(super) use self::watched::{WATCH_ALL, watchers_of};
use super::HeartbeatOptions;
use super::beat::{Beat, BeatEntry, MAX_NOTE, beat_key, newest, read_all, read_many};
use super::ended_stall::EndedStall;
use crate::group::Core;
use crate::runtime::{self, Condition};
use crate::store::{SharedStore, StoreError, entry, random_u64};
use crate::sync::lock;
use crate::wait_notice::WaitNotice;

/// The most beats per request: a few hundred kilobytes.
const BATCH: usize = 256;

/// The most members without a beat that are polled one by one per interval.
const NEWCOMERS: usize = 16;

/// Up to this many beats are read one by one, in one request.
const FEW: usize = 16;

/// After this many slow polls in a row a warning is logged: as long as polls take longer than an interval,
/// heartbeat timeouts are not detected.
const SLOW_POLLS: u32 = 5;

/// The monitored group.
#[derive(Clone)]
pub(super) struct Followed {
    /// Weak: dropping the last handle of a group leaves it.
    pub(super) core: Weak<Core>,
    pub(super) generation: u64,
    pub(super) rank: usize,
    /// The member of each rank.
    pub(super) members: Vec<usize>,
}

#[cfg(test)]
impl Followed {
    /// The group of members 0 to `size` - 1, as `rank` follows it; `group` is its handle, if it has one.
    pub(super) fn of(group: Option<&crate::group::ProcessGroup>, rank: usize, size: usize) -> Self {
        Self {
            core: group.map_or_else(Weak::new, |group| Arc::downgrade(group.core())),
            generation: 0,
            rank,
            members: (0..size).collect(),
        }
    }
}

/// The last known state of another member.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) found: BeatEntry,
    /// When its counter last changed.
    pub(super) moved: Instant,
    /// Its silence has been warned of.
    warned: bool,
}

pub(super) struct State {
    stop: bool,
    /// Publish the next beat at once.
    due: bool,
    goodbye: bool,
    pub(super) ended: bool,
    number: u64,
    pub(super) followed: Option<Followed>,
    /// The program asks for the states of all members.
    pub(super) reads_all: bool,
    /// The members that are read because one of their machine is silent, in order.
    suspects: Vec<usize>,
    /// By member.
    pub(super) peers: Vec<Peer>,
    /// When the store last answered: beats that came later are not known of.
    pub(super) answered: Instant,
    /// The first member of the next poll for new beats.
    next_newcomer: usize,
    /// While the thread sleeps, until when.
    sleeps_until: Option<Instant>,
    /// The last time that this rank did not run for long.
    paused: Option<Pause>,
}

impl State {
    /// How long a member has been silent, as far as the store has answered: what a stopped store withholds is no silence.
    pub(super) fn silence_of(&self, peer: &Peer) -> Duration {
        self.answered.saturating_duration_since(peer.moved)
    }
}

pub(super) type StopAsked = Box<dyn Fn() -> bool + Send + Sync>;

/// Who learns of a stall that has ended by itself.
pub(super) type StallListener = Arc<dyn Fn(&EndedStall) + Send + Sync>;

/// The program's text for each beat.
pub(super) type Note = Box<dyn Fn() -> String + Send + Sync>;

/// State shared by the thread and the [`super::HeartbeatMonitor`].
pub(super) struct Heartbeat {
    pub(super) store: SharedStore,
    pub(super) member: usize,
    pub(super) members: usize,
    pub(super) options: HeartbeatOptions,
    life: u64,
    pub(super) host: Option<String>,
    /// Text for each beat.
    pub(super) note: Mutex<Option<Note>>,
    pub(super) stop_asked: Mutex<Option<StopAsked>>,
    pub(super) on_stall_ended: Mutex<Option<StallListener>>,
    /// The stalls of which this rank has warned. Locked before `state`.
    stalls: Mutex<Vec<Stall>>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condition,
}

impl Heartbeat {
    pub(super) fn new(
        store: SharedStore,
        member: usize,
        members: usize,
        options: HeartbeatOptions,
    ) -> Self {
        let unknown = Peer {
            found: BeatEntry::Nothing,
            moved: runtime::now(),
            warned: false,
        };
        let state = State {
            stop: false,
            due: false,
            goodbye: false,
            ended: false,
            number: 0,
            followed: None,
            reads_all: false,
            suspects: Vec::new(),
            answered: unknown.moved,
            sleeps_until: None,
            paused: None,
            peers: vec![unknown; members],
            next_newcomer: 0,
        };
        Self {
            store,
            member,
            members,
            options,
            life: random_u64(),
            host: runtime::host_name(),
            note: Mutex::new(None),
            stop_asked: Mutex::new(None),
            on_stall_ended: Mutex::new(None),
            stalls: Mutex::default(),
            state: Mutex::new(state),
            changed: Condition::default(),
        }
    }

    pub(super) fn follow(&self, followed: Followed) {
        let mut state = lock(&self.state);
        state.followed = Some(followed);
        restart(&mut state.peers);
        // Publishes the new group at once.
        state.due = true;
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn stop(&self, goodbye: bool) {
        let mut state = lock(&self.state);
        // After a stop without goodbye no goodbye follows.
        if !state.stop {
            (state.stop, state.goodbye) = (true, goodbye);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Runs until [`Heartbeat::stop`].
    pub(super) fn run(&self) {
        let _signal = EndedOnDrop(self);
        let interval = self.options.interval;
        let mut last = runtime::now();
        let mut slow_polls = 0;
        let mut notice = WaitNotice::new();
        loop {
            let began = runtime::now();
            // If this rank was stopped itself, it has missed beats of the others.
            let mut delayed = began.duration_since(last) > 2 * interval;
            last = began;
            let result = self.publish(false).and_then(|()| self.poll());
            if result.is_ok() {
                lock(&self.state).answered = runtime::now();
                self.end_stalls();
            }
            if let Err(error) = &result {
                tracing::debug!(member = self.member, "no heartbeat: {error}");
            }
            let took = runtime::elapsed(began);
            slow_polls = match took > interval {
                true => slow_polls + 1,
                false => 0,
            };
            if slow_polls == SLOW_POLLS {
                tracing::warn!(
                    "reading the heartbeats of {} ranks takes {:.1} s, longer than their interval of {:.1} s: \
                     until this changes, lost ranks are detected only by the timeouts of operations; check the \
                     network to the store and its load, or use a longer `HeartbeatOptions::timeout`",
                    self.members,
                    took.as_secs_f64(),
                    interval.as_secs_f64()
                );
            }
            delayed |= result.is_err() || took > interval;
            if delayed {
                restart(&mut lock(&self.state).peers);
            } else {
                self.check_timeouts(began);
                self.warn_of_a_wait(&mut notice);
            }
            // The store may have taken longer than an interval to answer, which is no pause of this rank.
            let due = self.next_timeout(began).unwrap_or(began + interval);
            let due = due.min(began + interval).max(runtime::now());
            lock(&self.state).sleeps_until = Some(due);
            let goes_on = self.sleep_until(due);
            self.note_pause();
            lock(&self.state).sleeps_until = None;
            if !goes_on {
                return;
            }
        }
    }

    /// Sleeps until the next beat. Returns false when the thread must end.
    fn sleep_until(&self, end: Instant) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                let goodbye = state.goodbye;
                drop(state);
                if goodbye && let Err(error) = self.publish(true) {
                    // The store may have ended first.
                    tracing::debug!(member = self.member, "no goodbye: {error}");
                }
                return false;
            }
            if std::mem::take(&mut state.due) {
                return true;
            }
            let (locked, late) = self.changed.wait_until(&self.state, state, end);
            state = locked;
            if late && !state.stop {
                return true;
            }
        }
    }

    fn publish(&self, goodbye: bool) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        state.number += 1;
        let number = state.number;
        let followed = state.followed.clone();
        drop(state);
        let beat = Beat {
            number,
            goodbye,
            ..self.beat_of(followed.as_ref())
        };
        self.store.set(&beat_key(self.member), &beat.encode())
    }

    /// The current beat of this rank.
    pub(super) fn beat_of(&self, followed: Option<&Followed>) -> Beat {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let note = lock(&self.note).as_ref().map(|note| note());
        let mut beat = Beat {
            life: self.life,
            pid: Some(runtime::process_id()),
            host: self.host.clone(),
            unix_seconds: now.unwrap_or_default().as_secs(),
            note: plain::line(&note.unwrap_or_default(), MAX_NOTE),
            ..Beat::default()
        };
        let Some(followed) = followed else {
            return beat;
        };
        (beat.generation, beat.rank) = (followed.generation, followed.rank);
        if let Some(core) = followed.core.upgrade() {
            beat.step = core.step.load(std::sync::atomic::Ordering::Relaxed);
            beat.records = newest(core.flight_record());
        }
        beat
    }

    /// Reads the beats of the members that this one watches.
    pub(super) fn poll(&self) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        self.suspect_machines(&mut state);
        let others = self.watched(&state).into_iter();
        let has_beaten = |member: &usize| !matches!(state.peers[*member].found, BeatEntry::Nothing);
        let (known, mut new): (Vec<usize>, Vec<usize>) = others.partition(has_beaten);
        let first = new.partition_point(|member| *member < state.next_newcomer);
        drop(state);
        for batch in known.chunks(BATCH) {
            self.poll_members(batch, true)?;
        }
        if new.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = new.iter().map(|member| beat_key(*member)).collect();
        // At the start of a job all beats appear together. Later, members without one may never start.
        let all = self.store.check(&entry::as_strs(&keys))?;
        if !all {
            new.rotate_left(first);
            new.truncate(NEWCOMERS);
            lock(&self.state).next_newcomer = new.last().map_or(0, |last| last + 1);
        }
        for batch in new.chunks(BATCH) {
            self.poll_members(batch, all)?;
        }
        Ok(())
    }

    /// Reads the beats of `members`, in one request if all of them exist.
    fn poll_members(&self, members: &[usize], all: bool) -> Result<(), StoreError> {
        let keys: Vec<String> = members.iter().map(|member| beat_key(*member)).collect();
        // Of many keys, one request with all of them is shorter; of a few, it is one round trip more.
        let found = match all && keys.len() > FEW {
            true => read_all(&*self.store, &keys)?,
            false => None,
        };
        let found = match found {
            Some(found) => found,
            None => read_many(&*self.store, &keys)?,
        };
        let mut state = lock(&self.state);
        if state.stop {
            return Ok(());
        }
        for (member, found) in members.iter().zip(found) {
            let peer = &mut state.peers[*member];
            let status = |found: &BeatEntry| found.beat().map(|beat| (beat.life, beat.number));
            if status(&found) != status(&peer.found) {
                (peer.moved, peer.warned) = (runtime::now(), false);
            }
            peer.found = found;
        }
        state.answered = runtime::now();
        Ok(())
    }
}

fn restart(peers: &mut [Peer]) {
    let now = runtime::now();
    for peer in peers {
        (peer.moved, peer.warned) = (now, false);
    }
}

/// Signals the end of the thread, also after a panic.
struct EndedOnDrop<'a>(&'a Heartbeat);

impl Drop for EndedOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
pub(super) mod tests;
