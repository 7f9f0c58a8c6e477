//! Options of a member of an elastic job.

use std::time::Duration;

/// The default of [`ElasticOptions::patience`]. Most members of a broken group join immediately; a rank inside
/// a long computation joins after it.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

/// The default of [`ElasticOptions::wait_for_min`], long enough for restarts with back-off.
const DEFAULT_WAIT_FOR_MIN: Duration = Duration::from_secs(60);

/// Options of a member of an elastic job.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::elastic::ElasticOptions;
///
/// let options = ElasticOptions::new((2, 4), 3, 1);
/// assert_eq!((options.min, options.max), (2, 4));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElasticOptions {
    /// The fewest ranks to train with; at least 1.
    pub min: usize,
    /// The number of slots.
    pub max: usize,
    /// This process's slot, below `max`.
    pub slot: usize,
    /// The number of this process in its slot, from 1.
    pub incarnation: u64,
    /// The number of this process's machine.
    pub node: usize,
    /// How many slots each machine has, in their order, so that errors can name the machine of a missing one; `None` where
    /// there is one machine, or the numbers differ.
    pub ranks_per_machine: Option<usize>,
    /// The time for expected members to join once the group is known to be broken.
    pub patience: Duration,
    /// The time that fewer than `min` ranks wait for more; in the first round, the time that all wait for
    /// missing slots.
    pub wait_for_min: Duration,
}

impl ElasticOptions {
    /// Options of process `incarnation` of `slot` in a job of `(min, max)` ranks, on machine 0, with a
    /// patience of 10 s and 60 s for `min` ranks to join.
    #[must_use]
    pub fn new((min, max): (usize, usize), slot: usize, incarnation: u64) -> Self {
        Self {
            min,
            max,
            slot,
            incarnation,
            node: 0,
            ranks_per_machine: None,
            patience: DEFAULT_PATIENCE,
            wait_for_min: DEFAULT_WAIT_FOR_MIN,
        }
    }

    /// A description of the invalid option, if any.
    pub(super) fn fault(&self) -> Option<String> {
        let Self {
            min,
            max,
            slot,
            incarnation,
            ..
        } = self;
        if *min == 0 || min > max {
            return Some(format!(
                "a job of {min} to {max} ranks is impossible: the minimum must be at least 1 and at most the maximum"
            ));
        }
        if slot >= max {
            return Some(format!(
                "slot {slot} does not exist among {max}; slots are numbered from 0 to {}",
                max - 1
            ));
        }
        (*incarnation == 0).then(|| "incarnations are numbered from 1".to_owned())
    }
}
