//! Machines that are silent as a whole.

use std::fmt;

use crate::group::ranks;

/// A machine of which no rank sends heartbeats: it is stopped or cut off itself, rather than each of its ranks.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::SilentMachine;
///
/// let machine = SilentMachine { number: 1, ranks: vec![2, 3] };
/// assert_eq!(machine.to_string(), "machine 1 (ranks 2, 3)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentMachine {
    /// Its number, from 0: `--node-rank`.
    pub number: usize,
    /// Its ranks in the group, in order; two or more.
    pub ranks: Vec<usize>,
}

impl fmt::Display for SilentMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "machine {} ({})", self.number, ranks(&self.ranks))
    }
}

impl SilentMachine {
    /// What the error of a collective says of it.
    pub(super) fn said(&self) -> String {
        format!("none from any rank of {self}: look at that machine first")
    }

    /// The machine of `rank`, if it has several ranks and all of them are silent. `members` are those of the group by
    /// rank, and each machine has `per_machine` of them.
    pub(super) fn of(
        rank: usize,
        members: &[usize],
        per_machine: Option<usize>,
        is_silent: impl Fn(usize) -> bool,
    ) -> Option<Self> {
        let per_machine = per_machine.filter(|ranks| *ranks > 1)?;
        let number = machine_of(*members.get(rank)?, per_machine);
        let all = members.iter().enumerate();
        let here = all.filter(|(_, member)| machine_of(**member, per_machine) == number);
        let ranks: Vec<usize> = here.map(|(rank, _)| rank).collect();
        let is_as_a_whole = ranks.len() > 1 && ranks.iter().all(|rank| is_silent(*rank));
        is_as_a_whole.then_some(Self { number, ranks })
    }
}

pub(super) const fn machine_of(member: usize, per_machine: usize) -> usize {
    member / if per_machine == 0 { 1 } else { per_machine }
}
