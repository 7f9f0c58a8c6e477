//! Process groups of a job whose ranks may come and go.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use everburn_collectives::elastic::{ElasticError, Membership, PendingMembers, Round};
use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
use everburn_collectives::heartbeat::{
    EndedStall, HangReport, HeartbeatMonitor, HeartbeatOptions, RankStatus,
};
use everburn_collectives::rendezvous::{Rendezvous, RendezvousError};
use everburn_collectives::store::SharedStore;
use everburn_collectives::transport::TcpMesh;
use everburn_record::ranges;
use everburn_record::sync::lock;

use crate::elastic::regroup::Regroup;
use crate::error::TrainError;

/// How often rank 0 asks the store whether somebody waits to join.
const LOOK: Duration = Duration::from_millis(200);

/// How often while others are on their way, for which all slots are read.
const LATER_LOOK: Duration = Duration::from_secs(1);

/// How long a process that has joined waits for others that are on their way. Most of those that were started together are
/// there by then.
const GATHER: Duration = Duration::from_secs(5);

/// How long the members of a round may take to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// How often in a row the members of a round may fail to connect: they reach the store, and not each other.
const FUTILE: usize = 20;

/// The log of each rank, by its number at the start of the job.
type LogOf = dyn Fn(usize) -> Option<PathBuf> + Send + Sync;

/// The present process group of a rank of an elastic job, and the way to the next.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{ElasticGroup, Regroup};
///
/// fn members(group: &ElasticGroup) -> usize {
///     group.members().len()
/// }
/// ```
pub struct ElasticGroup {
    membership: Arc<Mutex<Membership>>,
    options: GroupOptions,
    present: Mutex<Present>,
    heartbeat: Option<HeartbeatMonitor>,
    look: Arc<Look>,
    logs: Arc<LogOf>,
}

struct Present {
    group: ProcessGroup,
    generation: u64,
    /// By rank, the slot of each member.
    members: Vec<usize>,
}

impl ElasticGroup {
    /// Joins the first group. `heartbeat_options` are those of its heartbeat monitor; `None` starts none. `logs`
    /// returns the log of a stalled rank, by its number at the start of the job.
    ///
    /// # Errors
    /// [`TrainError::JobFinished`] if the job is at its end; [`TrainError::Elastic`] if there are too few
    /// ranks, or they do not reach each other; [`TrainError::NotMember`] if this process was not accepted or
    /// does not reach the store.
    pub fn form(
        mut membership: Membership,
        options: GroupOptions,
        heartbeat_options: Option<HeartbeatOptions>,
        logs: Box<LogOf>,
    ) -> Result<Self, TrainError> {
        let join = |membership: &mut Membership| {
            let round = membership.join(0);
            round.map_err(TrainError::from_first_contact)
        };
        let present = next(&mut membership, join, |round| connect(round, options))?;
        let (store, known) = (membership.store().clone(), membership.options().clone());
        let heartbeat = heartbeat_options
            .map(|heartbeat| HeartbeatMonitor::start(store, known.slot, known.max, heartbeat));
        let heartbeat = match heartbeat.transpose() {
            Ok(heartbeat) => heartbeat,
            Err(error) => {
                tracing::warn!("no heartbeat monitor: {error}");
                None
            }
        };
        let this = Self {
            membership: Arc::new(Mutex::new(membership)),
            options,
            present: Mutex::new(present),
            heartbeat,
            look: Arc::default(),
            logs: logs.into(),
        };
        this.follow();
        Ok(this)
    }

    /// What the job's ranks meet at.
    pub fn store(&self) -> SharedStore {
        lock(&self.membership).store().clone()
    }

    /// The step of the present group; `None` while the next one takes its place. It waits for nothing: a panic asks.
    pub fn step(&self) -> Option<u64> {
        let present = match self.present.try_lock() {
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Ok(present) => present,
        };
        Some(present.group.step())
    }

    /// The status of each rank that has published a beat; empty without a heartbeat monitor.
    pub fn rank_statuses(&self) -> Vec<RankStatus> {
        self.heartbeat
            .as_ref()
            .map_or_else(Vec::new, HeartbeatMonitor::statuses)
    }

    /// Sets the text in this rank's beats: [`HeartbeatMonitor::set_note`].
    pub fn set_note(&self, note: impl Fn() -> String + Send + Sync + 'static) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.set_note(note);
        }
    }

    /// Lets warnings about a wait say that the job was asked to stop: [`HeartbeatMonitor::set_stop_asked`].
    pub fn set_stop_asked(&self, asked: impl Fn() -> bool + Send + Sync + 'static) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.set_stop_asked(asked);
        }
    }

    /// Sets who learns of stalls that have ended: [`HeartbeatMonitor::set_stall_listener`].
    pub fn set_stall_listener(&self, listener: impl Fn(&EndedStall) + Send + Sync + 'static) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.set_stall_listener(listener);
        }
    }

    fn follow(&self) {
        let present = lock(&self.present);
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.follow_generation(&present.group, present.generation, &present.members);
        }
    }

    fn finish_report(&self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.finish_report();
        }
    }

    /// Shows who has stalled, if that is why the group has failed: soon, as the next group does not wait for it.
    fn report(&self, why: &TrainError) {
        let (Some(heartbeat), Some(error)) = (&self.heartbeat, why.collective()) else {
            return;
        };
        let logs = Arc::clone(&self.logs);
        let show = |report: &HangReport| tracing::error!("{report}");
        heartbeat.report_in_background(error, move |member| logs(member), show);
    }
}

impl Regroup for ElasticGroup {
    fn group(&self) -> ProcessGroup {
        lock(&self.present).group.clone()
    }

    fn regroup(&self, step: usize, why: &TrainError) -> Result<ProcessGroup, TrainError> {
        self.report(why);
        let mut membership = lock(&self.membership);
        let silent = why.collective().and_then(CollectiveError::silent_machine);
        let join = |membership: &mut Membership| Ok(membership.join_without(step as u64, silent)?);
        let options = self.options;
        let next = next(&mut membership, join, |round| connect(round, options));
        // The process may end.
        let next = next.inspect_err(|_| self.finish_report())?;
        let group = next.group.clone();
        *lock(&self.present) = next;
        // What was found before this round is of it.
        self.look.note(None, Instant::now());
        self.follow();
        Ok(group)
    }

    fn somebody_waits(&self) -> bool {
        self.look.again(&self.membership);
        self.look.found.load(Ordering::Relaxed)
    }

    fn members(&self) -> Vec<usize> {
        lock(&self.present).members.clone()
    }
}

/// The looks for those who wait to join, on a thread beside the training: a step does not wait for a store that is stopped.
#[derive(Default)]
struct Look {
    found: AtomicBool,
    last: Mutex<Option<Instant>>,
    under_way: AtomicBool,
    /// Since when somebody waits for others who are on their way.
    gathers: Mutex<Option<Instant>>,
}

impl Look {
    /// Looks once more, unless that was done a moment ago or is being done.
    fn again(self: &Arc<Self>, membership: &Arc<Mutex<Membership>>) {
        let pause = match lock(&self.gathers).is_some() {
            true => LATER_LOOK,
            false => LOOK,
        };
        let mut last = lock(&self.last);
        let is_due = last.is_none_or(|last| last.elapsed() >= pause);
        if !is_due || self.under_way.swap(true, Ordering::Acquire) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        let (look, membership) = (Arc::clone(self), Arc::clone(membership));
        let looks = std::thread::Builder::new().name("joiners".to_owned());
        let looks = looks.spawn(move || {
            // A store that is out of reach is found out by whoever cannot do without it.
            let membership = lock(&membership);
            look.note(
                membership.pending_members().unwrap_or_default(),
                Instant::now(),
            );
            drop(membership);
            look.under_way.store(false, Ordering::Release);
        });
        if looks.is_err() {
            self.under_way.store(false, Ordering::Release);
        }
    }

    /// Notes what a look has found at `now`: somebody waits to join, and all who come soon are there, or have been waited for.
    fn note(&self, pending: Option<PendingMembers>, now: Instant) {
        let mut gathers = lock(&self.gathers);
        let found = match pending {
            Some(PendingMembers::Incomplete) => {
                let since = *gathers.get_or_insert(now);
                now.duration_since(since) >= GATHER
            }
            found => {
                *gathers = None;
                found.is_some()
            }
        };
        self.found.store(found, Ordering::Relaxed);
    }
}

/// Joins rounds until the members of one are connected.
fn next(
    membership: &mut Membership,
    mut join: impl FnMut(&mut Membership) -> Result<Round, TrainError>,
    mut connect: impl FnMut(&Rendezvous) -> Result<ProcessGroup, CollectiveError>,
) -> Result<Present, TrainError> {
    let mut failures = 0;
    loop {
        let round = join(membership)?;
        let members = round.members.iter().map(|member| member.slot);
        let members = members.collect::<Vec<_>>();
        // Who has joined the round answers at once, or has been lost since.
        let mut rendezvous = round.rendezvous();
        rendezvous.timeout = rendezvous.timeout.min(CONNECT);
        match connect(&rendezvous) {
            Ok(group) => {
                return Ok(Present {
                    group,
                    generation: round.generation,
                    members,
                });
            }
            // A member was lost between the round and here: there will be another round.
            Err(error) if is_about_others(&error) => {
                failures += 1;
                let failure = describe(&error, &round);
                if failures >= FUTILE {
                    return Err(TrainError::Elastic(format!(
                        "{FUTILE} times in a row the members of a round did not reach each other, though \
                         they reach the store: check addresses and firewalls between their machines; the \
                         last time: {failure}"
                    )));
                }
                tracing::warn!("{failure}");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Why the members of `round` did not connect. The error counts the ranks of this one round, which the user does not know:
/// those that it names are told with their slots and processes.
fn describe(error: &CollectiveError, round: &Round) -> String {
    let mut named = match error.root_cause() {
        CollectiveError::Incomplete { missing, .. } => missing.clone(),
        CollectiveError::Timeout { waiting_for, .. } => waiting_for.clone(),
        other => other.lost_rank().into_iter().collect(),
    };
    named.retain(|rank| *rank != round.rank);
    named.insert(0, round.rank);
    let of_round = named.iter().filter_map(|rank| {
        let member = round.members.get(*rank)?;
        let machine = member.node;
        Some(format!("rank {rank} is {member} on machine {machine}"))
    });
    let of_round: Vec<String> = of_round.collect();
    let mut slots: Vec<usize> = round.members.iter().map(|member| member.slot).collect();
    slots.sort_unstable();
    format!(
        "the ranks of generation {} (slots {}) did not connect: {error}; in this generation {}",
        round.generation,
        ranges(&slots),
        of_round.join(", ")
    )
}

/// As [`ProcessGroup::connect`], but with the rendezvous' own deadline, which is shorter than the group's.
fn connect(
    rendezvous: &Rendezvous,
    options: GroupOptions,
) -> Result<ProcessGroup, CollectiveError> {
    let mesh = TcpMesh::connect(rendezvous, &options)?;
    let local_rank = rendezvous.local_rank;
    Ok(ProcessGroup::over(Arc::new(mesh), local_rank, options))
}

fn is_about_others(error: &CollectiveError) -> bool {
    matches!(
        error.root_cause(),
        CollectiveError::PeerLost { .. }
            | CollectiveError::Aborted { .. }
            | CollectiveError::Timeout { .. }
            | CollectiveError::Incomplete { .. }
            | CollectiveError::Store { .. }
    )
}

impl TrainError {
    /// Of what happens before this process has been a member for the first time: a store that is out of
    /// reach may be there again when the rank is started again.
    pub fn from_first_contact(error: ElasticError) -> Self {
        match error {
            ElasticError::Rendezvous(RendezvousError::ElasticMismatch { .. }) => error.into(),
            ElasticError::Rendezvous(_) | ElasticError::Store { .. } => {
                Self::NotMember(error.to_string())
            }
            error => error.into(),
        }
    }
}

impl From<ElasticError> for TrainError {
    fn from(error: ElasticError) -> Self {
        match error {
            ElasticError::Finished => Self::JobFinished,
            ElasticError::Rendezvous(RendezvousError::ElasticMismatch { .. }) => {
                Self::Config(error.to_string())
            }
            ElasticError::NotAdmitted { .. } | ElasticError::Expelled { .. } => {
                Self::NotMember(error.to_string())
            }
            error => Self::Elastic(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
