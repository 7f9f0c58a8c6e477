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
#[serde(from = "Stored")]
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

/// As checkpoints have it: those of format 2 have a text of all data.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    All(String),
    Sets {
        all: String,
        #[serde(default)]
        train: String,
        #[serde(default)]
        test: String,
    },
}

impl From<Stored> for DataFingerprint {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::All(all) => Self {
                all,
                ..Self::default()
            },
            Stored::Sets { all, train, test } => Self { all, train, test },
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_older_checkpoint_is_that_of_all_data() {
        let read = |text: &str| serde_json::from_str::<DataFingerprint>(text).unwrap();
        let all = DataFingerprint {
            all: "a t".to_owned(),
            ..DataFingerprint::default()
        };
        assert_eq!(read("\"a t\""), all);
        assert_eq!(read(&serde_json::to_string(&all).unwrap()), all);
    }
}
