//! Ranks that are threads.

use std::thread;

use burn::module::Module;
use everburn_collectives::group::{GroupOptions, ProcessGroup};

/// Runs `work` on each rank of a world; what each yields, in rank order.
pub fn on_ranks<T: Send>(world_size: usize, work: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    threads(groups, work)
}

/// Runs `work` on each of `groups`, the ranks of a world with options of its own.
pub fn threads<T: Send>(
    groups: Vec<ProcessGroup>,
    work: impl Fn(ProcessGroup) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let ranks = groups
            .into_iter()
            .map(|group| scope.spawn(move || work(group)))
            .collect::<Vec<_>>();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank panicked"))
            .collect()
    })
}

/// A copy that shares nothing: neither a graph, for whose locks ranks that are threads would wait, nor running
/// statistics.
pub fn separate<M: Module>(model: &M) -> M {
    model.valid().train()
}
