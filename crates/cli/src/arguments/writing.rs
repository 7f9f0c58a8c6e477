//! Flags of commands that generate text.

use std::borrow::Cow;
use std::io::{IsTerminal, Write as _, stdout};
use std::path::PathBuf;

use clap::Args;
use everburn_train::GenerationConfig;

#[derive(Debug, Clone, Args)]
pub(crate) struct WritingFlags {
    /// The folder of the run.
    pub(crate) run_dir: PathBuf,

    /// The number of tokens to generate.
    #[arg(long, default_value_t = 200)]
    pub(crate) tokens: usize,

    /// The sampling temperature; 0 is greedy.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    pub(crate) temperature: f64,

    /// Draw only from this many of the most likely tokens.
    #[arg(long)]
    pub(crate) top_k: Option<usize>,

    /// Draw only from the most likely tokens that together have this probability, as in 0.9.
    #[arg(long)]
    pub(crate) top_p: Option<f64>,

    /// Stop before this text; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// The seed of the sampling.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,

    /// Use a checkpoint instead of the trained model: `best`, or the number of an epoch.
    #[arg(long, value_name = "EPOCH")]
    pub(crate) checkpoint: Option<String>,

    /// Use the averaged parameters of a run with --ema.
    #[arg(long)]
    pub(crate) ema: bool,

    /// The device: flex, cuda:0, vulkan:0, ...
    #[arg(long, default_value = "flex")]
    pub(crate) device: String,
}

/// Prints a part of a generated text. A reader that has gone away is no error: the command ends as without one.
pub(crate) fn show(text: &str) {
    let mut out = stdout().lock();
    let text = for_reader(text, out.is_terminal());
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The text for a file as it is.
fn for_reader(text: &str, is_terminal: bool) -> Cow<'_, str> {
    match is_terminal {
        true => for_terminal(text),
        false => text.into(),
    }
}

/// The text without control characters, which a terminal would obey: a model may write any.
pub(crate) fn for_terminal(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(is_obeyed) {
        true => text.replace(is_obeyed, "\u{fffd}").into(),
        false => text.into(),
    }
}

impl WritingFlags {
    pub(crate) fn generation(&self) -> GenerationConfig {
        GenerationConfig {
            tokens: self.tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::for_reader;

    #[test]
    fn no_terminal_obeys_a_model_and_files_have_all_that_it_writes() {
        let text = "a\tb\n\u{1b}[2J\u{7}c";
        assert_eq!(for_reader(text, true), "a\tb\n\u{fffd}[2J\u{fffd}c");
        assert_eq!(for_reader(text, false), text);
    }
}
