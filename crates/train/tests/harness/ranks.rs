//! Ranks that are threads.

use std::path::Path;

use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_tests::in_parallel;
use everburn_train::{Trainer, TrainingConfig};

use super::run::run_directory;

/// What `rank` makes of each rank's trainer, each on a thread of its own; rank 0's records in `folder`.
pub fn on_ranks<R: Send>(
    world_size: usize,
    config: &TrainingConfig,
    folder: Option<&Path>,
    rank: impl Fn(Trainer) -> R + Sync,
) -> Vec<R> {
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    in_parallel(groups, |group| {
        let folder = folder.filter(|_| group.rank() == 0);
        rank(Trainer {
            run: folder.map(|folder| run_directory(folder, config)),
            ..Trainer::new(config.clone(), group)
        })
    })
}
