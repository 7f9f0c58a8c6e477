//! Ranks that are threads.

use burn::module::Module;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_tests::in_parallel;

/// Runs `work` on each rank of a world; what each yields, in rank order.
pub fn on_ranks<T: Send>(world_size: usize, work: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    in_parallel(groups, work)
}

/// A copy that shares nothing: neither a graph, for whose locks ranks that are threads would wait, nor running
/// statistics.
pub fn separate<M: Module>(model: &M) -> M {
    model.valid().train()
}
