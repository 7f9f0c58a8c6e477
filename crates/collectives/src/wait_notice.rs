//! When a process that waits says so.

use std::time::Duration;

/// The first notice of a wait is due after this time.
const FIRST: Duration = Duration::from_secs(10);

/// The others are due this long after the one before.
const LATER: Duration = Duration::from_secs(60);

/// When the next notice of a wait is due.
#[derive(Debug)]
pub(crate) struct WaitNotice(Duration);

impl WaitNotice {
    pub(crate) const fn new() -> Self {
        Self(FIRST)
    }

    #[cfg(test)]
    pub(crate) const fn first_after(waited: Duration) -> Self {
        Self(waited)
    }

    /// Whether one is due after `waited`; if so, the next is due later.
    pub(crate) fn is_due(&mut self, waited: Duration) -> bool {
        let is_due = waited >= self.0;
        if is_due {
            self.0 = waited + LATER;
        }
        is_due
    }

    /// How long it is from `waited` to the next one.
    pub(crate) fn in_how_long(&self, waited: Duration) -> Duration {
        self.0.saturating_sub(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_noticed_after_ten_seconds_and_then_each_minute() {
        let seconds = Duration::from_secs;
        let mut notice = WaitNotice::new();
        let due: Vec<u64> = (0..200).filter(|at| notice.is_due(seconds(*at))).collect();
        assert_eq!(due, [10, 70, 130, 190]);
        assert_eq!(notice.in_how_long(seconds(200)), seconds(50));
        assert_eq!(notice.in_how_long(seconds(300)), Duration::ZERO);
    }
}
