//! Errors of NCCL's groups for those who know the host's groups only.

use everburn_collectives::group::CollectiveError;

use super::error::NcclError;

impl From<&NcclError> for CollectiveError {
    /// The same for those who know the host's groups only: what ended is told alike.
    fn from(error: &NcclError) -> Self {
        match error.root_cause().clone() {
            NcclError::Timeout {
                rank,
                waiting_for,
                operation,
                sequence,
                step,
                waited,
                ..
            } => Self::Timeout {
                rank,
                waiting_for,
                operation,
                sequence,
                step,
                waited,
            },
            NcclError::PeerLost {
                rank,
                peer,
                operation,
                sequence,
                step,
                waited,
                cause,
            } => Self::PeerLost {
                rank,
                peer,
                operation,
                sequence,
                step,
                waited,
                cause,
            },
            NcclError::Aborted {
                rank,
                by,
                reason,
                operation,
                sequence,
                step,
                waited,
            } => Self::Aborted {
                rank,
                by,
                reason,
                operation,
                sequence,
                step,
                waited,
            },
            NcclError::Invalid {
                rank,
                operation,
                reason,
            } => Self::Invalid {
                rank,
                operation,
                reason,
            },
            NcclError::Left { rank, operation } => Self::Destroyed { rank, operation },
            NcclError::Store(error) => Self::Store(error),
            other => Self::System {
                rank: other.rank().unwrap_or_default(),
                action: "exchange by NCCL".to_owned(),
                reason: other.to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn timeout() -> NcclError {
        NcclError::Timeout {
            rank: 0,
            waiting_for: vec![3],
            operation: "all_reduce(f32[21840], sum)".into(),
            sequence: 1020,
            step: 340,
            waited: Duration::from_secs(300),
            found: "rank 3 has issued 1018 collectives".into(),
        }
    }

    #[test]
    fn the_hosts_groups_are_told_the_same() {
        let poisoned = NcclError::Poisoned {
            rank: 0,
            operation: "broadcast(u8[1], root 0)".into(),
            first: Arc::new(timeout()),
        };
        let told = CollectiveError::from(&poisoned);
        assert!(
            matches!(&told, CollectiveError::Timeout { waiting_for, sequence: 1020, .. } if *waiting_for == [3]),
            "{told}"
        );
        let buffer = NcclError::Buffer {
            reason: "too long".into(),
        };
        assert!(matches!(
            CollectiveError::from(&buffer),
            CollectiveError::System { .. }
        ));
    }
}
