//! Patterns of parameter paths.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Patterns of parameter paths, of which one must match: a string or a list. `*` matches any characters, dots included.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Patterns;
///
/// let patterns = Patterns::from("*.norm*.bias");
/// assert!(patterns.fit("layers.3.norm_1.bias"));
/// assert!(!patterns.fit("layers.3.norm_1.bias.old") && !patterns.fit("norm.bias"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "OneOrSeveral", into = "OneOrSeveral")]
pub struct Patterns(Vec<String>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

impl From<OneOrSeveral> for Patterns {
    fn from(patterns: OneOrSeveral) -> Self {
        match patterns {
            OneOrSeveral::One(one) => Self(vec![one]),
            OneOrSeveral::Several(several) => Self(several),
        }
    }
}

impl From<Patterns> for OneOrSeveral {
    fn from(Patterns(mut patterns): Patterns) -> Self {
        match patterns.len() {
            1 => Self::One(patterns.remove(0)),
            _ => Self::Several(patterns),
        }
    }
}

impl From<&str> for Patterns {
    fn from(pattern: &str) -> Self {
        Self(vec![pattern.to_string()])
    }
}

impl From<Vec<String>> for Patterns {
    fn from(patterns: Vec<String>) -> Self {
        Self(patterns)
    }
}

impl fmt::Display for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl Patterns {
    /// Whether one of them matches `path`.
    pub fn fit(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| fits(pattern, path))
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.0.is_empty()
    }

    /// The patterns, one by one.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether there are none, or an empty one.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty() || self.0.iter().any(String::is_empty)
    }
}

/// Whether `pattern` matches all of `path`.
pub(super) fn fits(pattern: &str, path: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = path.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    // The earliest match of a middle part leaves the most for the rest.
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}
