//! Whether this machine, or its launcher, did not run for a while.

use std::time::{Duration, Instant};

/// A launcher waits for a second at most; one that has waited for longer than the second of these did not run. By then a rank
/// with it has missed several heartbeats. After half a heartbeat timeout it says so earlier, but not before the first: a busy
/// machine may keep it from its cores for a second.
const LEAST: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(5)];

/// Ranks that were given up meanwhile find that out within twice a heartbeat timeout, and at least within this: what fails
/// later has other reasons.
const MATTERS_FOR: Duration = Duration::from_secs(10);

/// The same where there is no heartbeat timeout.
const MATTERS_WITHOUT_TIMEOUT: Duration = Duration::from_secs(60);

/// The last time for which the launcher did not run.
#[derive(Debug)]
pub(super) struct OwnPause {
    least: Duration,
    matters_for: Duration,
    last: Option<(Instant, Duration)>,
}

impl OwnPause {
    /// None so far, where ranks are given up after `heartbeat_timeout`.
    pub(super) fn new(heartbeat_timeout: Option<Duration>) -> Self {
        let [least, most] = LEAST;
        let half = heartbeat_timeout.map(|timeout| (timeout / 2).clamp(least, most));
        Self {
            least: half.unwrap_or(most),
            matters_for: heartbeat_timeout.map_or(MATTERS_WITHOUT_TIMEOUT, |timeout| {
                (2 * timeout).max(MATTERS_FOR)
            }),
            last: None,
        }
    }

    /// A wait that could be a second at most has ended at `now`; `before` and `after` are how long the machine was up.
    pub(super) fn waited(
        &mut self,
        before: Option<Duration>,
        after: Option<Duration>,
        now: Instant,
    ) {
        let waited = before
            .zip(after)
            .and_then(|(it, after)| after.checked_sub(it));
        if let Some(pause) = waited.filter(|pause| *pause >= self.least) {
            self.last = Some((now, pause));
        }
    }

    /// How long the launcher did not run, if a failure at `now` may be due to that.
    pub(super) fn before_failure(&self, now: Instant) -> Option<Duration> {
        let (ended, pause) = self.last?;
        (now.saturating_duration_since(ended) <= self.matters_for).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_a_pause_for_as_long_as_it_matters() {
        let mut own = OwnPause::new(None);
        let begin = Instant::now();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        own.waited(seconds(100), seconds(101), begin);
        own.waited(seconds(101), None, begin);
        own.waited(seconds(101), seconds(99), begin);
        assert_eq!(own.before_failure(begin), None);
        own.waited(seconds(101), seconds(148), begin);
        own.waited(seconds(148), seconds(149), begin + Duration::from_secs(1));
        assert_eq!(
            own.before_failure(begin + MATTERS_WITHOUT_TIMEOUT),
            seconds(47)
        );
        assert_eq!(
            own.before_failure(begin + 2 * MATTERS_WITHOUT_TIMEOUT),
            None
        );
    }

    #[test]
    fn a_pause_counts_earlier_where_ranks_are_given_up_earlier() {
        let least = |timeout: u64| {
            let timeout = Duration::from_secs(timeout);
            let mut own = OwnPause::new(Some(timeout));
            let begin = Instant::now();
            let counts = |seconds: &u64| {
                let after = Some(Duration::from_secs(*seconds));
                own.waited(Some(Duration::ZERO), after, begin);
                own.before_failure(begin).is_some()
            };
            (1..=10).find(counts)
        };
        assert_eq!([60, 10, 6, 1].map(least), [5, 5, 3, 2].map(Some));
    }

    #[test]
    fn a_pause_that_the_job_has_survived_is_not_blamed() {
        let matters = |timeout: u64, after: u64| {
            let mut own = OwnPause::new(Some(Duration::from_secs(timeout)));
            let begin = Instant::now();
            own.waited(Some(Duration::ZERO), Some(Duration::from_secs(47)), begin);
            own.before_failure(begin + Duration::from_secs(after))
                .is_some()
        };
        assert!(matters(30, 60) && matters(1, 10));
        assert!(!matters(30, 61) && !matters(1, 11));
    }
}
