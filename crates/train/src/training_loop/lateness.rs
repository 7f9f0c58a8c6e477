//! Whether a rank keeps the others of an elastic job from the next step.

use std::time::{Duration, Instant};

use everburn_collectives::group::FlightEntry;

/// How often in a row a rank may come too late to the same step.
const LATE: usize = 3;

/// How late a rank has come to the step that is to be made.
pub(super) struct Lateness {
    /// When the rank was ready for the step: the one before was made, or the present group was formed.
    ready: Instant,
    in_a_row: usize,
    /// The longest that it has taken to come.
    longest: Duration,
}

impl Lateness {
    pub(super) fn new() -> Self {
        Self {
            ready: Instant::now(),
            in_a_row: 0,
            longest: Duration::ZERO,
        }
    }

    /// The step is to be made once more, in another group.
    pub(super) fn again(&mut self) {
        self.ready = Instant::now();
    }

    /// The step could not be made. Returns how long this rank takes for it, if it has now come later than `timeout` too
    /// often. `calls` is its record.
    pub(super) fn failed(&mut self, timeout: Duration, calls: &[FlightEntry]) -> Option<Duration> {
        self.note(busy(self.ready.elapsed(), calls), timeout)
    }

    fn note(&mut self, busy: Duration, timeout: Duration) -> Option<Duration> {
        if busy <= timeout {
            return None;
        }
        self.in_a_row += 1;
        self.longest = self.longest.max(busy);
        (self.in_a_row >= LATE).then_some(self.longest)
    }
}

/// How long of the time `since` a rank was ready it has not waited for others in its `calls`.
fn busy(since: Duration, calls: &[FlightEntry]) -> Duration {
    let calls = calls.iter().filter(|call| call.began <= since);
    let waits = calls.map(|call| call.began.saturating_sub(call.ended.unwrap_or_default()));
    since.saturating_sub(waits.sum())
}

/// What a rank says that takes `took` for `step`.
pub(super) fn too_slow(rank: usize, step: usize, took: Duration, timeout: Duration) -> String {
    let took = took.as_secs_f64();
    format!(
        "rank {rank} takes {took:.1} s for step {step}, and the others wait {} s for it: it came too late {LATE} times in a \
         row, so it is left out; raise `ranks.timeout` above {:.0} s, or look at what it does in this step",
        timeout.as_secs_f64(),
        took.ceil()
    )
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::{GroupOptions, ProcessGroup, ReduceOp};
    use everburn_tests::in_parallel;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(4);

    #[test]
    fn a_rank_that_comes_too_late_to_the_same_step_again_and_again_is_left_out() {
        let mut lateness = Lateness::new();
        let late = Duration::from_secs(12);
        assert_eq!(lateness.note(late, TIMEOUT), None);
        // Another one was late.
        assert_eq!(lateness.note(TIMEOUT / 2, TIMEOUT), None);
        assert_eq!(lateness.note(TIMEOUT * 2, TIMEOUT), None);
        assert_eq!(lateness.note(TIMEOUT * 2, TIMEOUT), Some(late));
        let text = too_slow(1, 5, Duration::from_millis(12_010), TIMEOUT);
        let begin = "rank 1 takes 12.0 s for step 5, and the others wait 4 s for it";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.contains("raise `ranks.timeout` above 13 s"), "{text}");
    }

    #[test]
    fn a_rank_that_waits_for_a_late_one_is_not_late_itself() {
        let pause = Duration::from_millis(400);
        let begun = Instant::now();
        let groups = ProcessGroup::over_threads(2, GroupOptions::default());
        let ranks = groups.into_iter().zip([Duration::ZERO, pause]);
        let all = in_parallel(ranks, |(group, pause)| {
            std::thread::sleep(pause);
            group.all_reduce(vec![1i64], ReduceOp::Sum).wait().unwrap();
            busy(begun.elapsed(), &group.flight_record())
        });
        let (waits, late) = (all[0], all[1]);
        assert!(late >= pause, "{late:?}");
        assert!(waits + pause / 2 < late, "{waits:?}, {late:?}");
    }
}
