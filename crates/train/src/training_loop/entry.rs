//! What ranks exchange as they enter a group of an elastic job, in one collective, and what follows from it on all of them.

use everburn_distributed::{GradientBackend, first_of_majority};
use serde::{Deserialize, Serialize};

/// What a rank brings into a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The hash of what must be the same on every rank.
    pub(super) agreement: [u8; 32],
    /// How far it has come, in the order in which ranks compare it: whether it remembers anything, its step and epoch, and
    /// whether all steps of that are made.
    pub(super) position: (bool, usize, usize, bool),
    /// The hash of its trained parameters, where these are compared and it remembers any.
    pub(super) parameters: Option<[u8; 32]>,
    /// Whether it has set a round aside.
    pub(super) has_round: bool,
    /// The backend that it wants, if tensors go through host memory wherever all ranks want that one.
    pub(super) host_only: Option<GradientBackend>,
    /// The names of the metrics that it reports, once its ranks have agreed on them.
    pub(super) metrics: Option<Vec<String>>,
}

/// What follows from the entries of all ranks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntryPlan {
    /// All ranks run the same.
    pub(super) agrees: bool,
    /// Some rank remembers something.
    pub(super) any_has_entered: bool,
    /// The ranks that have come furthest.
    pub(super) furthest: Vec<usize>,
    /// The first of the majority of these, by their parameters.
    pub(super) trusted: Option<usize>,
    /// The others, which are given the state of one of those.
    pub(super) takers: Vec<usize>,
    /// The parameters of the ranks that have come furthest are not the same.
    pub(super) differs: bool,
    /// Which of these have set a round aside.
    pub(super) with_round: Vec<usize>,
    /// All ranks exchange tensors through host memory, whatever devices they have.
    pub(super) is_host_only: bool,
    /// The metrics on which the ranks that have come furthest agree.
    pub(super) metrics: Option<Vec<String>>,
}

impl EntryPlan {
    /// Of the entries of all ranks, in rank order.
    pub(super) fn of(entries: &[Entry]) -> Self {
        let position = entries.iter().map(|entry| entry.position).max();
        let position = position.unwrap_or_default();
        let (furthest, takers): (Vec<_>, Vec<_>) =
            (0..entries.len()).partition(|rank| entries[*rank].position == position);
        let first = furthest.first().map(|rank| &entries[*rank]);
        let any =
            |differs: &dyn Fn(&Entry) -> bool| furthest.iter().any(|rank| differs(&entries[*rank]));
        let has_round = |rank: &usize| entries[*rank].has_round;
        let with_round = furthest.iter().copied().filter(has_round).collect();
        let parameters = furthest.iter().map(|rank| entries[*rank].parameters);
        let trusted = first_of_majority(&parameters.collect::<Vec<_>>());
        let host_only = entries.first().and_then(|entry| entry.host_only);
        let agreed = first.and_then(|first| first.metrics.clone());
        let is_agreed = !any(&|entry| entry.metrics != agreed);
        Self {
            agrees: entries
                .iter()
                .all(|entry| entry.agreement == entries[0].agreement),
            any_has_entered: position.0,
            differs: any(&|entry| first.is_some_and(|first| first.parameters != entry.parameters)),
            is_host_only: host_only.is_some()
                && entries.iter().all(|entry| entry.host_only == host_only),
            metrics: agreed.filter(|_| is_agreed),
            trusted: trusted.map(|place| furthest[place]),
            with_round,
            furthest,
            takers,
        }
    }

    /// The rank whose state the takers are given. Without a majority any of them would do, as the training then ends.
    pub(super) fn source(&self) -> usize {
        self.trusted.unwrap_or(self.furthest[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that has made `step` steps, or has just been started.
    fn rank(step: Option<usize>) -> Entry {
        Entry {
            position: (step.is_some(), step.unwrap_or(0), 0, false),
            parameters: step.map(|step| [step as u8; 32]),
            host_only: Some(GradientBackend::Auto),
            metrics: step.map(|_| vec!["accuracy".to_owned()]),
            ..Entry::default()
        }
    }

    #[test]
    fn ranks_that_have_made_fewer_steps_take_the_state_of_the_others() {
        let plan = EntryPlan::of(&[rank(Some(7)), rank(None), rank(Some(8)), rank(Some(8))]);
        assert!(plan.agrees && plan.any_has_entered && plan.is_host_only);
        assert_eq!((plan.furthest, plan.takers), (vec![2, 3], vec![0, 1]));
        assert!(!plan.differs, "others are given the parameters");
        assert_eq!(plan.metrics, Some(vec!["accuracy".to_owned()]));
    }

    #[test]
    fn the_state_is_that_of_the_majority_of_the_ranks_that_have_come_furthest() {
        let with = |parameters| Entry {
            parameters: Some([parameters; 32]),
            ..rank(Some(8))
        };
        let of = |entries: &[Entry]| {
            let plan = EntryPlan::of(entries);
            (plan.source(), plan.trusted, plan.differs)
        };
        let alike = [rank(None), rank(Some(8)), rank(Some(8))];
        assert_eq!(of(&alike), (1, Some(1), false));
        let first_differs = [with(1), rank(None), with(2), with(2), rank(None)];
        assert_eq!(of(&first_differs), (2, Some(2), true));
        // A rank that is given one of two states makes no majority of it.
        let no_majority = [rank(None), with(1), with(2)];
        assert_eq!(of(&no_majority), (1, None, true));
        let not_compared = Entry {
            parameters: None,
            ..rank(Some(8))
        };
        let not_compared = [rank(None), not_compared.clone(), not_compared];
        assert_eq!(of(&not_compared), (1, Some(1), false));
    }

    #[test]
    fn ranks_that_have_just_been_started_have_nothing_to_take() {
        let plan = EntryPlan::of(&[rank(None), rank(None)]);
        assert!(!plan.any_has_entered && plan.takers.is_empty());
        assert!(!plan.differs && plan.with_round.is_empty());
        assert_eq!(plan.metrics, None);
    }

    #[test]
    fn a_round_that_was_set_aside_counts_if_its_rank_has_come_furthest() {
        let with_round = |step| Entry {
            has_round: true,
            ..rank(Some(step))
        };
        let of = |step| EntryPlan::of(&[rank(Some(8)), with_round(step)]).with_round;
        assert_eq!([8, 7].map(of), [vec![1], vec![]]);
    }

    #[test]
    fn every_difference_is_seen_on_all_ranks() {
        let changed = |change: &dyn Fn(&mut Entry)| {
            let mut entries = [rank(Some(8)), rank(Some(8)), rank(None)];
            change(&mut entries[1]);
            EntryPlan::of(&entries)
        };
        assert!(!changed(&|entry| entry.agreement[0] = 1).agrees);
        assert!(changed(&|entry| entry.parameters = Some([1; 32])).differs);
        assert!(!changed(&|entry| entry.host_only = None).is_host_only);
        let host = Some(GradientBackend::Host);
        assert!(!changed(&|entry| entry.host_only = host).is_host_only);
        assert_eq!(changed(&|entry| entry.metrics = None).metrics, None);
    }
}
