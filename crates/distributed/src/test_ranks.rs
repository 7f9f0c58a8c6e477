//! Ranks of unit tests, which are threads.

use everburn_collectives::group::{GroupOptions, ProcessGroup};

/// Runs `work` on each rank of a world; what each yields, in rank order.
pub(crate) fn on_ranks<T: Send>(
    world_size: usize,
    work: impl Fn(ProcessGroup) -> T + Sync,
) -> Vec<T> {
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    let work = &work;
    std::thread::scope(|scope| {
        let ranks = groups.into_iter();
        let ranks = ranks.map(|group| scope.spawn(move || work(group)));
        let ranks = ranks.collect::<Vec<_>>();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
