//! Events of the simulation, in the order of their times.

use std::sync::Arc;

use crate::kernel::Kernel;

/// What happens at a time of the simulation.
pub(crate) type Action = Box<dyn FnOnce(&Arc<Kernel>) + Send>;

/// What a time of the simulation brings.
pub(crate) enum Event {
    /// A thread continues, if it still waits for this.
    Wake {
        thread: usize,
        ticket: u64,
    },
    Act(Action),
}

/// An event and its time.
pub(crate) struct Entry {
    pub(crate) at: u64,
    /// The order among those of equal time.
    pub(crate) number: u64,
    pub(crate) event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest: a heap gives that one.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}
