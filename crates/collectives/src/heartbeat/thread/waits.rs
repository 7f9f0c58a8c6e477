//! What a heartbeat thread says of ranks that are alive and waited for.

use std::time::Duration;

use super::{Followed, Heartbeat};
use crate::group::FlightEntry;
use crate::heartbeat::beat::Beat;
use crate::heartbeat::report::{self, HangReport, RankReport};
use crate::sync::lock;
use crate::wait_notice::WaitNotice;

impl Heartbeat {
    /// Warns, now and then, that an operation waits for a rank that beats. Of the ranks that wait, the first says it.
    pub(super) fn warn_of_a_wait(&self, notice: &mut WaitNotice) {
        let followed = lock(&self.state).followed.clone();
        let Some((followed, core)) =
            followed.and_then(|followed| Some((followed.clone(), followed.core.upgrade()?)))
        else {
            return;
        };
        let own = Beat {
            stopped: self.known_stopped(),
            ..self.beat_of(Some(&followed))
        };
        let Some(waited) = waited(&own.records).filter(|_| core.mailbox.failure().is_none()) else {
            *notice = WaitNotice::new();
            return;
        };
        if !notice.is_due(waited) {
            return;
        }
        let timeout = core.timeout().saturating_sub(waited);
        if let Some((report, text)) = self.describe_wait(&followed, own, waited, timeout) {
            tracing::warn!("{text}");
            self.begin_wait(&report, waited);
        }
    }

    /// Whom the ranks wait for, by their last beats, and what is said of it; `None` if another rank says so, or no beat does.
    pub(super) fn describe_wait(
        &self,
        followed: &Followed,
        own: Beat,
        waited_for: Duration,
        left: Duration,
    ) -> Option<(HangReport, String)> {
        let mut reports = report::last_beats(self, followed);
        *reports.get_mut(followed.rank)? = RankReport::answer(own);
        let report = report::diagnose(self, followed, &reports, &|_| None);
        let stalled = report.stalled?;
        let waits = |rank: &usize| {
            let beat = reports[*rank].beat.as_ref();
            *rank != stalled && beat.is_some_and(|beat| waited(&beat.records).is_some())
        };
        let first = (0..reports.len()).find(waits)?;
        if first != followed.rank {
            return None;
        }
        let silence = report.ranks.iter().find(|it| it.rank == stalled);
        let silence = silence.filter(|it| !it.alive).and_then(|it| it.silent_for);
        // One that does not beat is given up before.
        let lost_in =
            silence.and_then(|silence| Some(self.options.timeout?.saturating_sub(silence)));
        let (left, option) = match lost_in.filter(|lost_in| *lost_in < left) {
            Some(left) => (left, "HeartbeatOptions::timeout"),
            None => (left, "GroupOptions::timeout"),
        };
        let is_stopping = lock(&self.stop_asked).as_ref().is_some_and(|asked| asked());
        let end = match is_stopping {
            true => {
                "the job was asked to stop after this step, and its launcher ends ranks that do not"
                    .to_owned()
            }
            false => ends_after(left, option),
        };
        let text = report.while_waiting(waited_for, &end)?;
        Some((report, text))
    }
}

/// When the wait for a rank ends, by which option.
pub(super) fn ends_after(left: Duration, option: &str) -> String {
    format!(
        "the wait ends after {:.0} s more (`{option}`)",
        left.as_secs_f64()
    )
}

/// For how long an operation of a rank has waited for another, the longest of them.
pub(super) fn waited(records: &[FlightEntry]) -> Option<Duration> {
    longest_wait(records).map(|entry| entry.began)
}

/// The operation of a rank that has waited longest for another.
pub(super) fn longest_wait(records: &[FlightEntry]) -> Option<&FlightEntry> {
    let waits = records.iter().filter(|entry| entry.is_waiting());
    waits.max_by_key(|entry| entry.began)
}
