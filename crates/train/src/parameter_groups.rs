//! Parameters that learn otherwise than the rest.

mod parameters;
mod pattern;

use serde::{Deserialize, Serialize};

pub(crate) use self::parameters::{Parameter, Parameters};
pub use self::pattern::Patterns;
use crate::error::TrainError;

/// Parameters, by their paths, that learn otherwise than the rest. Of several groups that a parameter is in, the last one
/// counts that says something of it.
///
/// ```
/// use everburn_train::OptimizerConfig;
///
/// let text = r#"
///     kind = "adam-w"
///     weight_decay = 0.1
///
///     [[groups]] # a new head learns faster
///     match = "head.*"
///     learning_rate_factor = 10.0
///
///     [[groups]] # biases and norms are not pulled to zero
///     match = ["*.bias", "*norm*"]
///     weight_decay = 0.0
///
///     [[groups]] # what was learnt before stays
///     match = "backbone.*"
///     frozen = true
/// "#;
/// let config = toml::from_str::<OptimizerConfig>(text).unwrap();
/// assert!(config.groups[1].matches.fit("block.2.norm.gamma"));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// The paths of its parameters.
    #[serde(rename = "match")]
    pub matches: Patterns,
    /// How many times the learning rate of the rest they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate_factor: Option<f64>,
    /// How strongly they are pulled to zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Whether they stay as they are. A batch norm whose parts are all frozen takes its running statistics, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
}

impl ParameterGroup {
    /// Refuses a group that says nothing, or a number out of its range.
    pub(crate) fn check(&self) -> Result<(), TrainError> {
        let refuse = |what: &str| {
            Err(TrainError::Config(format!(
                "{what}, in the group `{}` of [[training.optimizer.groups]]",
                self.matches
            )))
        };
        if self.matches.is_empty() {
            return refuse("`match` names no parameters: give a path, as in match = \"head.*\"");
        }
        let factor = self.learning_rate_factor.unwrap_or(1.0);
        if !(factor.is_finite() && factor > 0.0) {
            return refuse(
                "`learning_rate_factor` must be a positive number; frozen = true keeps parameters as they are",
            );
        }
        let decay = self.weight_decay.unwrap_or(0.0);
        if !(decay.is_finite() && decay >= 0.0) {
            return refuse("`weight_decay` must not be negative");
        }
        let silent = Self {
            matches: self.matches.clone(),
            ..Self::default()
        };
        if *self == silent {
            return refuse("nothing is said: give learning_rate_factor, weight_decay or frozen");
        }
        Ok(())
    }

    /// What tells one group from another; numbers as far as they survive a file.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("`{}`", self.matches);
        if let Some(factor) = self.learning_rate_factor {
            text.push_str(&format!(" at {} times the rate", factor as f32));
        }
        if let Some(decay) = self.weight_decay {
            text.push_str(&format!(" with decay {}", decay as f32));
        }
        if let Some(frozen) = self.frozen {
            text.push_str(if frozen { " frozen" } else { " not frozen" });
        }
        text
    }
}

#[cfg(test)]
mod tests;
