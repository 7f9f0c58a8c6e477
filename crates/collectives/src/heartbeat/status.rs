//! The last known status of each rank, for monitoring.

use std::time::Duration;

use super::HeartbeatMonitor;
use super::beat::Beat;
use super::diagnosis::doing;
use super::thread::{Heartbeat, Peer};
use crate::group::FlightEntry;
use crate::sync::lock;

/// The intervals without a beat after which a member counts as not alive.
pub(super) const LATE_BEATS: u32 = 3;

/// The status of one member, as of its last beat.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::store::HashStore;
/// use everburn::collectives::heartbeat::{HeartbeatMonitor, HeartbeatOptions};
///
/// let monitor = HeartbeatMonitor::start(Arc::new(HashStore::new()), 0, 1, HeartbeatOptions::default())?;
/// let statuses = monitor.statuses();
/// assert_eq!((statuses.len(), statuses[0].member, statuses[0].alive), (1, 0, true));
/// # Ok::<(), everburn_collectives::heartbeat::HeartbeatError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankStatus {
    /// The member: the rank, or in an elastic run the slot.
    pub member: usize,
    /// Whether its beats arrive; while the store does not answer, whether they did before.
    pub alive: bool,
    /// Whether it has ended in good order.
    pub ended: bool,
    /// The time since its last new beat; `None` for this member.
    pub silent_for: Option<Duration>,
    /// How long the store has not answered, where it does not: whether this member beats is not known since then.
    pub store_silent_for: Option<Duration>,
    /// The id of its process, on its machine.
    pub pid: Option<u32>,
    /// The name of its machine.
    pub host: Option<String>,
    /// Its step.
    pub step: u64,
    /// The running operation, else the failed one, else the last; times are as of the beat.
    pub doing: Option<FlightEntry>,
    /// The text set by [`HeartbeatMonitor::set_note`].
    pub note: String,
}

impl HeartbeatMonitor {
    /// Adds the text returned by `note` to each beat, cut to 512 bytes, for monitoring. `note` is called on
    /// the heartbeat thread once per interval and must not block.
    pub fn set_note(&self, note: impl Fn() -> String + Send + Sync + 'static) {
        *lock(&self.heartbeat.note) = Some(Box::new(note));
    }

    /// The status of each member that has published a beat. Reads nothing from the store: beats are at
    /// most two intervals old. Of a large group, this rank reads the beats of all from the first call on, so that call
    /// returns only a few.
    #[must_use]
    pub fn statuses(&self) -> Vec<RankStatus> {
        self.heartbeat.statuses()
    }
}

impl Heartbeat {
    pub(super) fn statuses(&self) -> Vec<RankStatus> {
        let followed = lock(&self.state).followed.clone();
        let own = self.beat_of(followed.as_ref());
        let store_silent_for = self.store_silent_for();
        let mut state = lock(&self.state);
        state.reads_all = true;
        let status = |(member, peer): (usize, &Peer)| {
            if member == self.member {
                return Some(RankStatus {
                    store_silent_for,
                    ..status_of(member, &own, None, true)
                });
            }
            let silence = state.silence_of(peer);
            let alive = silence < LATE_BEATS * self.options.interval;
            let beat = peer.found.beat()?;
            Some(RankStatus {
                store_silent_for,
                ..status_of(member, beat, Some(silence), alive)
            })
        };
        state.peers.iter().enumerate().filter_map(status).collect()
    }
}

fn status_of(member: usize, beat: &Beat, silent_for: Option<Duration>, alive: bool) -> RankStatus {
    RankStatus {
        member,
        alive: alive && !beat.goodbye,
        ended: beat.goodbye,
        silent_for,
        store_silent_for: None,
        pid: beat.pid,
        host: beat.host.clone(),
        step: beat.step,
        doing: doing(&beat.records).cloned(),
        note: beat.note.clone(),
    }
}
