//! The rule by which gradients change parameters, and its numbers.

use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, ModuleOptimizer, SgdConfig};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// The rule by which gradients change parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Kingma and Ba 2015.
    #[default]
    Adam,
    /// Loshchilov and Hutter 2019: weight decay apart from the gradient.
    AdamW,
    /// Stochastic gradient descent, with momentum if it is not zero.
    Sgd,
}

impl OptimizerKind {
    /// Whether it treats each number of a parameter by itself, with a state of one number for each: then ranks
    /// can share a parameter's update. Not so what looks at a parameter's rows, or norm.
    pub(crate) const fn is_elementwise(self) -> bool {
        match self {
            Self::Adam | Self::AdamW | Self::Sgd => true,
        }
    }
}

/// An optimizer and its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// The rule.
    pub kind: OptimizerKind,
    /// The learning rate at the start.
    pub learning_rate: f64,
    /// The share of the last update that SGD keeps; 0 for none.
    pub momentum: f64,
    /// How strongly parameters are pulled to zero.
    pub weight_decay: f64,
    /// The share of the last second moment of gradients that Adam and AdamW keep: less of it follows
    /// gradients that change quickly, as those of a short run do.
    pub beta_2: f64,
    /// What Adam and AdamW add to the root of the second moment.
    pub epsilon: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Adam,
            learning_rate: 1e-3,
            momentum: 0.0,
            weight_decay: 0.0,
            beta_2: 0.999,
            epsilon: 1e-8,
        }
    }
}

impl OptimizerConfig {
    /// Burn's optimizer of this configuration.
    ///
    /// # Errors
    /// [`TrainError::Config`] if a number is out of its range.
    pub fn init(&self) -> Result<ModuleOptimizer, TrainError> {
        let refuse = |what: &str| {
            Err(TrainError::Config(format!(
                "{what}, in [training.optimizer]"
            )))
        };
        if !(self.learning_rate.is_finite() && self.learning_rate > 0.0) {
            return refuse("the learning rate must be a positive number");
        }
        if !(0.0..1.0).contains(&self.momentum) {
            return refuse("the momentum must be at least 0 and below 1");
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            return refuse("the weight decay must not be negative");
        }
        if self.momentum != 0.0 && self.kind != OptimizerKind::Sgd {
            return refuse("momentum goes with --optimizer sgd only");
        }
        if !(0.0..1.0).contains(&self.beta_2) {
            return refuse("beta_2 must be at least 0 and below 1");
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return refuse("epsilon must be a positive number");
        }
        let decay =
            (self.weight_decay > 0.0).then(|| WeightDecayConfig::new(self.weight_decay as f32));
        Ok(match self.kind {
            OptimizerKind::Adam => AdamConfig::new()
                .with_weight_decay(decay)
                .with_beta_2(self.beta_2 as f32)
                .with_epsilon(self.epsilon as f32)
                .init(),
            OptimizerKind::AdamW => AdamWConfig::new()
                .with_weight_decay(self.weight_decay as f32)
                .with_beta_2(self.beta_2 as f32)
                .with_epsilon(self.epsilon as f32)
                .init(),
            OptimizerKind::Sgd => SgdConfig::new()
                .with_weight_decay(decay)
                .with_momentum((self.momentum > 0.0).then(|| {
                    MomentumConfig::new()
                        .with_momentum(self.momentum)
                        .with_dampening(0.0)
                }))
                .init(),
        })
    }
}
