//! Ranks of unit tests, which are threads.

use everburn_collectives::group::{GroupOptions, ProcessGroup};

/// Runs `work` on each rank of a world; what each yields, in rank order.
pub(crate) fn on_ranks<T: Send>(
    world_size: usize,
    work: impl Fn(ProcessGroup) -> T + Sync,
) -> Vec<T> {
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    everburn_tests::in_parallel(groups, work)
}
