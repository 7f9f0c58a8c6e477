//! Stalls of which this rank has warned, until they end by themselves.

use std::time::{Duration, Instant};

use super::silence::Silent;
use super::waits::longest_wait;
use super::{Heartbeat, WATCH_ALL};
use crate::group::FlightEntry;
use crate::heartbeat::ended_stall::{EndedStall, StallCause};
use crate::heartbeat::report::HangReport;
use crate::runtime;
use crate::sync::lock;

/// A stall that has not ended.
pub(super) struct Stall {
    /// What will be said of it; how long it lasts is not known.
    known: EndedStall,
    /// The generation of the group.
    generation: u64,
    began: Instant,
    /// Of a rank that sends no beats, the process and the number of its last one.
    last_beat: Option<(u64, u64)>,
    /// Since when this rank waits, if that is why it has warned.
    waits_since: Option<Instant>,
}

impl Stall {
    /// Adds what a `later` warning of the same stall has said.
    fn join(&mut self, later: Self) {
        let cause = self.known.cause.min(later.known.cause);
        if later.known.is_awaited {
            self.known = later.known;
        }
        self.known.cause = cause;
        self.began = self.began.min(later.began);
        self.last_beat = later.last_beat.or(self.last_beat);
        self.waits_since = later.waits_since.or(self.waits_since);
    }
}

impl Heartbeat {
    /// Notes that this rank has warned at `now` of one that sends no beats.
    pub(super) fn begin_silence(&self, silent: &Silent, now: Instant) {
        let Some((generation, records)) = self.healthy_group() else {
            return;
        };
        let waits_for = |entry: &&FlightEntry| entry.waiting_for.contains(&silent.rank);
        let wait = longest_wait(&records).filter(waits_for);
        let beat = &silent.beat;
        self.note_stall(Stall {
            known: EndedStall {
                rank: silent.rank,
                member: silent.member,
                step: wait.map_or(beat.step, |wait| wait.step),
                operation: wait
                    .or(beat.records.first())
                    .map(FlightEntry::operation_of_group),
                is_awaited: wait.is_some(),
                lasted: Duration::ZERO,
                cause: match self.stopped_here(beat) {
                    Some(_) => StallCause::Stopped,
                    None => StallCause::Silent,
                },
                pid: beat.pid,
                host: beat.host.clone(),
            },
            generation,
            began: now.checked_sub(silent.silence).unwrap_or(now),
            last_beat: Some((beat.life, beat.number)),
            waits_since: None,
        });
    }

    /// Notes that this rank has warned of the wait for the stalled rank of `report`, which has taken `waited` so far.
    pub(super) fn begin_wait(&self, report: &HangReport, waited: Duration) {
        let (Some((generation, _)), Some(stalled)) =
            (self.healthy_group(), report.stalled_activity())
        else {
            return;
        };
        let wanted = report.wanted.as_ref();
        let now = runtime::now();
        let began = now.checked_sub(waited).unwrap_or(now);
        let member = stalled.member;
        // Of one wait, an earlier warning may have named a rank that waits itself by now.
        lock(&self.stalls).retain(|it| it.known.member == member || it.last_beat.is_some());
        self.note_stall(Stall {
            known: EndedStall {
                rank: stalled.rank,
                member,
                step: wanted.map_or(0, |wanted| wanted.step),
                operation: wanted.map(FlightEntry::operation_of_group),
                is_awaited: true,
                lasted: Duration::ZERO,
                cause: match (stalled.stopped, stalled.alive) {
                    (true, _) => StallCause::Stopped,
                    (false, true) => StallCause::Busy,
                    (false, false) => StallCause::Silent,
                },
                pid: stalled.pid,
                host: stalled.host.clone(),
            },
            generation,
            began,
            last_beat: None,
            waits_since: Some(began),
        });
    }

    fn note_stall(&self, stall: Stall) {
        if !self.says_end_of(stall.known.rank) {
            return;
        }
        let mut stalls = lock(&self.stalls);
        let key = |it: &Stall| (it.generation, it.known.member);
        match stalls.iter_mut().find(|it| key(it) == key(&stall)) {
            Some(earlier) => earlier.join(stall),
            None => stalls.push(stall),
        }
    }

    /// Whether this rank, which has warned of `rank`, says that it continues. In a large group several ranks warn of it: the one
    /// that reads all beats, rank 0 as a rule, says so, and of rank 0 each that has warned.
    pub(super) fn says_end_of(&self, rank: usize) -> bool {
        let state = lock(&self.state);
        let size = state.followed.as_ref().map(|it| it.members.len());
        size.is_some_and(|size| size <= WATCH_ALL || state.reads_all || rank == 0)
    }

    /// Says of each stall that has ended that it has. In a group that has failed none has ended by itself.
    pub(super) fn end_stalls(&self) {
        let mut stalls = lock(&self.stalls);
        if stalls.is_empty() {
            return;
        }
        let noted = std::mem::take(&mut *stalls).into_iter();
        let Some((generation, records)) = self.healthy_group() else {
            return;
        };
        let now = runtime::now();
        let wait = longest_wait(&records);
        let (left, ended): (Vec<Stall>, Vec<Stall>) = noted
            .filter(|stall| stall.generation == generation && !self.is_replaced(stall))
            .partition(|stall| self.is_silent_still(stall) || self.waits_still(stall, wait, now));
        *stalls = left;
        drop(stalls);
        // The listener is called without the lock: it may set another, or take long.
        let listener = lock(&self.on_stall_ended).clone();
        for stall in ended {
            let ended = EndedStall {
                lasted: now.saturating_duration_since(stall.began),
                ..stall.known
            };
            tracing::warn!("{ended}");
            if let Some(listener) = &listener {
                listener(&ended);
            }
        }
    }

    /// The process and the number of the newest beat of a member.
    fn newest_beat(&self, member: usize) -> Option<(u64, u64)> {
        let state = lock(&self.state);
        let beat = state.peers.get(member)?.found.beat()?;
        Some((beat.life, beat.number))
    }

    /// Whether no beat has come from the rank since it was warned of.
    fn is_silent_still(&self, stall: &Stall) -> bool {
        let newest = self.newest_beat(stall.known.member);
        let last = stall.last_beat;
        last.is_some() && (newest.is_none() || newest == last)
    }

    /// Whether another process beats in place of the one that was silent, which has not continued then.
    fn is_replaced(&self, stall: &Stall) -> bool {
        let newest = self.newest_beat(stall.known.member);
        let lives = stall.last_beat.zip(newest);
        lives.is_some_and(|((last, _), (newest, _))| last != newest)
    }

    /// Whether this rank is still in the wait of which it has warned; `wait` is the longest that it is in at `now`.
    fn waits_still(&self, stall: &Stall, wait: Option<&FlightEntry>, now: Instant) -> bool {
        stall.waits_since.is_some_and(|since| {
            let waited = now.saturating_duration_since(since);
            wait.is_some_and(|wait| wait.began + self.options.interval >= waited)
        })
    }

    /// The generation of the group, and its operations on this rank; `None` where it has failed or is gone.
    fn healthy_group(&self) -> Option<(u64, Vec<FlightEntry>)> {
        let followed = lock(&self.state).followed.clone()?;
        let core = followed.core.upgrade()?;
        let is_healthy = core.mailbox.failure().is_none();
        is_healthy.then(|| (followed.generation, core.flight_record()))
    }
}
