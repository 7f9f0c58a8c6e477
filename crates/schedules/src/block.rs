//! What the blocks of a model cost, and stages made of them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Costs, Sends, StageCosts};

/// What one block of a model costs, for one micro-batch. Times are in seconds.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::Block;
///
/// let block = Block { parameter_bytes: 4096, ..Block::of_forward("layers.0", 0.010) };
/// assert_eq!(block.total(), 0.030);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Its name, for messages and tables.
    pub name: String,
    /// The forward pass.
    pub forward: f64,
    /// The gradients of its input.
    pub backward_input: f64,
    /// The gradients of its weights.
    pub backward_weight: f64,
    /// Bytes of its parameters.
    pub parameter_bytes: u64,
    /// Bytes kept from the forward pass to the end of the backward pass.
    pub activation_bytes: u64,
    /// Bytes of these, and of output gradients, that the gradients of weights need: kept from the
    /// backward pass for inputs on, if that for weights comes later.
    pub deferred_bytes: u64,
    /// Bytes of its output: what crosses a cut after it.
    pub output_bytes: u64,
}

impl Block {
    /// A block whose backward pass takes twice as long as its forward pass, half of it for inputs, half
    /// for weights, and that keeps nothing. For a model of which only forward passes are measured.
    #[must_use]
    pub fn of_forward(name: impl Into<String>, seconds: f64) -> Self {
        Self {
            name: name.into(),
            forward: seconds,
            backward_input: seconds,
            backward_weight: seconds,
            parameter_bytes: 0,
            activation_bytes: 0,
            deferred_bytes: 0,
            output_bytes: 0,
        }
    }

    /// How long a micro-batch takes, forward and backward.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.times().into_iter().sum()
    }

    pub(crate) const fn times(&self) -> [f64; 3] {
        [self.forward, self.backward_input, self.backward_weight]
    }
}

/// The costs of stages that consist of the blocks in `cuts`, with `link` between their ranks.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Block, Link, balance, stage_costs};
///
/// let block = |name| Block { output_bytes: 1000, ..Block::of_forward(name, 0.5) };
/// let blocks = [block("a"), block("b"), block("c"), block("d")];
/// let link = Link { latency: 0.0, bytes_per_second: 1e6 };
/// let costs = stage_costs(&blocks, &balance(&blocks, 2, None)?, link);
/// assert_eq!((costs.stages[0].forward, costs.stages[0].transfer), (1.0, 0.001));
/// # Ok::<(), everburn_schedules::BalanceError>(())
/// ```
///
/// # Panics
/// If a range of `cuts` reaches beyond `blocks`.
#[must_use]
pub fn stage_costs(blocks: &[Block], cuts: &[Range<usize>], link: Link) -> Costs {
    let stage = |range: &Range<usize>| {
        let blocks = &blocks[range.clone()];
        let bytes = |of: fn(&Block) -> u64| blocks.iter().map(of).fold(0, u64::saturating_add);
        StageCosts {
            forward: blocks.iter().map(|block| block.forward).sum(),
            backward_input: blocks.iter().map(|block| block.backward_input).sum(),
            backward_weight: blocks.iter().map(|block| block.backward_weight).sum(),
            transfer: blocks
                .last()
                .map_or(0.0, |last| link.seconds(last.output_bytes)),
            output_bytes: blocks.last().map_or(0, |last| last.output_bytes),
            parameter_bytes: bytes(|block| block.parameter_bytes),
            activation_bytes: bytes(|block| block.activation_bytes),
            deferred_bytes: bytes(|block| block.deferred_bytes),
        }
    };
    Costs {
        stages: cuts.iter().map(stage).collect(),
        sends: Sends::Buffered,
    }
}

/// The way between two neighbouring ranks.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::Link;
///
/// let ethernet = Link { latency: 50e-6, bytes_per_second: 125e6 };
/// assert_eq!(ethernet.seconds(125_000), 0.00105);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// What a message of no bytes takes, in seconds.
    pub latency: f64,
    /// How many bytes it carries a second.
    pub bytes_per_second: f64,
}

impl Link {
    /// How long a message of `bytes` takes.
    #[must_use]
    pub fn seconds(&self, bytes: u64) -> f64 {
        self.latency + bytes as f64 / self.bytes_per_second
    }
}
