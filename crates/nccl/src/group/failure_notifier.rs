//! Heartbeats and failure notices, through the store.
//!
//! Each rank publishes its progress every [`NcclConfig::heartbeat`](super::NcclConfig), and checks for notices of
//! failed ranks. This has its own thread: the store may be slow or gone, and nothing on a GPU waits for it.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use everburn_collectives::group::GroupFailure;
use everburn_collectives::printable;
use everburn_collectives::store::{PrefixStore, Store, StoreError};
use everburn_collectives::sync::{lock, wait_until, wait_while};
use serde::{Deserialize, Serialize};

use super::error::NcclError;

/// How long the store may take for one answer while an error is being formed.
const ANSWER: Duration = Duration::from_millis(200);

/// How long a failure waits for the store to take its notice, or for the notice of another rank.
const TELLING: Duration = Duration::from_secs(1);

/// How long dropping a group waits for the thread, which is usually asleep.
const GOODBYE: Duration = Duration::from_millis(200);

/// The longest value that is read, in bytes: ten times the longest that is written.
const MAX_BYTES: usize = 16 << 10;

/// The longest reason in a notice, in characters.
const MAX_REASON: usize = 1000;

const FAILURE: &str = "failure";

/// The progress of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub(crate) number: u64,
    /// How many collectives it has issued.
    pub(crate) issued: u64,
    /// Its newest operation, with collective and step.
    pub(crate) last: String,
    /// It has left.
    pub(crate) goodbye: bool,
}

#[derive(Default)]
struct State {
    stop: bool,
    goodbye: bool,
    /// The next round is due at once.
    due: bool,
    /// Rounds that have ended.
    rounds: u64,
    ended: bool,
    notice: Option<Vec<u8>>,
    heard: Option<GroupFailure>,
}

/// Publishes one rank's heartbeats and failure, and reads those of the others.
pub(crate) struct FailureNotifier {
    pub(crate) store: PrefixStore,
    rank: usize,
    job_ranks: Vec<usize>,
    interval: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

impl FailureNotifier {
    pub(crate) fn new(
        store: PrefixStore,
        rank: usize,
        job_ranks: Vec<usize>,
        interval: Duration,
    ) -> Self {
        Self {
            store,
            rank,
            job_ranks,
            interval,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Publishes and checks until it is stopped. `progress` returns this rank's progress, or `None` when the group is
    /// gone.
    pub(crate) fn run(&self, progress: &dyn Fn() -> Option<Heartbeat>) {
        let _signal = EndedOnDrop(self);
        let mut last = Heartbeat::default();
        loop {
            let number = last.number + 1;
            let Some(heartbeat) = progress() else { return };
            last = Heartbeat {
                number,
                ..heartbeat
            };
            if let Err(error) = self.round(&last) {
                tracing::debug!(
                    rank = self.rank,
                    "cannot exchange heartbeats through the store: {error}"
                );
            }
            let next = Instant::now() + self.interval;
            let mut state = lock(&self.state);
            state.rounds += 1;
            self.changed.notify_all();
            loop {
                if state.stop {
                    let goodbye = state.goodbye;
                    drop(state);
                    if goodbye {
                        self.say_goodbye(last);
                    }
                    return;
                }
                if std::mem::take(&mut state.due) {
                    break;
                }
                let (locked, late) = wait_until(&self.changed, state, next);
                state = locked;
                if late {
                    break;
                }
            }
        }
    }

    fn round(&self, heartbeat: &Heartbeat) -> Result<(), StoreError> {
        let notice = lock(&self.state).notice.take();
        if let Some(notice) = notice
            && let Err(error) = self.store.compare_set(FAILURE, b"", &notice)
        {
            // Once more in the next round.
            lock(&self.state).notice.get_or_insert(notice);
            return Err(error);
        }
        self.publish(heartbeat)?;
        let Some(value) = self.store.try_get(FAILURE)? else {
            return Ok(());
        };
        let notice = bounded(&value).and_then(|value| serde_json::from_slice(value).ok());
        let Some::<GroupFailure>(mut notice) = notice else {
            return Ok(());
        };
        if notice.by != self.job_ranks[self.rank] {
            notice.reason = printable(&notice.reason, MAX_REASON);
            lock(&self.state).heard = Some(notice);
        }
        Ok(())
    }

    fn publish(&self, heartbeat: &Heartbeat) -> Result<(), StoreError> {
        // Numbers and text always are JSON.
        let value = serde_json::to_vec(heartbeat).unwrap_or_default();
        self.store.set(&heartbeat_key(self.rank), &value)
    }

    fn say_goodbye(&self, last: Heartbeat) {
        let heartbeat = Heartbeat {
            number: last.number + 1,
            goodbye: true,
            ..last
        };
        if let Err(error) = self.publish(&heartbeat) {
            // The store has gone first, which is no error.
            tracing::debug!(rank = self.rank, "no goodbye: {error}");
        }
    }

    /// Another rank's failure, if there is a notice of one.
    pub(crate) fn heard(&self) -> Option<GroupFailure> {
        lock(&self.state).heard.clone()
    }

    /// [`FailureNotifier::heard`], after waiting a moment for a notice.
    pub(crate) fn ended_of_late(&self) -> Option<GroupFailure> {
        let deadline = Instant::now() + TELLING;
        let mut state = lock(&self.state);
        loop {
            if state.heard.is_some() || state.ended {
                return state.heard.clone();
            }
            state.due = true;
            self.changed.notify_all();
            let (locked, late) = wait_until(&self.changed, state, deadline);
            state = locked;
            if late {
                return state.heard.clone();
            }
        }
    }

    /// Notifies the others of this rank's failure, and waits a moment for the store to have it.
    pub(crate) fn tell(&self, error: &NcclError, by: usize) {
        let deadline = Instant::now() + TELLING;
        let mut state = lock(&self.state);
        state.notice = Some(notice(error, by));
        // The round under way, if there is one, may have checked for notices before.
        let told = state.rounds + 2;
        while !state.ended && state.rounds < told {
            state.due = true;
            self.changed.notify_all();
            let (locked, late) = wait_until(&self.changed, state, deadline);
            state = locked;
            if late {
                return;
            }
        }
    }

    /// Notifies the others of a failure before the thread has started.
    pub(crate) fn tell_at_once(&self, error: &NcclError, by: usize) {
        if let Err(error) = self.store.compare_set(FAILURE, b"", &notice(error, by)) {
            tracing::debug!(rank = self.rank, "the others are not notified: {error}");
        }
    }

    /// The others' newest heartbeats, by rank in the group, as far as the store answers.
    pub(crate) fn heartbeats(&self) -> Vec<Option<Heartbeat>> {
        let deadline = Instant::now() + 2 * TELLING;
        let mut heartbeats = vec![None; self.job_ranks.len()];
        for (rank, heartbeat) in heartbeats.iter_mut().enumerate() {
            if rank == self.rank || Instant::now() >= deadline {
                continue;
            }
            let value = self.store.get_within(&heartbeat_key(rank), ANSWER).ok();
            *heartbeat = value.and_then(|value| serde_json::from_slice(bounded(&value)?).ok());
        }
        heartbeats
    }

    /// Ends the thread, with a goodbye or as if the process had been killed.
    pub(crate) fn stop(&self, goodbye: bool) {
        let deadline = Instant::now() + GOODBYE;
        let mut state = lock(&self.state);
        // After a silent stop there is no goodbye later.
        if !state.stop {
            (state.stop, state.goodbye) = (true, goodbye);
        }
        self.changed.notify_all();
        drop(wait_while(&self.changed, state, deadline, |it| !it.ended));
    }
}

fn notice(error: &NcclError, by: usize) -> Vec<u8> {
    let notice = GroupFailure {
        by,
        lost: error.lost(),
        silent_machine: error.silent_machine(),
        reason: error.to_string().chars().take(MAX_REASON).collect(),
    };
    // Numbers and text always are JSON.
    serde_json::to_vec(&notice).unwrap_or_default()
}

/// Wakes waiting threads when this one ends, even by a panic.
struct EndedOnDrop<'a>(&'a FailureNotifier);

impl Drop for EndedOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_all();
    }
}

fn heartbeat_key(rank: usize) -> String {
    format!("beat/{rank}")
}

/// The value, unless it is longer than any that a rank writes.
pub(crate) fn bounded(value: &[u8]) -> Option<&[u8]> {
    (value.len() <= MAX_BYTES).then_some(value)
}
