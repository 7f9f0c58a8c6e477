//! Groups of parameters with settings of their own.

mod layer_decay;
mod parameters;
mod pattern;

use serde::{Deserialize, Serialize};

pub(crate) use self::parameters::{Parameter, Parameters};
pub use self::pattern::Patterns;
use crate::error::TrainError;

/// Parameters, by path, with optimizer settings of their own. Where groups overlap, the last one with a setting counts.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::OptimizerConfig;
///
/// let text = r#"
///     kind = "adam-w"
///     weight_decay = 0.1
///
///     [[groups]] # a new head learns faster
///     match = "head.*"
///     learning_rate_factor = 10.0
///
///     [[groups]] # no weight decay for biases and norms
///     match = ["*.bias", "*norm*"]
///     weight_decay = 0.0
///
///     [[groups]] # the pretrained part stays as it is
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
    /// The factor of the learning rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate_factor: Option<f64>,
    /// The weight decay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Whether they are frozen. A batch norm with all its parameters frozen keeps its running statistics, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<bool>,
}

impl ParameterGroup {
    /// Refuses a group without settings, and numbers out of range.
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
        let empty = Self {
            matches: self.matches.clone(),
            ..Self::default()
        };
        if *self == empty {
            return refuse("no setting: give learning_rate_factor, weight_decay or frozen");
        }
        Ok(())
    }

    /// The group as text, for the comparison of groups; numbers in f32, as files keep them.
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
