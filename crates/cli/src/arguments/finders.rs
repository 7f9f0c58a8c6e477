//! Flags of the finders.

use clap::Args;

use crate::finders::Finder;

/// What is to be found, in place of a training.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FinderFlags {
    /// Find a learning rate, and train nothing: a sweep over growing rates, with a table, a plot and a suggestion in the
    /// run's folder.
    #[arg(long, conflicts_with_all = ["find_batch_size", "plan", "warmup", "resume", "profile", "ranks.elastic"])]
    pub(crate) find_learning_rate: bool,

    /// Find a batch size, and train nothing: the largest one that fits on every rank, and the smallest one that is about
    /// as fast as the fastest.
    #[arg(long, conflicts_with_all = ["training.batch_size", "plan", "warmup", "resume", "profile", "ranks.elastic"])]
    pub(crate) find_batch_size: bool,
}

impl FinderFlags {
    pub(crate) fn wanted(&self) -> Option<Finder> {
        match self {
            Self {
                find_learning_rate: true,
                ..
            } => Some(Finder::LearningRate),
            Self {
                find_batch_size: true,
                ..
            } => Some(Finder::BatchSize),
            _ => None,
        }
    }
}
