//! Whether this machine, or its launcher, did not run for a while.

use std::time::{Duration, Instant};

/// A launcher waits for a second at most; one that has waited for longer than this did not run. By then a rank with it has
/// missed several heartbeats.
const LEAST: Duration = Duration::from_secs(5);

/// What fails later than this has other reasons: no wait for a rank is usually as long.
const MATTERS_FOR: Duration = Duration::from_secs(600);

/// The last time for which the launcher did not run.
#[derive(Debug, Default)]
pub(super) struct OwnPause(Option<(Instant, Duration)>);

impl OwnPause {
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
        if let Some(pause) = waited.filter(|pause| *pause >= LEAST) {
            self.0 = Some((now, pause));
        }
    }

    /// How long the launcher did not run, if a failure at `now` may be due to that.
    pub(super) fn before_failure(&self, now: Instant) -> Option<Duration> {
        let (ended, pause) = self.0?;
        (now.saturating_duration_since(ended) <= MATTERS_FOR).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_a_pause_for_as_long_as_it_matters() {
        let mut own = OwnPause::default();
        let begin = Instant::now();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        own.waited(seconds(100), seconds(101), begin);
        own.waited(seconds(101), None, begin);
        own.waited(seconds(101), seconds(99), begin);
        assert_eq!(own.before_failure(begin), None);
        own.waited(seconds(101), seconds(148), begin);
        own.waited(seconds(148), seconds(149), begin + Duration::from_secs(1));
        assert_eq!(own.before_failure(begin + MATTERS_FOR), seconds(47));
        assert_eq!(own.before_failure(begin + 2 * MATTERS_FOR), None);
    }
}
