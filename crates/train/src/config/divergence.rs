//! What becomes of a rank whose parameters are no longer those of the others.

use serde::{Deserialize, Serialize};

/// What to do when the replicas are found to differ.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::OnDivergence;
///
/// assert_eq!(OnDivergence::default(), OnDivergence::Stop);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDivergence {
    /// The run ends: steps since the last comparison may have learnt from wrong gradients.
    #[default]
    Stop,
    /// The ranks that differ from most others are given the state of those, and the training continues.
    /// Where there is no majority, it ends.
    Repair,
}
