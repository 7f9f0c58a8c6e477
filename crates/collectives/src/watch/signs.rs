//! The ranks' signs of life, for who looks on.

use std::time::Duration;

use super::Watch;
use super::beat::{Beat, Found};
use super::verdict::doing;
use crate::group::FlightEntry;
use crate::sync::lock;

/// How many beats may be late before a member counts as silent.
const LATE_BEATS: u32 = 3;

/// What a member has said of itself last.
///
/// ```
/// use std::sync::Arc;
/// use everburn_collectives::store::HashStore;
/// use everburn_collectives::watch::{Watch, WatchOptions};
///
/// let watch = Watch::start(Arc::new(HashStore::new()), 0, 1, WatchOptions::default())?;
/// let signs = watch.signs();
/// assert_eq!((signs.len(), signs[0].member, signs[0].alive), (1, 0, true));
/// # Ok::<(), everburn_collectives::watch::WatchError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sign {
    /// The member: the rank, or in an elastic run the slot.
    pub member: usize,
    /// Whether its beats come.
    pub alive: bool,
    /// Whether it has said goodbye.
    pub ended: bool,
    /// For how long its beat stands; `None` for this member itself.
    pub silent_for: Option<Duration>,
    /// The step that it was at.
    pub step: u64,
    /// The operation that was under way, else the one that failed, else the last; times are as of the beat.
    pub doing: Option<FlightEntry>,
    /// What [`Watch::say_of_itself`] had it add.
    pub note: String,
}

impl Watch {
    /// Has each beat carry what `note` returns: a short text (512 bytes are kept) for those who look on. It is
    /// called on the heartbeat's thread, once an interval, and must not wait for anything.
    pub fn say_of_itself(&self, note: impl Fn() -> String + Send + Sync + 'static) {
        *lock(&self.heart.note) = Some(Box::new(note));
    }

    /// What each member that has ever been seen said last. Asks nobody: it is what this member's own heartbeat has
    /// read, at most two intervals ago.
    #[must_use]
    pub fn signs(&self) -> Vec<Sign> {
        let heart = &self.heart;
        let followed = lock(&heart.state).followed.clone();
        let own = heart.beat_of(followed.as_ref());
        let state = lock(&heart.state);
        let sign = |(member, peer): (usize, &super::heart::Peer)| {
            if member == heart.member {
                return Some(told(member, &own, None, true));
            }
            let silence = peer.moved.elapsed();
            let alive = silence < LATE_BEATS * heart.options.interval;
            match &peer.found {
                Found::Beat(beat) => Some(told(member, beat, Some(silence), alive)),
                Found::Unreadable | Found::Nothing => None,
            }
        };
        state.peers.iter().enumerate().filter_map(sign).collect()
    }
}

fn told(member: usize, beat: &Beat, silent_for: Option<Duration>, alive: bool) -> Sign {
    Sign {
        member,
        alive: alive && !beat.goodbye,
        ended: beat.goodbye,
        silent_for,
        step: beat.step,
        doing: doing(&beat.records).cloned(),
        note: beat.note.clone(),
    }
}
