//! Errors of elastic membership.

use std::fmt;
use std::time::Duration;

use everburn_record::units;

use crate::rendezvous::RendezvousError;
use crate::store::StoreError;

/// The state of a missing slot.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::{MissingSlot, SlotState};
///
/// let missing = MissingSlot { slot: 1, machine: None, incarnation: 0, state: SlotState::NotStarted };
/// assert_eq!(missing.state, SlotState::NotStarted);
/// assert_eq!(missing.to_string(), "slot 1 (never started)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// No launcher has started a process for it.
    NotStarted,
    /// Its last process has ended, and no other was started.
    Ended,
    /// Its process was started and has not ended, but has not joined.
    Silent,
}

/// A slot that is missing in a round.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::{MissingSlot, SlotState};
///
/// let missing = MissingSlot { slot: 2, machine: Some(1), incarnation: 1, state: SlotState::Ended };
/// assert_eq!(missing.to_string(), "slot 2 of machine 1 (its process 1 has ended)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingSlot {
    /// The slot.
    pub slot: usize,
    /// The number of its machine, if that is known and there are several.
    pub machine: Option<usize>,
    /// Its newest process; 0 where none is known.
    pub incarnation: u64,
    /// Its state.
    pub state: SlotState,
}

impl fmt::Display for MissingSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            slot, incarnation, ..
        } = self;
        write!(f, "slot {slot}")?;
        if let Some(machine) = self.machine {
            write!(f, " of machine {machine}")?;
        }
        match self.state {
            SlotState::NotStarted => write!(f, " (never started)"),
            SlotState::Ended => write!(f, " (its process {incarnation} has ended)"),
            SlotState::Silent => write!(f, " (no heartbeat from its process {incarnation})"),
        }
    }
}

/// The reason for which a process is not a member of a group.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::ElasticError;
///
/// let text = ElasticError::GivenUp { reason: "slot 1 has no restarts left".into() }.to_string();
/// assert!(text.contains("no restarts left"));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ElasticError {
    /// A rank has finished, so the job is done. This is no failure: exit with 0.
    #[error("the job has finished")]
    Finished,
    /// A launcher has stopped restarting ranks.
    #[error("the job was given up: {reason}")]
    GivenUp {
        /// Why, in the launcher's words.
        reason: String,
    },
    /// Fewer ranks than the job needs have joined.
    #[error(
        "generation {generation} did not form within {}: {joined} of at least {min} ranks \
         have joined; missing: {}; look at their logs, and check that their machines and launchers run, \
         with the same job token, host and port",
        units::seconds(.waited.as_secs_f64()), listed(.missing)
    )]
    TooFew {
        /// The generation that should have formed.
        generation: u64,
        /// The number of ranks that have joined.
        joined: usize,
        /// The number of ranks needed.
        min: usize,
        /// All other slots.
        missing: Vec<MissingSlot>,
        /// How long this process waited.
        waited: Duration,
    },
    /// The current group trains on and has not admitted this process.
    #[error(
        "the members of generation {} have not admitted slot {slot} within {}: none of them has \
         joined the next round; missing: {}; new ranks are admitted between two steps, so check that the \
         members make progress, or allow more time",
        .generation - 1, units::seconds(.waited.as_secs_f64()), listed(.missing)
    )]
    NotAdmitted {
        /// This process's slot.
        slot: usize,
        /// The generation that was to form.
        generation: u64,
        /// All slots that have not joined.
        missing: Vec<MissingSlot>,
        /// How long this process waited.
        waited: Duration,
    },
    /// A newer process of the slot was started, or the launcher has seen this one end.
    #[error(
        "slot {slot} was expelled: this is its process {incarnation}, the newest one is {newest}, the last \
         ended one {ended}; the group continued without this process, so its launcher replaced it"
    )]
    Expelled {
        /// The slot.
        slot: usize,
        /// This process.
        incarnation: u64,
        /// The newest process of the slot.
        newest: u64,
        /// The newest that has ended.
        ended: u64,
    },
    /// Only rank 0 could host the store.
    #[error(
        "an elastic job needs a store that outlives its ranks, but with `{init_method}` rank 0 hosts it: \
         start the ranks with a launcher that hosts the store (`LaunchConfig::ranks`, which sets \
         TORCHELASTIC_USE_AGENT_STORE=True) and use env://, or keep the store in etcd (EVERBURN_STORE)"
    )]
    NoLauncherStore {
        /// The init method.
        init_method: String,
    },
    /// The options are invalid.
    #[error("slot {slot} cannot join: {reason}")]
    Invalid {
        /// This process's slot.
        slot: usize,
        /// What is wrong.
        reason: String,
    },
    /// The store's address could not be determined, or others at the store were started with another `--elastic`.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The store failed.
    #[error("slot {slot} cannot join: {source}")]
    Store {
        /// This process's slot.
        slot: usize,
        /// What the store said.
        source: StoreError,
    },
}

/// The first slots of a list, for an error text.
pub(super) fn listed(missing: &[MissingSlot]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = missing
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    let mut text = match shown.is_empty() {
        true => "none".to_owned(),
        false => shown.join(", "),
    };
    if missing.len() > SHOWN {
        text.push_str(&format!(" and {} more", missing.len() - SHOWN));
    }
    text
}
