//! Ranks that are threads.

use std::path::Path;
use std::sync::Arc;

use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_distributed::{Connector, GradientBackend, NcclWait};
use everburn_distributed_fake::{abilities, on_cluster};
use everburn_nccl_fake::FakeCluster;
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

/// Connects a rank with a GPU of its own.
pub fn connector(
    cluster: &Arc<FakeCluster>,
    rank: usize,
    backend: GradientBackend,
    waits: NcclWait,
) -> Arc<Connector> {
    let connector = Connector::new(backend, abilities(rank));
    Arc::new(on_cluster(connector, cluster, rank, waits))
}
