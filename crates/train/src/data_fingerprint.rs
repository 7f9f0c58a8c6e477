//! Fingerprints of data.

use serde::{Deserialize, Serialize};

/// Texts that differ for other data, such as hashes: of all data, and of the sets that have files of their own.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::DataFingerprint;
///
/// let data = |train: &str, test: &str| DataFingerprint {
///     all: format!("{train} {test}"),
///     train: train.into(),
///     test: test.into(),
/// };
/// assert!(data("a", "t").learns_as(&data("a", "u")));
/// assert!(!data("a", "t").learns_as(&data("b", "t")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DataFingerprint {
    /// Of all data: ranks whose data differ are refused. May be empty.
    pub all: String,
    /// Of the set to learn from alone. May be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub train: String,
    /// Of the test set alone; empty where that has no files of its own, and changes with the samples to learn from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub test: String,
}

impl DataFingerprint {
    /// Whether it is not known which data these are.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether these are known to be the `other` data, or have the same set to learn from.
    pub fn learns_as(&self, other: &Self) -> bool {
        let is_same = |own: &str, other: &str| !own.is_empty() && own == other;
        is_same(&self.all, &other.all) || is_same(&self.train, &other.train)
    }
}
