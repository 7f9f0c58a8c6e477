//! How long a thread is waited for that exchanges with other ranks.

use std::time::Duration;

use everburn_collectives::group::ProcessGroup;
use everburn_collectives::worker::{Worker, WorkerError};

/// How much longer than an operation of the group: its own error says more.
const LONGER: Duration = Duration::from_secs(5);

/// How long a thread may take to end by itself, and again once its group was given up.
pub(crate) const AT_THE_END: Duration = Duration::from_secs(5);

/// How long a rank waits for its own thread, and who it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerTimeout {
    rank: usize,
    timeout: Duration,
    step: Option<u64>,
}

impl WorkerTimeout {
    /// For a thread that exchanges over `group`, in any step.
    pub(crate) fn with(group: &ProcessGroup) -> Self {
        Self {
            rank: group.rank(),
            timeout: group.timeout(),
            step: None,
        }
    }

    /// For a thread that exchanges over `group`, in its present step.
    pub(crate) fn in_step(group: &ProcessGroup) -> Self {
        Self {
            step: Some(group.step()),
            ..Self::with(group)
        }
    }

    /// For a thread that makes this many operations, each of which may take as long as the group allows.
    pub(crate) fn of_operations(self, count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let timeout = self.timeout.saturating_mul(count);
        Self { timeout, ..self }
    }

    pub(crate) fn duration(self) -> Duration {
        self.timeout.saturating_add(LONGER)
    }

    /// What is to be said when `lost` came in place of `what`.
    pub(crate) fn lost(self, lost: WorkerError, what: &str) -> String {
        match lost {
            WorkerError::Late(_) => self.is_over(what),
            lost => lost.to_string(),
        }
    }

    /// What is to be said when it is over and `what` has not come.
    pub(crate) fn is_over(self, what: &str) -> String {
        let (rank, timeout) = (self.rank, self.timeout);
        let step = self
            .step
            .map_or(String::new(), |step| format!(" in step {step}"));
        let waited = self.duration();
        format!(
            "rank {rank} has waited {waited:.0?}{step} for {what}; what ranks do together for that ends after \
             {timeout:.0?} at the latest, so that its own thread hangs in something else: check whether the \
             device answers, and whether the process was stopped or its machine is out of memory"
        )
    }
}

/// Ends `worker` as its owner is dropped. Where it does not end within `limit`, `group` is given up with `reason`,
/// which ends an exchange with other ranks; a thread that hangs in something else continues by itself.
pub(crate) fn end<S>(worker: &mut Worker<S>, limit: Duration, group: &ProcessGroup, reason: &str) {
    if !worker.end_within(limit) {
        group.abort(reason);
        worker.end_within(AT_THE_END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_end_gives_its_group_up() {
        let groups = ProcessGroup::over_threads(2, Default::default());
        let mut worker = Worker::start("waits", groups[0].clone(), |_| ()).unwrap();
        // The other rank never comes.
        let ended = worker.ask(|group| group.barrier().wait());
        end(
            &mut worker,
            Duration::from_millis(1),
            &groups[0],
            "it hangs",
        );
        assert!(groups[0].failure().unwrap().reason.contains("it hangs"));
        assert!(ended.wait_within(Duration::from_secs(60)).unwrap().is_err());
    }

    #[test]
    fn who_waits_for_what_and_since_when_is_said() {
        let group = ProcessGroup::over_threads(1, Default::default()).remove(0);
        group.set_step(7);
        let timeout = WorkerTimeout::in_step(&group);
        assert!(timeout.duration() > group.timeout());
        let text = timeout.is_over("bucket 3");
        assert!(
            text.starts_with("rank 0 has waited ") && text.contains(" in step 7 for bucket 3; "),
            "{text}"
        );
        assert!(text.contains("check whether"), "{text}");
    }
}
