//! The handle of a rank, and how a rank ends.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
use everburn_collectives::rendezvous::RendezvousError;
use everburn_collectives::store::StoreError;
use everburn_collectives::sync::lock;

use crate::environment::RankEnvironment;
use crate::error::{JoinError, RankEnvironmentError};
use crate::exit::{EXIT_PEER_LOST, EXIT_STALLED, EXIT_UNAVAILABLE};
use crate::failure::ReportKind;
use crate::origin::StartedBy;

/// The exit code of a rank that has failed by itself.
const EXIT_FAILURE: i32 = 1;

/// The group of this rank, once it has joined.
type GroupSlot = Mutex<Option<ProcessGroup>>;

/// One rank of a job, as [`run`](crate::run) passes it to the work: its rank, and its connection to the others.
///
/// ```no_run
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_launch as launch; }
/// use std::error::Error;
/// use std::process::ExitCode;
///
/// use everburn::collectives::group::ReduceOp;
/// use everburn::launch::Rank;
///
/// fn main() -> ExitCode {
///     everburn::launch::run(4, work)
/// }
///
/// fn work(rank: &Rank) -> Result<(), Box<dyn Error>> {
///     let sum = rank.group()?.all_reduce(vec![1], ReduceOp::Sum).wait()?;
///     assert_eq!(sum, [rank.world_size() as i32]);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Rank {
    /// `None`: it is the only rank, without a launcher.
    environment: Option<RankEnvironment>,
    group_slot: Arc<GroupSlot>,
}

impl Rank {
    pub(crate) fn alone() -> Self {
        Self {
            environment: None,
            group_slot: Arc::default(),
        }
    }

    /// The rank that a launcher has made of this process. From now on the process ends with its launcher, if
    /// that is ours, and its panics are reported to it.
    pub(crate) fn begin(environment: RankEnvironment) -> Result<Self, RankEnvironmentError> {
        environment.guard_against_orphaning()?;
        let group_slot: Arc<GroupSlot> = Arc::default();
        // Weak: what a hook holds is never dropped, and the last handle of a group says goodbye.
        let watched = Arc::downgrade(&group_slot);
        let looked_at = watched.clone();
        environment.look_up_step(move || {
            let group_slot = looked_at.upgrade()?;
            let group = group_slot.try_lock().ok()?;
            group.as_ref().map(ProcessGroup::step)
        });
        environment.report_panics_as(move || match watched.upgrade() {
            Some(group_slot) if others_have_failed(&group_slot) => ReportKind::PeerLost,
            _ => ReportKind::Panic,
        });
        if environment.rank == 0 && environment.origin.started_by != StartedBy::Everburn {
            say(&environment.announcement());
        }
        Ok(Self {
            environment: Some(environment),
            group_slot,
        })
    }

    /// This rank's number over all machines, 0 to [`world_size`](Self::world_size) - 1.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.environment.as_ref().map_or(0, |it| it.rank)
    }

    /// How many ranks there are on all machines.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.environment.as_ref().map_or(1, |it| it.world_size)
    }

    /// This rank's number on its machine: which of its devices to take.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.environment.as_ref().map_or(0, |it| it.local_rank)
    }

    /// What the launcher has set; `None` if this is the only rank, without a launcher.
    #[must_use]
    pub fn environment(&self) -> Option<&RankEnvironment> {
        self.environment.as_ref()
    }

    /// Meets all other ranks and connects with them; called again, it gives another handle on the same group.
    /// Each rank has to call it.
    ///
    /// # Errors
    /// [`JoinError`] that names the ranks which have not come within five minutes.
    pub fn group(&self) -> Result<ProcessGroup, JoinError> {
        self.group_with(GroupOptions::default())
    }

    /// [`group`](Self::group) with another deadline than five minutes, or another transport. The options of
    /// the first call hold.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub fn group_with(&self, options: GroupOptions) -> Result<ProcessGroup, JoinError> {
        let mut group_slot = lock(&self.group_slot);
        if let Some(group) = &*group_slot {
            return Ok(group.clone());
        }
        let group = match &self.environment {
            None => ProcessGroup::alone(options),
            Some(environment) => {
                ProcessGroup::connect(environment.rendezvous(options.timeout)?, options)?
            }
        };
        *group_slot = Some(group.clone());
        Ok(group)
    }

    /// The work is done: waits for the others, so that nobody's last message is cut, and reports to the launcher.
    pub(crate) fn finish(self) -> ExitCode {
        let group = self.leave_seat();
        let step = group.as_ref().map(ProcessGroup::step);
        if let Some(group) = group
            && let Err(error) = group.destroy()
        {
            // What this rank had to do is done; a rank that still works reports its own end.
            tracing::warn!("{error}");
        }
        if let Some(environment) = &self.environment {
            let step = step.filter(|&step| step > 0);
            environment.report(ReportKind::Finished, step, "");
        }
        ExitCode::SUCCESS
    }

    /// The work has failed: notifies launcher, user and the other ranks, in this order, so that what the others
    /// say of it is later than what this rank says.
    pub(crate) fn fail(self, error: &(dyn Error + 'static)) -> ExitCode {
        if let Some(RendezvousError::Stopped) = behind(error) {
            if let Some(environment) = &self.environment {
                environment.report(ReportKind::Stopped, None, "");
            }
            say(error);
            return ExitCode::SUCCESS;
        }
        let (text, collective) = (with_causes(error), behind::<CollectiveError>(error));
        // A group that this rank has given up itself, as by a step that it has dropped: nobody else is to blame.
        let gave_up =
            collective.is_some_and(|it| it.is_secondary() && it.lost_rank() == Some(self.rank()));
        let is_secondary = !gave_up
            && (collective.is_some_and(CollectiveError::is_secondary)
                || others_have_failed(&self.group_slot));
        let code = match collective {
            _ if is_secondary => EXIT_PEER_LOST,
            Some(error) if error.is_timeout() => EXIT_STALLED,
            _ if has_lost_store(error) => EXIT_UNAVAILABLE,
            _ => EXIT_FAILURE,
        };
        let group = self.leave_seat();
        let step = group.as_ref().map(ProcessGroup::step);
        let step = step.filter(|&step| step > 0);
        let shown = match &self.environment {
            Some(environment) if is_secondary => {
                let lost = collective.and_then(CollectiveError::lost_rank);
                let machine = collective.and_then(CollectiveError::silent_machine);
                environment.report_peer_lost(lost, machine, step, &text)
            }
            Some(environment) => environment.report_error(step, &text),
            None => false,
        };
        if !shown {
            say(&format!("error: {text}"));
        }
        if let Some(group) = group {
            match collective {
                Some(error) => group.abort_because(error, text),
                None => group.abort(text),
            }
        }
        ExitCode::from(u8::try_from(code).unwrap_or(1))
    }

    fn leave_seat(&self) -> Option<ProcessGroup> {
        let mut group_slot = lock(&self.group_slot);
        group_slot.take()
    }
}

/// Whether another rank has given up or is lost, by what has arrived here. Never waits: a panic asks.
fn others_have_failed(group_slot: &GroupSlot) -> bool {
    let Ok(group_slot) = group_slot.try_lock() else {
        return false;
    };
    group_slot.as_ref().is_some_and(|group| {
        let failure = group.failure();
        let told = failure.is_some_and(|it| it.by != group.rank() || it.lost.is_some());
        told || !group.lost_ranks().is_empty()
    })
}

/// The error of this type that `error` is, or comes from.
fn behind<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Whether the store was lost while the ranks met.
fn has_lost_store(error: &(dyn Error + 'static)) -> bool {
    let of_group = match behind(error) {
        Some(CollectiveError::Store(error)) => Some(error),
        _ => None,
    };
    of_group
        .or_else(|| behind(error))
        .is_some_and(StoreError::is_lost)
}

/// The error, and what it comes from where it does not say so itself.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str("\n  because: ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

/// Tells the user, who is the one that a program's front door talks to.
pub(crate) fn say(text: &dyn Display) {
    // Nobody reads where standard error is closed; what happens next does not depend on it.
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the training failed")]
    struct OfAnotherCrate(#[source] JoinError);

    #[test]
    fn an_error_of_a_group_is_found_behind_others_and_told_with_them() {
        let mut groups = ProcessGroup::over_threads(2, GroupOptions::default());
        let (other, own) = (groups.pop().unwrap(), groups.pop().unwrap());
        other.abort("out of memory");
        let lost = own.barrier().wait().unwrap_err();
        let error = OfAnotherCrate(lost.into());
        assert!(behind::<CollectiveError>(&error).unwrap().is_secondary());
        let text = with_causes(&error);
        assert!(
            text.starts_with("the training failed\n  because: rank 1 aborted"),
            "{text}"
        );
        // The group's own error is after the one that repeats it.
        assert_eq!(text.matches("because").count(), 1, "{text}");
    }

    #[test]
    fn a_rank_that_learns_of_a_stop_while_it_joins_has_not_failed() {
        let stopped = || OfAnotherCrate(RendezvousError::Stopped.into());
        let code = |rank: Rank, error| format!("{:?}", rank.fail(&error));
        let success = format!("{:?}", ExitCode::SUCCESS);
        assert_eq!(code(Rank::alone(), stopped()), success);
        let other = OfAnotherCrate(RendezvousError::EmptyWorld.into());
        assert_ne!(code(Rank::alone(), other), success);
    }

    #[test]
    fn the_only_rank_joins_nobody_and_always_the_same_group() {
        let rank = Rank::alone();
        assert_eq!(
            (rank.rank(), rank.world_size(), rank.local_rank()),
            (0, 1, 0)
        );
        rank.group().unwrap().set_step(7);
        assert_eq!(rank.group().unwrap().step(), 7);
    }

    #[test]
    fn a_rank_whose_group_others_have_given_up_is_no_cause() {
        let mut groups = ProcessGroup::over_threads(2, GroupOptions::default());
        let (other, own) = (groups.pop().unwrap(), groups.pop().unwrap());
        let group_slot = Mutex::new(Some(own.clone()));
        assert!(!others_have_failed(&group_slot));
        other.abort("out of memory");
        assert!(own.barrier().wait().is_err());
        assert!(others_have_failed(&group_slot));
        let group_slot = Mutex::new(Some(other));
        assert!(!others_have_failed(&group_slot), "who gives up is to blame");
    }
}
