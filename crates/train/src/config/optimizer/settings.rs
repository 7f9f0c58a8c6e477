//! The settings of each optimizer, and their bounds.

use toml::{Table, Value};

use super::{OptimizerConfig, OptimizerKind};
use crate::config::parameter_groups::ParameterGroup;
use crate::error::TrainError;

const COMMON: [&str; 5] = [
    "kind",
    "learning_rate",
    "weight_decay",
    "layer_decay",
    "groups",
];

/// Defaults that older configurations have for every optimizer, with or without such a setting. They are ignored.
const OLD_DEFAULTS: [(&str, f64); 3] = [("momentum", 0.0), ("beta_2", 0.999), ("epsilon", 1e-8)];

#[derive(Clone, Copy)]
enum Bounds {
    /// At least 0 and below 1.
    Share,
    Positive,
    NotNegative,
    Negative,
    Any,
}

impl Bounds {
    fn of(setting: &str) -> Self {
        match setting {
            "momentum" | "dampening" | "beta_1" | "beta_2" | "beta_3" | "alpha" => Self::Share,
            "learning_rate"
            | "layer_decay"
            | "epsilon"
            | "epsilon_1"
            | "epsilon_2"
            | "clip_threshold"
            | "newton_schulz_steps" => Self::Positive,
            "weight_decay" | "learning_rate_decay" => Self::NotNegative,
            "decay_rate" => Self::Negative,
            _ => Self::Any,
        }
    }

    fn hold(self, number: f64) -> bool {
        // Burn computes with most of them as `f32`.
        let single = number as f32;
        single.is_finite()
            && match self {
                Self::Share => (0.0..1.0).contains(&single),
                Self::Positive => single > 0.0,
                Self::NotNegative => number >= 0.0,
                Self::Negative => number < 0.0,
                Self::Any => true,
            }
    }

    fn demand(self, number: f64) -> String {
        if number.is_finite() && !(number as f32).is_finite() {
            return format!(
                "is {number:e}, which is too large for f32 (at most {:.1e})",
                f32::MAX
            );
        }
        format!("{}, not {number}", self.range())
    }

    const fn range(self) -> &'static str {
        match self {
            Self::Share => "must be at least 0 and below 1",
            Self::Positive => "must be a positive number",
            Self::NotNegative => "must not be negative",
            Self::Negative => "must be a negative number",
            Self::Any => "must be a number",
        }
    }
}

impl OptimizerConfig {
    /// Refuses numbers out of range, and settings of other optimizers.
    ///
    /// # Errors
    /// [`TrainError::Config`] naming the setting.
    pub fn check(&self) -> Result<(), TrainError> {
        let refuse = |what: String| {
            Err(TrainError::Config(format!(
                "{what}, in [training.optimizer]"
            )))
        };
        let given = Table::try_from(self);
        let given = given.map_err(|error| TrainError::Config(error.to_string()))?;
        for (setting, value) in &given {
            let number = match value {
                Value::Float(number) => Some(*number),
                Value::Integer(number) => Some(*number as f64),
                _ => None,
            };
            let bounds = Bounds::of(setting);
            if let Some(number) = number.filter(|number| !bounds.hold(*number)) {
                let name = match setting.as_str() {
                    "learning_rate" => "the learning rate",
                    "weight_decay" => "the weight decay",
                    "momentum" => "the momentum",
                    other => &format!("`{other}`"),
                };
                return refuse(format!("{name} {}", bounds.demand(number)));
            }
            let is_old_default = OLD_DEFAULTS
                .iter()
                .any(|(name, usual)| name == setting && number == Some(*usual));
            if !self.kind.has(setting) && !is_old_default {
                return refuse(self.not_a_setting(setting));
            }
        }
        if self.kind == OptimizerKind::Sgd && self.momentum.unwrap_or_default() == 0.0 {
            let of_momentum = [
                ("dampening", self.dampening.is_some()),
                ("nesterov", self.nesterov.is_some()),
            ];
            if let Some((setting, _)) = of_momentum.into_iter().find(|(_, given)| *given) {
                return refuse(format!(
                    "`{setting}` is about the momentum of sgd, and there is none: add `training.optimizer.momentum = 0.9`, for example"
                ));
            }
        }
        self.groups.iter().try_for_each(ParameterGroup::check)
    }

    /// The settings that say something and are not of the learning rate: a task's own optimizer does not read them.
    pub(crate) fn unused_by_own(&self) -> Vec<String> {
        let rates_alone = Self {
            learning_rate: self.learning_rate,
            layer_decay: self.layer_decay,
            groups: self.groups.clone(),
            ..Self::default()
        };
        let [given, usual] = [self, &rates_alone].map(|it| Table::try_from(it).unwrap_or_default());
        let unused = given
            .iter()
            .filter(|(name, value)| usual.get(*name) != Some(*value));
        unused
            .map(|(name, value)| format!("`{name} = {value}`"))
            .collect()
    }

    fn not_a_setting(&self, setting: &str) -> String {
        let kind = self.kind;
        let others = OptimizerKind::list(|other| other.has(setting));
        let own = kind.settings().join(", ");
        format!(
            "`{setting}` is no setting of {kind} (it is one of {others}): {kind} has {own}, learning_rate and \
             weight_decay"
        )
    }
}

impl OptimizerKind {
    /// Whether it has this setting.
    pub fn has(self, setting: &str) -> bool {
        COMMON.contains(&setting) || self.settings().contains(&setting)
    }
}
