//! A schedule in which ranks wait for each other in a circle.

use std::fmt;

use crate::{Action, Message};

/// Ranks that wait for each other in a circle, so that none of them can continue.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Action, Schedule, ScheduleError};
///
/// // The backward pass first: it waits for a forward pass that comes after it.
/// let backward = Action::Backward { micro_batch: 0, stage: 0 };
/// let forward = Action::Forward { micro_batch: 0, stage: 0 };
/// let error = Schedule::from_actions(1, 1, vec![vec![backward, forward]]).unwrap_err();
/// let ScheduleError::Deadlock(deadlock) = error else { panic!("{error}") };
/// assert_eq!(deadlock.cycle().len(), 1);
/// assert_eq!(deadlock.cycle()[0].partner(), 0);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Deadlock {
    /// What each rank of the circle waits for; each one's partner is the next one's rank.
    cycle: Vec<Wait>,
    /// Ranks that are stuck because of these.
    others: Vec<Wait>,
}

impl Deadlock {
    /// From what every stuck rank waits for, by rank. All of them wait for ranks that are stuck.
    pub(crate) fn among(mut waits: Vec<Wait>) -> Self {
        // Following the partners from any rank ends in a circle, after as many steps at most.
        let partner_of = |rank: usize| {
            let wait = waits.iter().find(|wait| wait.rank == rank);
            wait.map_or(rank, Wait::partner)
        };
        let start = waits.first().map_or(0, |wait| wait.rank);
        let entry = (0..waits.len()).fold(start, |rank, _| partner_of(rank));
        let mut ranks = vec![entry];
        let mut rank = partner_of(entry);
        while rank != entry {
            ranks.push(rank);
            rank = partner_of(rank);
        }
        // The lowest rank first, so that the same deadlock reads the same.
        let lowest = (0..ranks.len()).min_by_key(|&at| ranks[at]);
        ranks.rotate_left(lowest.unwrap_or(0));
        let mut cycle = Vec::with_capacity(ranks.len());
        for rank in ranks {
            cycle.extend(waits.extract_if(.., |wait| wait.rank == rank));
        }
        Self {
            cycle,
            others: waits,
        }
    }

    /// What each rank of the circle waits for, from its lowest rank on. Each waits for the next
    /// one, the last one for the first.
    #[must_use]
    pub fn cycle(&self) -> &[Wait] {
        &self.cycle
    }

    /// The ranks that are stuck as well, because of those of the circle.
    #[must_use]
    pub fn others(&self) -> &[Wait] {
        &self.others
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the schedule never ends: ")?;
        for (index, wait) in self.cycle.iter().enumerate() {
            let separator = if index > 0 { "; " } else { "" };
            write!(f, "{separator}{wait}")?;
        }
        if let [first, rest @ ..] = self.others.as_slice() {
            let plural = if rest.is_empty() { "" } else { "s" };
            write!(f, " (and so rank{plural} {}", first.rank)?;
            for wait in rest {
                write!(f, ", {}", wait.rank)?;
            }
            write!(f, " cannot continue)")?;
        }
        let blocked_by_sends =
            |wait: &Wait| matches!(wait.awaited, Awaited::Taken(_)) && wait.partner() != wait.rank;
        if self.cycle.iter().any(blocked_by_sends) {
            write!(f, "; sends that do not block would resolve it")?;
        }
        Ok(())
    }
}

/// What a stuck rank waits for.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Awaited, Costs, Schedule, ScheduleKind, Sends, SimulationError, simulate};
///
/// let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 2, 1)?;
/// let costs = Costs { sends: Sends::Blocking, ..Costs::equal(2) };
/// let Err(SimulationError::Deadlock(deadlock)) = simulate(&schedule, &costs) else { panic!() };
/// let wait = &deadlock.cycle()[0];
/// assert_eq!((wait.rank, wait.position, wait.partner()), (0, 1, 1));
/// assert!(matches!(wait.awaited, Awaited::Taken(_)));
/// # Ok::<(), everburn_schedules::ScheduleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The rank that waits.
    pub rank: usize,
    /// The place in its list, from 0, of the action that it cannot start or end.
    pub position: usize,
    /// That action.
    pub action: Action,
    /// What it waits for.
    pub awaited: Awaited,
}

impl Wait {
    /// The rank that is waited for; for [`Awaited::Own`] the rank itself.
    #[must_use]
    pub const fn partner(&self) -> usize {
        match &self.awaited {
            Awaited::Received(message) => message.from_rank,
            Awaited::Taken(message) => message.to_rank,
            Awaited::Own(_) => self.rank,
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, action, position, partner) =
            (self.rank, self.action, self.position, self.partner());
        match &self.awaited {
            Awaited::Received(message) => write!(
                f,
                "rank {rank} waits for {message}, from rank {partner}, before the {action} (action \
                 {position} of its list)"
            ),
            Awaited::Taken(message) => write!(
                f,
                "rank {rank} waits until rank {partner} takes {message}, after the {action} (action \
                 {position} of its list)"
            ),
            Awaited::Own(other) => write!(
                f,
                "rank {rank} waits for itself: the {action} (action {position} of its list) comes before the {other}"
            ),
        }
    }
}

/// The three things that a rank can wait for.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Awaited, Deadlock};
///
/// /// Whether sends that do not block would resolve it.
/// fn is_by_sends(deadlock: &Deadlock) -> bool {
///     deadlock.cycle().iter().any(|wait| matches!(wait.awaited, Awaited::Taken(_)))
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// A message from another rank.
    Received(Message),
    /// That another rank takes a message. Only if sends block.
    Taken(Message),
    /// An action that is further down in its own list.
    Own(Action),
}
