//! The thread that beats, and counts for how long the others have not.

use std::sync::{Condvar, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use super::WatchOptions;
use super::beat::{Beat, Found, MAX_NOTE, beat_key, newest, read, read_all};
use crate::group::Core;
use crate::printable;
use crate::store::{SharedStore, StoreError, random_u64};
use crate::sync::{lock, wait_until};

/// How many beats are read by one request: a few hundred kilobytes.
const BATCH: usize = 256;

/// How many of those who have not beaten yet are asked after one by one in a look.
const NEWCOMERS: usize = 16;

/// So many looks in a row that take longer than an interval are told: until one does not, a silent rank is not
/// found.
const TOLD: u32 = 5;

/// The group that is watched at present.
#[derive(Clone)]
pub(super) struct Followed {
    /// Not kept alive: dropping the last handle of a group leaves it.
    pub(super) core: Weak<Core>,
    pub(super) generation: u64,
    pub(super) rank: usize,
    /// The member behind each rank.
    pub(super) members: Vec<usize>,
}

/// Another member, as this one sees it.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) found: Found,
    /// Since when its number stands.
    pub(super) moved: Instant,
}

pub(super) struct State {
    stop: bool,
    /// The next beat is due at once.
    due: bool,
    goodbye: bool,
    pub(super) ended: bool,
    number: u64,
    pub(super) followed: Option<Followed>,
    /// By member.
    pub(super) peers: Vec<Peer>,
    /// From which member on it is asked next who has begun to beat.
    next_newcomer: usize,
}

/// What the program says of itself.
pub(super) type Note = Box<dyn Fn() -> String + Send + Sync>;

/// What the thread shares with the watch.
pub(super) struct Heart {
    pub(super) store: SharedStore,
    pub(super) member: usize,
    pub(super) members: usize,
    pub(super) options: WatchOptions,
    life: u64,
    /// What each beat adds.
    pub(super) note: Mutex<Option<Note>>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl Heart {
    pub(super) fn new(
        store: SharedStore,
        member: usize,
        members: usize,
        options: WatchOptions,
    ) -> Self {
        let unknown = Peer {
            found: Found::Nothing,
            moved: Instant::now(),
        };
        let state = State {
            stop: false,
            due: false,
            goodbye: false,
            ended: false,
            number: 0,
            followed: None,
            peers: vec![unknown; members],
            next_newcomer: 0,
        };
        Self {
            store,
            member,
            members,
            options,
            life: random_u64(),
            note: Mutex::new(None),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub(super) fn follow(&self, followed: Followed) {
        let mut state = lock(&self.state);
        state.followed = Some(followed);
        restart(&mut state.peers);
        // The others learn of the new group at once.
        state.due = true;
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn stop(&self, goodbye: bool) {
        let mut state = lock(&self.state);
        // Whoever has fallen silent on purpose says nothing later either.
        if !state.stop {
            (state.stop, state.goodbye) = (true, goodbye);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Beats until it is told to stop.
    pub(super) fn run(&self) {
        let _signal = EndedOnDrop(self);
        let interval = self.options.interval;
        let mut last = Instant::now();
        let mut late_looks = 0;
        loop {
            let began = Instant::now();
            // This rank may have been stopped itself, and the others may have beaten unseen.
            let mut held_up = began.duration_since(last) > 2 * interval;
            last = began;
            let result = self.publish(false).and_then(|()| self.look());
            if let Err(error) = &result {
                tracing::debug!(member = self.member, "no heartbeat: {error}");
            }
            let took = began.elapsed();
            late_looks = match took > interval {
                true => late_looks + 1,
                false => 0,
            };
            if late_looks == TOLD {
                tracing::warn!(
                    "reading the heartbeats of {} ranks takes {:.1} s, longer than the {:.1} s between them: \
                     as long as it does, a rank that falls silent is found by the deadline of an operation \
                     only; check the network to the store and its load, or use a longer --heartbeat-timeout",
                    self.members,
                    took.as_secs_f64(),
                    interval.as_secs_f64()
                );
            }
            held_up |= result.is_err() || took > interval;
            if held_up {
                restart(&mut lock(&self.state).peers);
            } else {
                self.accuse(began);
            }
            if !self.sleep_until(began + interval) {
                return;
            }
        }
    }

    /// Whether to go on.
    fn sleep_until(&self, end: Instant) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                let goodbye = state.goodbye;
                drop(state);
                if goodbye && let Err(error) = self.publish(true) {
                    // The store has gone first, which is no fault.
                    tracing::debug!(member = self.member, "no goodbye: {error}");
                }
                return false;
            }
            if std::mem::take(&mut state.due) {
                return true;
            }
            let (locked, late) = wait_until(&self.changed, state, end);
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

    /// What this rank is doing now.
    pub(super) fn beat_of(&self, followed: Option<&Followed>) -> Beat {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let note = lock(&self.note).as_ref().map(|note| note());
        let mut beat = Beat {
            life: self.life,
            unix_seconds: now.unwrap_or_default().as_secs(),
            note: printable(&note.unwrap_or_default(), MAX_NOTE),
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

    /// Reads the beats of the others.
    pub(super) fn look(&self) -> Result<(), StoreError> {
        let state = lock(&self.state);
        let others = (0..self.members).filter(|member| *member != self.member);
        let has_beaten = |member: &usize| !matches!(state.peers[*member].found, Found::Nothing);
        let (known, mut new): (Vec<usize>, Vec<usize>) = others.partition(has_beaten);
        let first = new.partition_point(|member| *member < state.next_newcomer);
        drop(state);
        for batch in known.chunks(BATCH) {
            self.look_at(batch, true)?;
        }
        let keys: Vec<String> = new.iter().map(|member| beat_key(*member)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        // At a job's start all come together; later a few that may never come are asked after.
        let all = self.store.check(&keys)?;
        if !all {
            new.rotate_left(first);
            new.truncate(NEWCOMERS);
            lock(&self.state).next_newcomer = new.last().map_or(0, |last| last + 1);
        }
        for batch in new.chunks(BATCH) {
            self.look_at(batch, all)?;
        }
        Ok(())
    }

    /// Reads the beats of `members`, by one request where all of them are there.
    fn look_at(&self, members: &[usize], all: bool) -> Result<(), StoreError> {
        let keys: Vec<String> = members.iter().map(|member| beat_key(*member)).collect();
        let found = match all {
            true => read_all(&*self.store, &keys)?,
            false => None,
        };
        let found = match found {
            Some(found) => found,
            None => {
                let found = keys.iter().map(|key| read(&*self.store, key));
                found.collect::<Result<_, _>>()?
            }
        };
        let mut state = lock(&self.state);
        if state.stop {
            return Ok(());
        }
        for (member, found) in members.iter().zip(found) {
            let peer = &mut state.peers[*member];
            let sign = |found: &Found| found.beat().map(|beat| (beat.life, beat.number));
            if sign(&found) != sign(&peer.found) {
                peer.moved = Instant::now();
            }
            peer.found = found;
        }
        Ok(())
    }

    /// Fails the group if one of its ranks had been silent for too long at `now`, which was before
    /// the beats were read: a rank that is stopped itself between the two accuses nobody.
    pub(super) fn accuse(&self, now: Instant) {
        let Some(limit) = self.options.silence else {
            return;
        };
        let state = lock(&self.state);
        let Some(followed) = state.followed.clone().filter(|_| !state.stop) else {
            return;
        };
        let silent = followed
            .members
            .iter()
            .enumerate()
            .find_map(|(rank, member)| {
                let peer = state.peers.get(*member)?;
                // Who has never beaten may know nothing of heartbeats. A process that took the place of
                // another beats with a number of its own, and so do its beats of another generation.
                let beat = peer.found.beat()?;
                let counts = !beat.goodbye;
                let silence = now.saturating_duration_since(peer.moved);
                let guilty = counts && rank != followed.rank && silence >= limit;
                guilty.then(|| (rank, silence, beat.clone()))
            });
        drop(state);
        let (Some((rank, silence, beat)), Some(core)) = (silent, followed.core.upgrade()) else {
            return;
        };
        if core.mailbox.failure().is_none() {
            core.lose_silent(rank, describe(silence, &beat));
        }
    }

    /// For how long the number of `member` has stood.
    pub(super) fn silence_of(&self, member: usize) -> Option<Duration> {
        let state = lock(&self.state);
        let peer = state.peers.get(member)?;
        peer.found.beat()?;
        Some(peer.moved.elapsed())
    }
}

fn describe(silence: Duration, beat: &Beat) -> String {
    let last = beat.records.first();
    let doing = last.map_or_else(String::new, |entry| format!(", in or after {entry}"));
    format!(
        "it has given no sign of life for {:.1} s (its last was at step {}{doing}); check whether \
         its process is stopped (SIGSTOP, a debugger) or swapped out, and whether its machine is \
         still there",
        silence.as_secs_f64(),
        beat.step
    )
}

fn restart(peers: &mut [Peer]) {
    let now = Instant::now();
    for peer in peers {
        peer.moved = now;
    }
}

/// Tells whoever drops the watch that the thread is done, even by a panic.
struct EndedOnDrop<'a>(&'a Heart);

impl Drop for EndedOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::{HashStore, Store};

    fn heart(members: usize) -> (Arc<HashStore>, Heart) {
        let store = Arc::new(HashStore::new());
        let heart = Heart::new(store.clone(), 1, members, WatchOptions::default());
        (store, heart)
    }

    fn known(heart: &Heart) -> Vec<usize> {
        let state = lock(&heart.state);
        let known = |member: &usize| state.peers[*member].found.beat().is_some();
        (0..heart.members).filter(known).collect()
    }

    #[test]
    fn who_has_begun_to_beat_is_found_among_many_who_have_not() {
        let (store, heart) = heart(5 * NEWCOMERS);
        let beating = [0, NEWCOMERS + 2, 5 * NEWCOMERS - 1];
        for member in beating {
            store.set(&beat_key(member), b"{}").unwrap();
        }
        for _ in 0..5 {
            heart.look().unwrap();
        }
        assert_eq!(known(&heart), beating);
    }

    #[test]
    fn all_that_beat_are_seen_at_once_and_one_that_is_gone_hides_nobody() {
        let (store, heart) = heart(2 * BATCH);
        for member in 0..heart.members {
            store.set(&beat_key(member), b"{}").unwrap();
        }
        heart.look().unwrap();
        let others: Vec<_> = (0..heart.members).filter(|member| *member != 1).collect();
        assert_eq!(known(&heart), others);
        store.delete(&beat_key(7)).unwrap();
        store.set(&beat_key(8), b"{\"number\":5}").unwrap();
        heart.look().unwrap();
        assert_eq!(known(&heart).len(), others.len() - 1);
        let state = lock(&heart.state);
        assert_eq!(state.peers[8].found.beat().unwrap().number, 5);
    }
}
