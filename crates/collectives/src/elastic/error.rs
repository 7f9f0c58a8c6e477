//! Errors of elastic membership.

use std::fmt;
use std::time::Duration;

use everburn_record::{ranges, units};

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
    /// The current group continues, and has not admitted this process.
    #[error(
        "the members of generation {} have not admitted slot {slot} within {}: none of them ({}) has joined the next round; {}",
        .generation - 1, units::seconds(.waited.as_secs_f64()), slots(.members), how_they_are(*.step)
    )]
    NotAdmitted {
        /// This process's slot.
        slot: usize,
        /// The generation that was to form.
        generation: u64,
        /// The slots of the current group.
        members: Vec<usize>,
        /// The newest step of these, by their heartbeats; `None` if none arrives.
        step: Option<u64>,
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

/// As `slot 3`, or `slots 1, 2`.
fn slots(slots: &[usize]) -> String {
    match slots {
        [one] => format!("slot {one}"),
        many => format!("slots {}", ranges(many)),
    }
}

/// How the members are that have not admitted a process, and what to check.
fn how_they_are(step: Option<u64>) -> String {
    match step {
        Some(step) => format!(
            "their heartbeats arrive, and they are at step {step}: new ranks are admitted between two steps, or two rounds of \
             local steps, so check that the members make progress, shorten the rounds, or allow more time"
        ),
        None => "no heartbeat of them arrives: check that they and their launchers run; where heartbeats are off and a step, or a \
                 round of local steps, takes that long, allow more time"
            .to_owned(),
    }
}

/// How many slots of a state are named, and how many states.
const SHOWN: usize = 16;

/// The missing slots, those of one state together, for an error text.
pub(super) fn listed(missing: &[MissingSlot]) -> String {
    let mut groups: Vec<Vec<MissingSlot>> = Vec::new();
    for slot in missing {
        let alike = groups
            .iter_mut()
            .find(|group| (group[0].state, group[0].incarnation) == (slot.state, slot.incarnation));
        match alike {
            Some(group) => group.push(*slot),
            None => groups.push(vec![*slot]),
        }
    }
    let shown = groups.iter().take(SHOWN).map(|group| together(group));
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        text.push_str("none");
    }
    let others = groups.iter().skip(SHOWN).map(Vec::len).sum::<usize>();
    if others > 0 {
        text.push_str(&format!(" and {others} more"));
    }
    text
}

/// Slots of one state, as in `slots 2, 3 of machine 1 (never started)`.
fn together(group: &[MissingSlot]) -> String {
    let [first, _, ..] = group else {
        return group.iter().map(ToString::to_string).collect();
    };
    let slots: Vec<usize> = group.iter().map(|it| it.slot).collect();
    let mut text = format!("slots {}", ranges(&slots[..slots.len().min(SHOWN)]));
    if slots.len() > SHOWN {
        text.push_str(&format!(" and {} more", slots.len() - SHOWN));
    }
    let mut machines: Vec<usize> = group.iter().filter_map(|it| it.machine).collect();
    machines.sort_unstable();
    machines.dedup();
    match &*machines {
        [] => {}
        [machine] => text.push_str(&format!(" of machine {machine}")),
        several => text.push_str(&format!(" of machines {}", ranges(several))),
    }
    let incarnation = first.incarnation;
    text.push_str(&match first.state {
        SlotState::NotStarted => " (never started)".to_owned(),
        SlotState::Ended => format!(" (process {incarnation} of each has ended)"),
        SlotState::Silent => format!(" (no heartbeat from process {incarnation} of each)"),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_slots_of_one_state_are_named_together_with_their_machines() {
        let missing = |slots: std::ops::Range<usize>, incarnation, state| {
            slots.map(move |slot| MissingSlot {
                slot,
                machine: Some(slot / 2),
                incarnation,
                state,
            })
        };
        let few = missing(2..6, 0, SlotState::NotStarted)
            .chain(missing(6..8, 1, SlotState::Ended))
            .chain(missing(8..9, 2, SlotState::Ended))
            .chain(missing(9..12, 1, SlotState::Silent));
        let few: Vec<_> = few.collect();
        assert_eq!(
            listed(&few),
            "slots 2-5 of machines 1, 2 (never started), slots 6, 7 of machine 3 (process 1 of each has ended), \
             slot 8 of machine 4 (its process 2 has ended), slots 9, 10, 11 of machines 4, 5 (no heartbeat from process 1 of each)"
        );
        let many: Vec<_> = missing(0..40, 0, SlotState::NotStarted).collect();
        assert_eq!(
            listed(&many),
            "slots 0-15 and 24 more of machines 0-19 (never started)"
        );
        let each: Vec<_> = (0..20)
            .flat_map(|slot| missing(slot..slot + 1, slot as u64 + 1, SlotState::Ended))
            .collect();
        assert!(listed(&each).ends_with("(its process 16 has ended) and 4 more"));
        assert_eq!(listed(&[]), "none");
    }
}
