//! Hang reports: collects the state of all ranks after one of them stalled.

mod gathering;
mod known;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use self::gathering::{Asking, Gathered, gather};
use self::known::Known;
use super::beat::{Beat, BeatEntry};
use super::machine::SilentMachine;
use super::thread::{Followed, Heartbeat};
use crate::group::{CollectiveError, FlightEntry, waited_for};
use crate::runtime;
use crate::sync::lock;
use crate::transport::Failure;

/// The source of a rank's activity.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::Evidence;
///
/// assert_ne!(Evidence::Answer, Evidence::Beat);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// The rank's own report after the failure.
    Answer,
    /// Its last beat.
    Beat,
    /// Its report or beat is unreadable.
    Unreadable,
    /// It has published nothing, or the store did not answer.
    Nothing,
    /// Its report was not looked for: others do not wait for it, and it is not in the sample.
    NotAsked,
}

/// The activity of one rank.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::HangReport;
///
/// fn steps(report: &HangReport) -> Vec<Option<u64>> {
///     report.ranks.iter().map(|activity| activity.step).collect()
/// }
/// ```
#[derive(Debug, Clone)]
pub struct RankActivity {
    /// The rank in the group.
    pub rank: usize,
    /// Its member number: the slot in an elastic run, else the rank.
    pub member: usize,
    /// The source of this information.
    pub evidence: Evidence,
    /// The time since its last new beat; `None` for this rank, for ranks without a beat, and where the store is silent.
    pub silent_for: Option<Duration>,
    /// Whether its beats arrive, or it has answered.
    pub alive: bool,
    /// Whether its process is stopped (SIGSTOP), as a rank of its machine has found.
    pub stopped: bool,
    /// The id of its process, on its machine.
    pub pid: Option<u32>,
    /// The name of its machine.
    pub host: Option<String>,
    /// Its step.
    pub step: Option<u64>,
    /// The running operation, else the failed one, else the last.
    pub doing: Option<FlightEntry>,
}

/// The diagnosis of a hang: the stalled rank, its operation, and the activity of all ranks. `Display` formats
/// it for the user.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::HangReport;
///
/// fn exclude(report: &HangReport) -> Option<usize> {
///     report.stalled
/// }
/// ```
#[derive(Debug, Clone)]
pub struct HangReport {
    /// The rank that reports.
    pub reporter: usize,
    /// The rank that the others wait for, if it could be determined.
    pub stalled: Option<usize>,
    /// The machine of the stalled rank, if all ranks of it are silent.
    pub machine: Option<SilentMachine>,
    /// The operation in which they wait for it.
    pub wanted: Option<FlightEntry>,
    /// The ranks that wait in it.
    pub waiting: Vec<usize>,
    /// Whether the stalled rank has called that operation before the group failed; `None` if unknown.
    pub has_called: Option<bool>,
    /// Another operation, in which the stalled rank waited itself.
    pub waits_itself: Option<FlightEntry>,
    /// How long after that the stalled rank came to the operation, if it has.
    pub late: Option<Duration>,
    /// How long operations may wait.
    pub timeout: Option<Duration>,
    /// The ranks that were asked, in order: the ranks that others wait for, and a sample of the rest.
    pub ranks: Vec<RankActivity>,
    /// How many ranks were not asked.
    pub others: usize,
    /// Whether this rank is the one of its machine to print the report: the first that had it, or that asked for it.
    pub is_printed_here: bool,
    /// How long the reporting rank itself did not run, where that is most of the time that it has waited.
    pub own_pause: Option<Duration>,
    /// How long the store has not answered, where it does not: whether other ranks beat is not known then.
    pub store_silent_for: Option<Duration>,
    /// The path of the stalled rank's log.
    pub log: Option<PathBuf>,
    /// The last lines of the log, or why they cannot be read.
    pub lines: Result<Vec<String>, String>,
}

/// The last published state of a rank, and its source.
#[derive(Clone)]
pub(super) struct RankReport {
    pub(super) evidence: Evidence,
    pub(super) beat: Option<Beat>,
    /// A new beat has come while the reports were collected.
    pub(super) beats: bool,
}

impl RankReport {
    /// What a rank has reported after the failure.
    pub(super) fn answer(beat: Beat) -> Self {
        Self {
            evidence: Evidence::Answer,
            beat: Some(beat),
            beats: true,
        }
    }

    /// The same, as it was found in the store.
    pub(super) fn answered(found: BeatEntry) -> Self {
        match found {
            BeatEntry::Beat(beat) => Self::answer(*beat),
            other => Self::from_beat(&other),
        }
    }

    /// The process and the number of its beat: another one with each beat.
    fn counter(&self) -> Option<(u64, u64)> {
        self.beat.as_ref().map(|beat| (beat.life, beat.number))
    }

    fn from_beat(found: &BeatEntry) -> Self {
        let evidence = match found {
            BeatEntry::Beat(_) => Evidence::Beat,
            BeatEntry::Unreadable => Evidence::Unreadable,
            BeatEntry::Nothing => Evidence::Nothing,
        };
        Self {
            evidence,
            beat: found.beat().cloned(),
            beats: false,
        }
    }
}

/// The last beats of all ranks, as far as this rank has read them.
pub(super) fn last_beats(heartbeat: &Heartbeat, followed: &Followed) -> Vec<RankReport> {
    let state = lock(&heartbeat.state);
    let of_member = |member: &usize| {
        let peer = state.peers.get(*member);
        RankReport::from_beat(peer.map_or(&BeatEntry::Nothing, |peer| &peer.found))
    };
    followed.members.iter().map(of_member).collect()
}

/// The log of a member, if this machine has it.
type LogOf<'a> = &'a dyn Fn(usize) -> Option<PathBuf>;

/// Diagnoses a hang once the others have answered.
pub(super) fn report(
    heartbeat: &Arc<Heartbeat>,
    error: &CollectiveError,
    log_of: LogOf<'_>,
) -> Option<HangReport> {
    let hang = Arc::new(Hang::of(heartbeat, error)?);
    let gathered = gather(heartbeat, &hang, Asking::Every);
    Some(hang.report(heartbeat, gathered, log_of))
}

/// The same, beside what this rank does next. Of the ranks of a machine the first one asks the others, and shows the report.
/// The thread ends within a few seconds, also where the store does not answer, and closes what is returned.
pub(super) fn report_in_background(
    heartbeat: &Arc<Heartbeat>,
    error: &CollectiveError,
    log_of: impl Fn(usize) -> Option<PathBuf> + Send + 'static,
    show: impl FnOnce(&HangReport) + Send + 'static,
) -> Option<Receiver<()>> {
    let hang = Arc::new(Hang::of(heartbeat, error)?);
    let asking = heartbeat.clone();
    let (at_work, ends) = mpsc::channel::<()>();
    let started = runtime::spawn("everburn-report", move || {
        let _at_work = at_work;
        let gathered = gather(&asking, &hang, Asking::FirstOfMachine);
        if gathered.is_printed_here {
            show(&hang.report(&asking, gathered, &log_of));
        }
    });
    match started {
        // A simulated one is waited for by nobody.
        Ok(thread) => thread.map(|_| ends),
        Err(error) => {
            tracing::warn!("the hang is not reported: {error}");
            None
        }
    }
}

/// A hang, as this rank sees it before it has asked the others.
struct Hang {
    followed: Followed,
    own: Beat,
    known: Known,
    /// Why the group was aborted, if another rank has missed a deadline.
    abort: Option<Failure>,
    own_pause: Option<Duration>,
}

impl Hang {
    /// The hang that has led to `error`, if there is one.
    fn of(heartbeat: &Heartbeat, error: &CollectiveError) -> Option<Self> {
        let followed = lock(&heartbeat.state).followed.clone()?;
        let own = Beat {
            waiting_for: waited_for(error),
            failed_for: followed
                .core
                .upgrade()
                .and_then(|core| core.mailbox.failed_for()),
            silent: heartbeat.known_silent(),
            stopped: heartbeat.known_stopped(),
            ..heartbeat.beat_of(Some(&followed))
        };
        let abort = followed.core.upgrade().and_then(|core| core.hang());
        let hangs = error.is_timeout() || abort.is_some();
        // Nobody waits for a rank that has neither failed nor waits.
        let waits = |entry: &&FlightEntry| !entry.waiting_for.is_empty();
        let waited = own.records.iter().filter(waits).map(|entry| entry.began);
        let waited = waited.max();
        let own_pause = heartbeat.pause_in(waited.filter(|_| hangs));
        let own_pause = own_pause.filter(|_| hangs || error.is_secondary());
        (hangs || own_pause.is_some()).then(|| Self {
            known: Known::now(heartbeat, &followed),
            followed,
            own,
            abort,
            own_pause,
        })
    }

    fn report(
        &self,
        heartbeat: &Heartbeat,
        mut gathered: Gathered,
        log_of: LogOf<'_>,
    ) -> HangReport {
        if let Some(abort) = &self.abort {
            hear_abort(&mut gathered.reports, abort);
        }
        let known = self.known.later(heartbeat, &self.followed);
        HangReport {
            is_printed_here: gathered.is_printed_here,
            own_pause: self.own_pause,
            ..known.diagnose(&self.followed, &gathered.reports, log_of)
        }
    }
}

/// Makes the diagnosis from the reports of all ranks.
pub(super) fn diagnose(
    heartbeat: &Heartbeat,
    followed: &Followed,
    reports: &[RankReport],
    log_of: LogOf<'_>,
) -> HangReport {
    Known::now(heartbeat, followed).diagnose(followed, reports, log_of)
}

/// Takes the abort of the rank that gave up as its answer, where it has none: it and its machine may have ended, and the
/// store with them.
pub(super) fn hear_abort(reports: &mut [RankReport], hang: &Failure) {
    let Some(report) = reports.get_mut(hang.by) else {
        return;
    };
    if report.evidence != Evidence::Answer && !hang.waiting_for.is_empty() {
        let said = Beat {
            rank: hang.by,
            waiting_for: hang.waiting_for.clone(),
            ..report.beat.take().unwrap_or_default()
        };
        *report = RankReport::answer(said);
    }
}
