//! Optimizers by name, with their settings.

mod adam;
mod build;
mod kind;
mod settings;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use clap::Args;
use serde::{Deserialize, Serialize};

pub use self::kind::{MuonRate, OptimizerKind};
use crate::config::kebab;
use crate::config::parameter_groups::{ParameterGroup, Parameters};
use crate::error::TrainError;

/// An optimizer and its settings. Absent settings have the optimizer's default; settings of other optimizers are
/// refused.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{OptimizerConfig, OptimizerKind};
///
/// let text = "kind = 'lion'\nlearning_rate = 1e-4\nbeta_2 = 0.98";
/// let config = toml::from_str::<OptimizerConfig>(text).unwrap();
/// assert_eq!((config.kind, config.beta_2), (OptimizerKind::Lion, Some(0.98)));
/// config.check().unwrap();
///
/// let config = OptimizerConfig { momentum: Some(0.9), ..config };
/// let error = config.check().unwrap_err().to_string();
/// assert!(error.contains("`momentum` is no setting of lion"), "{error}");
/// ```
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Training")]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// adam, adam-w, sgd, adagrad, adafactor, adan, lamb, lion, muon or rmsprop [default: adam]. For its other settings
    /// use --set, as in --set optimizer.beta_1=0.95.
    #[arg(long = "optimizer", value_parser = kebab::<OptimizerKind>)]
    pub kind: OptimizerKind,
    /// The learning rate at the start [default: 0.001].
    #[arg(long, allow_negative_numbers = true)]
    pub learning_rate: f64,
    /// The weight decay [default: 0].
    #[arg(long, allow_negative_numbers = true)]
    pub weight_decay: f64,
    /// The momentum of sgd, rmsprop and muon [default: 0; rmsprop 0.9, muon 0.95].
    #[arg(long, allow_negative_numbers = true)]
    pub momentum: Option<f64>,
    /// The share of a gradient that does not enter the momentum of `sgd` and `muon`; 0 if absent.
    #[arg(skip)]
    pub dampening: Option<f64>,
    /// Whether `sgd` (no, if absent) and `muon` (yes) look ahead along the momentum (Sutskever et al. 2013).
    #[arg(skip)]
    pub nesterov: Option<bool>,
    /// The share of the last first moment of gradients that is kept: of `adam`, `adam-w`, `lamb` and `lion` (0.9 if
    /// absent) and `adan` (0.98).
    #[arg(skip)]
    pub beta_1: Option<f64>,
    /// The share of the last second moment that is kept: less of it follows gradients that change quickly, as those of a
    /// short run do. Of `adam`, `adam-w` and `lamb` (0.999 if absent), `lion` (0.99), and of the differences of `adan`
    /// (0.92).
    #[arg(skip)]
    pub beta_2: Option<f64>,
    /// The share of the last second moment that `adan` keeps; 0.99 if absent.
    #[arg(skip)]
    pub beta_3: Option<f64>,
    /// What is added to the root of the second moment: of `adam`, `adam-w` and `adan` (1e-8 if absent), `lamb` (1e-6),
    /// `adagrad` and `rmsprop` (1e-5); to the norm of `muon` (1e-7).
    #[arg(skip)]
    pub epsilon: Option<f64>,
    /// Whether `adam` and `adam-w` divide by the largest second moment so far (Reddi et al. 2018).
    #[arg(skip)]
    pub amsgrad: Option<bool>,
    /// Whether `adam-w` decays only what its update moves towards zero too.
    #[arg(skip)]
    pub cautious_weight_decay: Option<bool>,
    /// By how much the learning rate of `adagrad` falls with each step; 0 if absent.
    #[arg(skip)]
    pub learning_rate_decay: Option<f64>,
    /// The share of the last second moment that `rmsprop` keeps; 0.99 if absent.
    #[arg(skip)]
    pub alpha: Option<f64>,
    /// Whether `rmsprop` takes the mean out of the second moment.
    #[arg(skip)]
    pub centered: Option<bool>,
    /// Whether `adan` decays weights as `adam-w` does, and not by a proximal step.
    #[arg(skip)]
    pub no_prox: Option<bool>,
    /// Whether `lamb` scales each parameter's update by the parameter's norm; yes, if absent.
    #[arg(skip)]
    pub trust_ratio: Option<bool>,
    /// What `adafactor` adds to squared gradients; 1e-30 if absent.
    #[arg(skip)]
    pub epsilon_1: Option<f64>,
    /// The least root mean square that `adafactor` takes a parameter to have; 1e-3 if absent.
    #[arg(skip)]
    pub epsilon_2: Option<f64>,
    /// The largest root mean square of an update of `adafactor`; 1 if absent.
    #[arg(skip)]
    pub clip_threshold: Option<f64>,
    /// The exponent by which `adafactor` forgets second moments; -0.8 if absent.
    #[arg(skip)]
    pub decay_rate: Option<f64>,
    /// Whether the learning rate of `adafactor` is at most the inverse root of the step; yes, if absent.
    #[arg(skip)]
    pub relative_step: Option<bool>,
    /// Whether `adafactor` scales a step by the parameter's root mean square; yes, if absent.
    #[arg(skip)]
    pub scale_parameter: Option<bool>,
    /// In how many steps `muon` makes an update orthogonal; 5 if absent.
    #[arg(skip)]
    pub newton_schulz_steps: Option<usize>,
    /// How the learning rate of `muon` follows a matrix's shape.
    #[arg(skip)]
    pub adjust_learning_rate: Option<MuonRate>,
    /// The learning rate of each layer is FACTOR times that of the next layer, as in 0.8 [default: the same for all].
    #[arg(long, value_name = "FACTOR", help_heading = "Fine-tuning")]
    pub layer_decay: Option<f64>,
    /// Groups of parameters with settings of their own.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ParameterGroup>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Adam,
            learning_rate: 1e-3,
            weight_decay: 0.0,
            momentum: None,
            dampening: None,
            nesterov: None,
            beta_1: None,
            beta_2: None,
            beta_3: None,
            epsilon: None,
            amsgrad: None,
            cautious_weight_decay: None,
            learning_rate_decay: None,
            alpha: None,
            centered: None,
            no_prox: None,
            trust_ratio: None,
            epsilon_1: None,
            epsilon_2: None,
            clip_threshold: None,
            decay_rate: None,
            relative_step: None,
            scale_parameter: None,
            newton_schulz_steps: None,
            adjust_learning_rate: None,
            layer_decay: None,
            groups: Vec::new(),
        }
    }
}

impl OptimizerConfig {
    /// Burn's optimizer of this configuration, for the parameters of `model`. Lazy parameters stay uninitialised.
    ///
    /// # Errors
    /// [`TrainError::Config`] if a number is out of range, a setting is another optimizer's, or a group's pattern
    /// matches no parameter.
    pub fn init<M: Module>(&self, model: &M) -> Result<ModuleOptimizer, TrainError> {
        self.check()?;
        Ok(self.build(&self.parameters(model)?))
    }

    /// The parameters of `model` with the settings of their groups and layers.
    pub(crate) fn parameters<M: Module>(&self, model: &M) -> Result<Parameters, TrainError> {
        Parameters::of(model, &self.groups)?.decayed_by_layer(self.layer_decay)
    }

    /// Whether parameters differ in their settings.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty() || self.layer_decay.is_some()
    }

    /// The groups as text, for their comparison.
    pub(crate) fn describe_groups(&self) -> String {
        let decay = self
            .layer_decay
            .map(|decay| format!("rates by layer fall by {}", decay as f32));
        let groups = self.groups.iter().map(ParameterGroup::describe);
        groups.chain(decay).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests;
