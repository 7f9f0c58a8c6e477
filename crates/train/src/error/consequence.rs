//! What follows from an error for the other ranks, and for another start.

use everburn_collectives::group::{CollectiveError, ProcessGroup};
use everburn_distributed::DdpError;

use super::TrainError;

impl TrainError {
    /// Whether the ranks that are left can continue: others were lost, do not answer or gave up.
    pub(crate) fn may_be_outlived(&self) -> bool {
        let collective = match self {
            Self::Collective(error) | Self::Ddp(DdpError::Collective(error)) => error,
            Self::Ddp(DdpError::Module(everburn_nn::SyncError::Collective { .. })) => return true,
            Self::SomebodyWaits => return true,
            _ => return false,
        };
        matches!(
            collective.root_cause(),
            CollectiveError::PeerLost { .. }
                | CollectiveError::Aborted { .. }
                | CollectiveError::Timeout { .. }
        )
    }

    /// Whether a run that is started again comes to the same error.
    pub fn happens_again(&self) -> bool {
        match self {
            Self::Diverged { .. }
            | Self::RestoredOthers { .. }
            | Self::Label(_)
            | Self::InputNotFinite(_)
            | Self::PredictionNotFinite { .. }
            | Self::LossNotFinite { .. }
            | Self::LossScaleTooLow { .. }
            | Self::DifferentRuns { .. }
            | Self::DifferentMetrics { .. }
            | Self::MetricsChanged { .. }
            | Self::UnknownMetric { .. }
            | Self::Hook { .. }
            | Self::TooSlow(_)
            | Self::Ddp(
                DdpError::Diverged { .. }
                | DdpError::DifferentModels { .. }
                | DdpError::Object { .. },
            ) => true,
            _ => self.collective().is_some_and(|error| {
                matches!(error.root_cause(), CollectiveError::Mismatch { .. })
            }),
        }
    }

    /// Whether this rank gave up because another one did not answer within the deadline.
    pub fn is_timeout(&self) -> bool {
        self.collective().is_some_and(CollectiveError::is_timeout)
    }

    /// Gives `group` up because of this error, so that the other ranks fail of it too, at once.
    pub(crate) fn abort(&self, group: &ProcessGroup) {
        match self.collective() {
            Some(error) => group.abort_because(error, error.to_string()),
            None => group.abort(self.to_string()),
        }
    }

    /// The error of the process group behind this one.
    pub fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Collective(error) | Self::Ddp(DdpError::Collective(error)) => Some(error),
            _ => None,
        }
    }

    /// Whether this rank failed only because another one did.
    pub fn is_secondary(&self) -> bool {
        match self {
            Self::Elastic(_) | Self::NotMember(_) => true,
            Self::Collective(error) | Self::Ddp(DdpError::Collective(error)) => {
                error.is_secondary()
            }
            _ => false,
        }
    }
}
