//! Signs of life, and news of failures, through the store.
//!
//! Each rank publishes every [`NcclConfig::beat`](super::NcclConfig) how far it is, and looks whether
//! another has said that it failed. This has a thread of its own: the store may be slow or gone, and
//! nothing on a GPU waits for it.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use everburn_collectives::printable;
use everburn_collectives::store::{PrefixStore, Store, StoreError};
use serde::{Deserialize, Serialize};

use super::control::Ended;
use super::error::NcclError;
use super::turn::{lock, wait_until};

/// How long the store may take for one answer while an error is being formed.
const ANSWER: Duration = Duration::from_millis(200);

/// How long a failure waits for the store to take its news, or for the news of another's.
const TELLING: Duration = Duration::from_secs(1);

/// How long dropping a group waits for the thread, which is mostly asleep.
const GOODBYE: Duration = Duration::from_millis(200);

/// The longest value that is read, in bytes: ten times what is ever written.
const MAX_BYTES: usize = 16 << 10;

/// The longest reason that is told, in characters.
const MAX_REASON: usize = 1000;

const FAILURE: &str = "failure";

/// How far a rank is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beat {
    pub(crate) number: u64,
    /// How many collectives it has issued.
    pub(crate) issued: u64,
    /// Its newest operation, with collective and step.
    pub(crate) last: String,
    /// It has left.
    pub(crate) goodbye: bool,
}

#[derive(Serialize, Deserialize)]
struct Notice {
    by: usize,
    lost: Option<usize>,
    reason: String,
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
    heard: Option<Ended>,
}

/// What one rank tells the others, and hears of them.
pub(crate) struct News {
    pub(crate) store: PrefixStore,
    rank: usize,
    job_ranks: Vec<usize>,
    interval: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

impl News {
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

    /// Publishes and looks until it is told to stop. `progress` is how far this rank is, or `None`
    /// when the group is gone.
    pub(crate) fn run(&self, progress: &dyn Fn() -> Option<Beat>) {
        let _signal = EndedOnDrop(self);
        let mut last = Beat::default();
        loop {
            let number = last.number + 1;
            let Some(beat) = progress() else { return };
            last = Beat { number, ..beat };
            if let Err(error) = self.round(&last) {
                tracing::debug!(rank = self.rank, "no news through the store: {error}");
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

    fn round(&self, beat: &Beat) -> Result<(), StoreError> {
        let notice = lock(&self.state).notice.take();
        if let Some(notice) = notice
            && let Err(error) = self.store.compare_set(FAILURE, b"", &notice)
        {
            // Once more in the next round.
            lock(&self.state).notice.get_or_insert(notice);
            return Err(error);
        }
        self.publish(beat)?;
        let Some(value) = self.store.try_get(FAILURE)? else {
            return Ok(());
        };
        let notice = bounded(&value).and_then(|value| serde_json::from_slice::<Notice>(value).ok());
        let Some(Notice { by, lost, reason }) = notice else {
            return Ok(());
        };
        if by != self.job_ranks[self.rank] {
            let reason = printable(&reason, MAX_REASON);
            lock(&self.state).heard = Some(Ended { by, lost, reason });
        }
        Ok(())
    }

    fn publish(&self, beat: &Beat) -> Result<(), StoreError> {
        // Numbers and text always are JSON.
        let value = serde_json::to_vec(beat).unwrap_or_default();
        self.store.set(&beat_key(self.rank), &value)
    }

    fn say_goodbye(&self, last: Beat) {
        let beat = Beat {
            number: last.number + 1,
            goodbye: true,
            ..last
        };
        if let Err(error) = self.publish(&beat) {
            // The store has gone first, which is no fault.
            tracing::debug!(rank = self.rank, "no goodbye: {error}");
        }
    }

    /// Another rank's failure, if one has been told.
    pub(crate) fn heard(&self) -> Option<Ended> {
        lock(&self.state).heard.clone()
    }

    /// [`News::heard`], or what is heard within a moment.
    pub(crate) fn ended_of_late(&self) -> Option<Ended> {
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

    /// Tells the others of this rank's failure, and waits a moment for the store to have it.
    pub(crate) fn tell(&self, error: &NcclError, by: usize) {
        let deadline = Instant::now() + TELLING;
        let mut state = lock(&self.state);
        state.notice = Some(notice(error, by));
        // The round under way, if there is one, may have looked for notices before.
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

    /// Tells the others of a failure before the thread has begun.
    pub(crate) fn tell_at_once(&self, error: &NcclError, by: usize) {
        if let Err(error) = self.store.compare_set(FAILURE, b"", &notice(error, by)) {
            tracing::debug!(rank = self.rank, "the others are not told: {error}");
        }
    }

    /// The others' newest signs of life, by number in the group, as far as the store answers.
    pub(crate) fn beats(&self) -> Vec<Option<Beat>> {
        let deadline = Instant::now() + 2 * TELLING;
        let mut beats = vec![None; self.job_ranks.len()];
        for (rank, beat) in beats.iter_mut().enumerate() {
            if rank == self.rank || Instant::now() >= deadline {
                continue;
            }
            let value = self.store.get_within(&beat_key(rank), ANSWER).ok();
            *beat = value.and_then(|value| serde_json::from_slice(bounded(&value)?).ok());
        }
        beats
    }

    /// Ends the thread; with a goodbye, or as if the process had been killed.
    pub(crate) fn stop(&self, goodbye: bool) {
        let deadline = Instant::now() + GOODBYE;
        let mut state = lock(&self.state);
        // Whoever has fallen silent on purpose says nothing later either.
        if !state.stop {
            (state.stop, state.goodbye) = (true, goodbye);
        }
        self.changed.notify_all();
        while !state.ended {
            let (locked, late) = wait_until(&self.changed, state, deadline);
            state = locked;
            if late {
                return;
            }
        }
    }
}

fn notice(error: &NcclError, by: usize) -> Vec<u8> {
    let notice = Notice {
        by,
        lost: error.lost(),
        reason: error.to_string().chars().take(MAX_REASON).collect(),
    };
    // Numbers and text always are JSON.
    serde_json::to_vec(&notice).unwrap_or_default()
}

/// Tells whoever waits that the thread is done, even by a panic.
struct EndedOnDrop<'a>(&'a News);

impl Drop for EndedOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_all();
    }
}

fn beat_key(rank: usize) -> String {
    format!("beat/{rank}")
}

/// A value that is no longer than what any rank writes.
pub(crate) fn bounded(value: &[u8]) -> Option<&[u8]> {
    (value.len() <= MAX_BYTES).then_some(value)
}
