//! What keeps a rank from joining the others.

use everburn_collectives::group::CollectiveError;
use everburn_train::TrainError;

use super::CliError;

impl CliError {
    /// Whether this rank could not join the others, or they run something else: all of them may say the same.
    pub(crate) fn is_of_joining(&self) -> bool {
        use CollectiveError::{Incomplete, Store, WorldSize};
        match self {
            Self::Rendezvous(_) | Self::Train(TrainError::DifferentRuns { .. }) => true,
            Self::Collective(error) => {
                matches!(error, Incomplete { .. } | WorldSize { .. } | Store(_))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use everburn_collectives::rendezvous::{MissingRanks, RendezvousError};

    use super::*;

    #[test]
    fn an_error_of_joining_is_told_from_what_happens_later() {
        let missing = MissingRanks {
            missing: vec![1],
            world_size: 2,
            ranks_per_machine: None,
            waited: Duration::from_secs(5),
        };
        let not_all = CliError::Rendezvous(RendezvousError::NotAllJoined(missing));
        let other_size = CliError::Collective(CollectiveError::WorldSize {
            rank: 0,
            peer: 1,
            ours: 2,
            theirs: 3,
        });
        let other_run = CliError::Train(TrainError::DifferentRuns {
            rank: 1,
            ours: "seed = 0".to_owned(),
            theirs: "seed = 1".to_owned(),
        });
        assert!(
            [not_all, other_size, other_run]
                .iter()
                .all(CliError::is_of_joining)
        );
        let later = CollectiveError::Destroyed {
            rank: 0,
            operation: "barrier".to_owned(),
        };
        assert!(!CliError::Collective(later).is_of_joining());
        assert!(!CliError::usage("no such flag").is_of_joining());
    }
}
