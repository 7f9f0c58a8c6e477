//! The command line of `bench recompute`.

use clap::Parser;

use super::order::Order;
use crate::bench::at_least_1;
use crate::cells;

/// Measures what activation checkpointing saves in memory and costs in time.
///
/// A decoder of text makes whole training steps (forward, backward, Adam), once with all activations kept
/// and once with each of the ways to compute them again.
#[derive(Debug, Parser)]
pub(crate) struct RecomputeBench {
    /// What stands beside `none`: blocks, a number of blocks, burn; several with commas.
    #[arg(long, value_delimiter = ',', default_values_t = ["blocks".to_string(), "burn".to_string()])]
    against: Vec<String>,

    /// Layers of the decoder.
    #[arg(long, default_value_t = 12, value_parser = at_least_1)]
    layers: usize,

    /// The length of a token's vector.
    #[arg(long, default_value_t = 128, value_parser = at_least_1)]
    width: usize,

    /// Heads of the attention.
    #[arg(long, default_value_t = 4, value_parser = at_least_1)]
    heads: usize,

    /// The length of a text, in tokens.
    #[arg(long, default_value_t = 128, value_parser = at_least_1)]
    context: usize,

    /// Texts a step.
    #[arg(long, default_value_t = 16, value_parser = at_least_1)]
    batch: usize,

    /// Steps of each run.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    steps: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    pub(super) rounds: usize,
}

impl RecomputeBench {
    /// All sides, the plain one first.
    pub(super) fn sides(&self) -> Vec<String> {
        let mut sides = vec!["none".to_string()];
        sides.extend(self.against.iter().filter(|how| *how != "none").cloned());
        sides
    }

    /// The order to a side.
    pub(super) fn order(&self, how: &str) -> Order {
        Order {
            activation_checkpointing: how.to_owned(),
            layers: self.layers,
            width: self.width,
            heads: self.heads,
            context: self.context,
            batch: self.batch,
            steps: self.steps,
        }
    }

    /// What one has to know to judge the table.
    pub(crate) fn describe(&self) -> String {
        format!(
            "model:   gpt of {} layers of width {}, {} heads; {} texts of {} tokens per step\n\
             method:  {}, each of {} whole training steps (Adam) a side in a process of \
             its own;\n         memory: the most of a step, with weights, gradients and Adam's state",
            self.layers,
            self.width,
            self.heads,
            self.batch,
            self.context,
            cells::rounds(self.rounds),
            self.steps
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_side_is_always_there_and_once() {
        let sides = |words: &[&str]| {
            RecomputeBench::parse_from([&["bench recompute"], words].concat()).sides()
        };
        assert_eq!(sides(&[]), ["none", "blocks", "burn"]);
        assert_eq!(sides(&["--against", "none,3"]), ["none", "3"]);
    }
}
