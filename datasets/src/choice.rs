//! Which data set is wanted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The data set that a run asks for.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::DataChoice;
///
/// assert_eq!("fashion-mnist".parse(), Ok(DataChoice::FashionMnist));
/// assert_eq!(DataChoice::Auto.to_string(), "auto");
/// let error = "minst".parse::<DataChoice>().unwrap_err().to_string();
/// assert!(error.contains("did you mean 'mnist'?"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataChoice {
    /// Of images, MNIST where it is found or can be fetched, else the synthetic digits; of texts,
    /// tinyshakespeare where it is found, else the embedded one.
    #[default]
    Auto,
    /// MNIST, or an error.
    Mnist,
    /// Fashion-MNIST, or an error.
    FashionMnist,
    /// The synthetic digits: no file, no network.
    Synthetic,
    /// CIFAR-10, or an error.
    Cifar10,
    /// CIFAR-100, or an error.
    Cifar100,
    /// The text of tinyshakespeare, or an error.
    #[serde(rename = "tinyshakespeare")]
    TinyShakespeare,
    /// A text that is part of the program: no file, no network.
    Embedded,
}

/// A name that is none of [`DataChoice::ALL`].
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// let error = "squad".parse::<everburn::datasets::DataChoice>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "unknown data set 'squad': expected auto, mnist, fashion-mnist, synthetic, \
///      cifar10, cifar100, tinyshakespeare or embedded"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown data set '{given}': expected auto, mnist, fashion-mnist, synthetic, cifar10, cifar100, tinyshakespeare or embedded{}",
    nearest.map(|choice| format!("; did you mean '{choice}'?")).unwrap_or_default())]
pub struct UnknownChoice {
    /// What was written.
    pub given: String,
    /// What was probably meant.
    pub nearest: Option<DataChoice>,
}

impl DataChoice {
    /// Every choice, in the order in which help texts show them.
    pub const ALL: [Self; 8] = [
        Self::Auto,
        Self::Mnist,
        Self::FashionMnist,
        Self::Synthetic,
        Self::Cifar10,
        Self::Cifar100,
        Self::TinyShakespeare,
        Self::Embedded,
    ];

    /// The name as written on the command line and in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mnist => "mnist",
            Self::FashionMnist => "fashion-mnist",
            Self::Synthetic => "synthetic",
            Self::Cifar10 => "cifar10",
            Self::Cifar100 => "cifar100",
            Self::TinyShakespeare => "tinyshakespeare",
            Self::Embedded => "embedded",
        }
    }
}

impl fmt::Display for DataChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad` and not `write_str`: help texts align names by width.
        f.pad(self.name())
    }
}

impl FromStr for DataChoice {
    type Err = UnknownChoice;

    fn from_str(given: &str) -> Result<Self, UnknownChoice> {
        if let Some(choice) = Self::ALL.into_iter().find(|choice| choice.name() == given) {
            return Ok(choice);
        }
        let written = given.to_ascii_lowercase().replace('_', "-");
        let nearest = Self::ALL
            .into_iter()
            .map(|choice| (strsim::jaro_winkler(&written, choice.name()), choice))
            .filter(|&(similarity, _)| similarity >= 0.75)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, choice)| choice);
        Err(UnknownChoice {
            given: given.to_owned(),
            nearest,
        })
    }
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn every_name_parses_to_itself_and_serializes_alike() {
        for choice in DataChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
            assert_eq!(
                serde_json::to_string(&choice).unwrap(),
                format!("\"{choice}\"")
            );
        }
    }

    #[test]
    fn a_misspelt_name_is_refused_with_the_list_and_the_nearest() {
        for (given, nearest) in [
            ("MNIST", "mnist"),
            ("fashion_mnist", "fashion-mnist"),
            ("sythetic", "synthetic"),
            ("tiny-shakespear", "tinyshakespeare"),
        ] {
            let error = given.parse::<DataChoice>().unwrap_err().to_string();
            error.assert_contains(["synthetic, cifar10, cifar100, tinyshakespeare or embedded"]);
            let end = format!("did you mean '{nearest}'?");
            assert!(error.ends_with(&end), "{error}");
        }
    }

    #[test]
    fn a_far_name_gets_no_suggestion() {
        for given in ["", "zzz"] {
            let error = given.parse::<DataChoice>().unwrap_err();
            assert_eq!(error.nearest, None, "{error}");
        }
    }
}
