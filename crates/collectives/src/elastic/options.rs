//! What a rank knows of an elastic job before it joins.

use std::time::Duration;

/// How long the others of a broken group have to come, unless told otherwise: they abort their groups as soon
/// as they see that one is broken, so most come at once; a rank inside a long computation comes after it.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

/// How long fewer than `min` ranks wait for more, unless told otherwise: restarts with back-off come
/// within that.
const DEFAULT_WAIT_FOR_MIN: Duration = Duration::from_secs(60);

/// What a rank knows of an elastic job before it joins.
///
/// ```
/// use everburn_collectives::elastic::ElasticOptions;
///
/// let options = ElasticOptions::new((2, 4), 3, 1);
/// assert_eq!((options.min, options.max), (2, 4));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElasticOptions {
    /// With fewer ranks than that nobody trains; at least 1.
    pub min: usize,
    /// How many slots there are.
    pub max: usize,
    /// This process's slot, below `max`.
    pub slot: usize,
    /// Which process of its slot this is; 1 for the first.
    pub incarnation: u64,
    /// The number of this process's machine.
    pub node: usize,
    /// How long those who are expected have to come once the group is known to be broken.
    pub patience: Duration,
    /// How long fewer than `min` ranks wait for others; in the first round, how long all who are there wait
    /// for those who are not.
    pub wait_for_min: Duration,
}

impl ElasticOptions {
    /// Process `incarnation` of `slot` in a job of `(min, max)` ranks, on machine 0: 10 s of patience, 60 s for
    /// `min` ranks to come.
    #[must_use]
    pub fn new((min, max): (usize, usize), slot: usize, incarnation: u64) -> Self {
        Self {
            min,
            max,
            slot,
            incarnation,
            node: 0,
            patience: DEFAULT_PATIENCE,
            wait_for_min: DEFAULT_WAIT_FOR_MIN,
        }
    }

    /// What makes no sense in these options, if anything does.
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
                "there can be no job of {min} to {max} ranks: at least 1, and no more than the slots"
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
