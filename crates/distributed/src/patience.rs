//! How long a thread of one's own is waited for that exchanges with other ranks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use everburn_collectives::group::ProcessGroup;

use crate::reducer::message_of;

/// How much longer than an operation of the group: its own error tells more.
const LONGER: Duration = Duration::from_secs(5);

/// How long a thread may take to end by itself, and again once its group was given up.
const AT_THE_END: Duration = Duration::from_secs(5);

/// How long a rank waits for its own thread, and who it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    rank: usize,
    timeout: Duration,
    step: Option<u64>,
}

impl Patience {
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

    pub(crate) fn duration(self) -> Duration {
        self.timeout + LONGER
    }

    /// What is to be said when it is over and `what` has not come.
    pub(crate) fn is_over(self, what: &str) -> String {
        let Self {
            rank,
            timeout,
            step,
        } = self;
        let step = step.map_or(String::new(), |step| format!(" in step {step}"));
        let waited = self.duration();
        format!(
            "rank {rank} has waited {waited:.0?}{step} for {what}; an operation between ranks ends after \
             {timeout:.0?} at the latest, so that its own thread hangs in something else: check whether the \
             device answers, and whether the process was stopped or its machine is out of memory"
        )
    }
}

/// Calls `body` on a thread that exchanges over `group`. A panic gives the group up on all ranks, which would
/// wait for this one, and comes back in words.
pub(crate) fn caught<R>(group: &ProcessGroup, body: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let message = format!("its thread panicked: {}", message_of(&*panic));
        group.abort(format!("rank {}: {message}", group.rank()));
        message
    })
}

/// A thread whose end is waited for with a deadline.
#[derive(Debug)]
pub(crate) struct OwnThread {
    thread: JoinHandle<()>,
    /// Nothing is ever sent: it closes when the thread ends, by a panic too.
    alive: Receiver<()>,
}

impl OwnThread {
    /// Starts `body` on a thread with this name.
    pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (sender, alive) = mpsc::channel::<()>();
        let run = move || {
            let _sender = sender;
            body();
        };
        let thread = thread::Builder::new().name(name.to_string()).spawn(run)?;
        Ok(Self { thread, alive })
    }

    /// Waits for its end, for `limit` at most; whether it has come. A thread that has not ended goes on by
    /// itself.
    pub(crate) fn join_within(self, limit: Duration) -> bool {
        if !self.has_ended_within(limit) {
            return false;
        }
        // A panic has been reported by the thread itself.
        let _ = self.thread.join();
        true
    }

    /// Waits for its end as its owner is dropped. Where it does not come soon, `group` is given up with
    /// `reason`, which ends an exchange with other ranks; a thread that hangs in something else goes on by
    /// itself.
    pub(crate) fn end(self, group: &ProcessGroup, reason: &str) {
        if !self.has_ended_within(AT_THE_END) {
            group.abort(reason);
        }
        self.join_within(AT_THE_END);
    }

    fn has_ended_within(&self, limit: Duration) -> bool {
        self.alive.recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than anything here takes.
    const GENEROUS: Duration = Duration::from_secs(60);

    #[test]
    fn a_panic_comes_back_in_words_and_gives_the_group_up() {
        let group = ProcessGroup::over_threads(1, Default::default()).remove(0);
        assert_eq!(caught(&group, || 7), Ok(7));
        assert!(group.failure().is_none());
        let told = caught::<()>(&group, || panic!("no such bucket")).unwrap_err();
        assert_eq!(told, "its thread panicked: no such bucket");
        let failure = group.failure().unwrap();
        assert!(failure.reason.contains("rank 0: its thread panicked"));
    }

    #[test]
    fn a_thread_that_does_not_end_is_left_to_itself() {
        let (release, held) = mpsc::channel::<()>();
        let stuck = OwnThread::start("stuck", move || {
            // It is released by an end.
            let _ = held.recv();
        });
        let stuck = stuck.unwrap();
        assert!(!stuck.join_within(Duration::from_millis(1)));
        drop(release);
        let quick = OwnThread::start("quick", || ()).unwrap();
        assert!(quick.join_within(GENEROUS));
        let panics = OwnThread::start("panics", || panic!("as it was told to")).unwrap();
        assert!(panics.join_within(GENEROUS));
    }

    #[test]
    fn who_waits_for_what_and_since_when_is_said() {
        let group = ProcessGroup::over_threads(1, Default::default()).remove(0);
        group.set_step(7);
        let patience = Patience::in_step(&group);
        assert!(patience.duration() > group.timeout());
        let text = patience.is_over("bucket 3");
        assert!(
            text.starts_with("rank 0 has waited ") && text.contains(" in step 7 for bucket 3; "),
            "{text}"
        );
        assert!(text.contains("check whether"), "{text}");
    }
}
