//! What the blocks of a model cost, measured or given.

use std::path::Path;

use everburn_record::units::counted;
use everburn_schedules::Link;
use serde::Deserialize;

use crate::error::CliError;
use crate::read_given;

/// The largest file of figures that is read, in bytes.
const LARGEST_FILE: u64 = 4 << 20;

/// What is between two ranks unless it is given: about what processes of one machine exchange.
const LOCAL_LINK: Link = Link {
    latency: 50e-6,
    bytes_per_second: 1e9,
};

/// What a plan goes by.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figures {
    /// Whose they are, for the reader.
    #[serde(skip)]
    pub(super) origin: String,
    /// What is between two ranks.
    #[serde(default = "local_link")]
    pub(super) link: Link,
    /// One entry a block, in the order of the model.
    pub(super) blocks: Vec<BlockFigures>,
}

fn local_link() -> Link {
    LOCAL_LINK
}

/// The costs of a block, for one sample. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockFigures {
    pub(super) name: String,
    pub(super) forward: f64,
    /// The whole backward pass; if absent, twice the forward pass.
    pub(super) backward: Option<f64>,
    /// Bytes that are kept from the forward pass for the backward pass, the output among them.
    pub(super) activation_bytes: u64,
    pub(super) output_bytes: u64,
}

impl BlockFigures {
    pub(super) fn backward(&self) -> f64 {
        self.backward.unwrap_or(2.0 * self.forward)
    }
}

impl Figures {
    pub(super) fn measured(blocks: Vec<BlockFigures>, samples: usize) -> Self {
        Self {
            origin: format!(
                "measured here, each block on {}",
                counted(samples, "sample")
            ),
            link: LOCAL_LINK,
            blocks,
        }
    }

    /// Those in the TOML file at `path`, for blocks called `names`.
    pub(super) fn read(path: &Path, names: &[String]) -> Result<Self, CliError> {
        let refuse = |reason: String| {
            CliError::usage_with_help(
                format!("{} has no figures for a plan: {reason}", path.display()),
                "it takes a table [[blocks]] for each block of the model, with name, forward (seconds \
                 a sample), activation_bytes and output_bytes (a sample)",
            )
        };
        let text = read_given(path, LARGEST_FILE).map_err(|error| refuse(error.to_string()))?;
        let mut figures: Self = toml::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        let given = figures.blocks.iter().map(|block| &block.name);
        if !given.eq(names) {
            let list = names.join(", ");
            return Err(refuse(format!("the blocks of the model are {list}")));
        }
        let Link {
            latency,
            bytes_per_second,
        } = figures.link;
        let is_a_link = latency >= 0.0 && latency.is_finite() && bytes_per_second > 0.0;
        if !is_a_link {
            return Err(refuse("the numbers of [link] must be positive".to_string()));
        }
        figures.origin = format!("as {} says", path.display());
        Ok(figures)
    }
}
