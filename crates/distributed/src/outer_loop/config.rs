//! How parameters become equal that ranks have changed by themselves.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::quantized::Bits;
use crate::error::DdpError;

/// The learning rate of [`OuterOptimizer::Nesterov`], unless another is given: the paper's.
const LEARNING_RATE: f64 = 0.7;

/// The momentum of [`OuterOptimizer::Nesterov`], unless another is given: the paper's.
const MOMENTUM: f64 = 0.9;

/// What is made of the averaged differences.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::OuterOptimizer;
///
/// assert_eq!("average".parse(), Ok(OuterOptimizer::Average));
/// assert_eq!(OuterOptimizer::default().to_string(), "nesterov");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OuterOptimizer {
    /// DiLoCo (Douillard et al. 2023): gradient descent with Nesterov's momentum.
    #[default]
    Nesterov,
    /// Local SGD (Stich 2019): all ranks take the mean of their parameters.
    Average,
}

/// How differences travel.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{OuterCompression, OuterConfig};
///
/// let compression: OuterCompression = "int8".parse()?;
/// let config = OuterConfig { compression, ..OuterConfig::default() };
/// assert_eq!(config.compression, OuterCompression::Int8);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OuterCompression {
    /// As they are: 4 bytes each.
    #[default]
    None,
    /// A byte each, and 4 bytes for 256 of them; what is rounded away is added to the next difference.
    Int8,
    /// The same with half a byte each.
    Int4,
    /// The same with 2 bits each.
    Int2,
}

impl OuterCompression {
    /// How many bits a difference has on its way; `None` where it travels as it is.
    pub(super) const fn bits(self) -> Option<Bits> {
        match self {
            Self::None => None,
            Self::Int8 => Some(Bits::Eight),
            Self::Int4 => Some(Bits::Four),
            Self::Int2 => Some(Bits::Two),
        }
    }
}

everburn_record::named!(OuterOptimizer, "no outer optimizer: use one of nesterov average", Self::Nesterov => "nesterov", Self::Average => "average");
everburn_record::named!(OuterCompression, "no compression of differences: use one of none int8 int4 int2", Self::None => "none", Self::Int8 => "int8", Self::Int4 => "int4", Self::Int2 => "int2");

/// How parameters become equal that ranks have changed by themselves; the same on all ranks.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{OuterConfig, OuterOptimizer};
///
/// let config = OuterConfig::default();
/// assert_eq!((config.rate(), config.kept()), (0.7, 0.9));
/// let average = OuterConfig { optimizer: OuterOptimizer::Average, ..config };
/// assert_eq!((average.rate(), average.kept()), (1.0, 0.0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Fewer bytes")]
#[serde(deny_unknown_fields, default)]
pub struct OuterConfig {
    /// The outer optimizer of the averaged differences: nesterov (DiLoCo) or average (local SGD)
    /// [default: nesterov].
    #[arg(long = "outer-optimizer", value_name = "RULE")]
    pub optimizer: OuterOptimizer,
    /// The learning rate of the outer optimizer nesterov [default: 0.7].
    #[arg(
        long = "outer-learning-rate",
        value_name = "RATE",
        allow_negative_numbers = true
    )]
    pub learning_rate: Option<f64>,
    /// The momentum of the outer optimizer nesterov [default: 0.9].
    #[arg(
        long = "outer-momentum",
        value_name = "SHARE",
        allow_negative_numbers = true
    )]
    pub momentum: Option<f64>,
    /// The compression of the differences: none, int8, int4 or int2 (about 1/4, 1/8, 1/15 of the bytes) [default: none].
    #[arg(long = "compress-outer", value_name = "HOW")]
    pub compression: OuterCompression,
    /// Exchange the model in this many parts in turn, each while the next steps are computed (Streaming DiLoCo)
    /// [default: the whole model at once, and wait].
    #[arg(long = "outer-fragments", value_name = "N")]
    pub fragments: Option<usize>,
}

impl OuterConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`DdpError::Config`] naming the first that cannot be used.
    pub fn validate(&self) -> Result<(), DdpError> {
        let refuse = |message: String| Err(DdpError::Config(message));
        if self.optimizer == OuterOptimizer::Average
            && (self.learning_rate.is_some() || self.momentum.is_some())
        {
            return refuse(
                "`training.outer.learning_rate` and `training.outer.momentum` are for `training.outer.optimizer = nesterov`: an average \
                 has neither"
                    .to_string(),
            );
        }
        if !(self.rate().is_finite() && self.rate() > 0.0) {
            let rate = self.rate();
            return refuse(format!(
                "`training.outer.learning_rate` must be a positive number, not {rate}"
            ));
        }
        if !(0.0..1.0).contains(&self.kept()) {
            let momentum = self.kept();
            return refuse(format!(
                "`training.outer.momentum` must be at least 0 and below 1, not {momentum}"
            ));
        }
        if self.fragments == Some(0) {
            return refuse("`training.outer.fragments` must be at least 1, not 0".to_string());
        }
        Ok(())
    }

    /// By how much the averaged difference is multiplied.
    pub fn rate(&self) -> f64 {
        match self.optimizer {
            OuterOptimizer::Nesterov => self.learning_rate.unwrap_or(LEARNING_RATE),
            OuterOptimizer::Average => 1.0,
        }
    }

    /// The share of the last update that is kept.
    pub fn kept(&self) -> f64 {
        match self.optimizer {
            OuterOptimizer::Nesterov => self.momentum.unwrap_or(MOMENTUM),
            OuterOptimizer::Average => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_used_are_named() {
        let refused = |change: fn(&mut OuterConfig)| {
            let mut config = OuterConfig::default();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert!(
            refused(|c| c.learning_rate = Some(0.0)).contains("`training.outer.learning_rate`")
        );
        assert!(refused(|c| c.fragments = Some(0)).contains("`training.outer.fragments`"));
        assert!(refused(|c| c.momentum = Some(1.0)).contains("`training.outer.momentum`"));
        let average = refused(|c| {
            (c.optimizer, c.momentum) = (OuterOptimizer::Average, Some(0.5));
        });
        assert!(average.contains("nesterov"), "{average}");
        assert!(OuterConfig::default().validate().is_ok());
    }

    #[test]
    fn flags_and_files_have_one_spelling() {
        for (text, optimizer) in [
            ("nesterov", OuterOptimizer::Nesterov),
            ("average", OuterOptimizer::Average),
        ] {
            assert_eq!(text.parse(), Ok(optimizer));
            let json = serde_json::to_string(&optimizer).unwrap();
            assert_eq!(json, format!("\"{optimizer}\""));
        }
        for compression in ["none", "int8", "int4", "int2"] {
            let parsed = compression.parse::<OuterCompression>();
            assert_eq!(parsed.map(|it| it.to_string()), Ok(compression.to_string()));
        }
        let error = "int3".parse::<OuterCompression>().unwrap_err();
        assert!(error.contains("none int8 int4 int2"), "{error}");
    }
}
