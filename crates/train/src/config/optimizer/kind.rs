//! Optimizers by name.

use std::fmt;

use burn::optim::AdjustLrFn;
use serde::{Deserialize, Serialize};

/// Burn's optimizers, except L-BFGS, which computes the loss several times per step.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{OptimizerConfig, OptimizerKind};
///
/// let config = OptimizerConfig { kind: OptimizerKind::AdamW, ..OptimizerConfig::default() };
/// assert_ne!(config.kind, OptimizerKind::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Kingma and Ba 2015.
    #[default]
    Adam,
    /// Loshchilov and Hutter 2019: weight decay apart from the gradient.
    #[serde(alias = "adamw")]
    AdamW,
    /// Stochastic gradient descent, with momentum if it is not zero.
    Sgd,
    /// Duchi et al. 2011: the sum of all squared gradients.
    #[serde(rename = "adagrad", alias = "ada-grad")]
    AdaGrad,
    /// Shazeer and Stern 2018: second moments of rows and columns.
    Adafactor,
    /// Xie et al. 2022: Nesterov's momentum, adaptive.
    Adan,
    /// You et al. 2020: Adam with a rate for each parameter, by its norm.
    Lamb,
    /// Chen et al. 2023: the sign of a momentum.
    Lion,
    /// Jordan et al. 2024: orthogonal updates of matrices. AdamW updates all other parameters.
    Muon,
    /// Tieleman and Hinton 2012: gradients by the root of their second moment.
    #[serde(rename = "rmsprop", alias = "rms-prop")]
    RmsProp,
}

impl OptimizerKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Adam,
        Self::AdamW,
        Self::Sgd,
        Self::AdaGrad,
        Self::Adafactor,
        Self::Adan,
        Self::Lamb,
        Self::Lion,
        Self::Muon,
        Self::RmsProp,
    ];

    /// Its settings besides the learning rate and the weight decay.
    ///
    /// ```
    /// # mod everburn { pub use everburn_train as train; }
    /// use everburn::train::OptimizerKind;
    ///
    /// assert_eq!(OptimizerKind::Lion.settings(), ["beta_1", "beta_2"]);
    /// ```
    pub const fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Adam => &["beta_1", "beta_2", "epsilon", "amsgrad"],
            Self::AdamW => &[
                "beta_1",
                "beta_2",
                "epsilon",
                "amsgrad",
                "cautious_weight_decay",
            ],
            Self::Sgd => &["momentum", "dampening", "nesterov"],
            Self::AdaGrad => &["learning_rate_decay", "epsilon"],
            Self::Adafactor => &[
                "epsilon_1",
                "epsilon_2",
                "clip_threshold",
                "decay_rate",
                "relative_step",
                "scale_parameter",
            ],
            Self::Adan => &["beta_1", "beta_2", "beta_3", "epsilon", "no_prox"],
            Self::Lamb => &["beta_1", "beta_2", "epsilon", "trust_ratio"],
            Self::Lion => &["beta_1", "beta_2"],
            Self::Muon => &[
                "momentum",
                "dampening",
                "nesterov",
                "epsilon",
                "newton_schulz_steps",
                "adjust_learning_rate",
            ],
            Self::RmsProp => &["alpha", "momentum", "epsilon", "centered"],
        }
    }

    /// Whether its update and state are elementwise, so that ranks can shard a parameter's update. Optimizers that use
    /// rows or norms of a parameter are not.
    pub const fn is_elementwise(self) -> bool {
        match self {
            Self::Adam
            | Self::AdamW
            | Self::Sgd
            | Self::AdaGrad
            | Self::Adan
            | Self::Lion
            | Self::RmsProp => true,
            Self::Adafactor | Self::Lamb | Self::Muon => false,
        }
    }

    /// The names of the `wanted` ones: `sgd, adam and lion`.
    pub(crate) fn list(wanted: impl Fn(Self) -> bool) -> String {
        let wanted = Self::ALL.into_iter().filter(|kind| wanted(*kind));
        let names = wanted.map(|kind| kind.to_string()).collect::<Vec<_>>();
        match names.as_slice() {
            [] => "none".to_string(),
            [only] => only.clone(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        }
    }
}

/// Its name in flags and files.
impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// How the learning rate of Muon follows the shape of a matrix.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::MuonRate;
///
/// assert_eq!(MuonRate::default(), MuonRate::Original);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MuonRate {
    /// By the root of rows by columns, where there are more rows (Jordan et al. 2024).
    #[default]
    Original,
    /// So that updates are as large as AdamW's, whose learning rates then suit (Liu et al. 2025).
    #[serde(alias = "match-rms-adamw")]
    MatchRmsAdamW,
}

impl From<MuonRate> for AdjustLrFn {
    fn from(rate: MuonRate) -> Self {
        match rate {
            MuonRate::Original => Self::Original,
            MuonRate::MatchRmsAdamW => Self::MatchRmsAdamW,
        }
    }
}
