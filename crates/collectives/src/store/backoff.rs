//! Pauses between attempts.

use std::time::Duration;

use super::random_u64;
use crate::runtime;

/// Pauses that double from one attempt to the next. Each is 0.5 to 1.5 times as long by chance, so that a thousand ranks
/// that began together do not stay together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    /// Sleeps until the next attempt is due, and no longer than `left`.
    pub(crate) fn sleep(&mut self, left: Duration) {
        runtime::sleep(self.pause().min(left));
    }

    fn pause(&mut self) -> Duration {
        let jitter = 0.5 + (random_u64() % 1024) as f64 / 1024.0;
        let pause = self.next.mul_f64(jitter);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_by_chance() {
        let millis = Duration::from_millis;
        let mut found = Vec::new();
        for _ in 0..20 {
            let mut backoff = Backoff::new(millis(10), millis(40));
            for middle in [10, 20, 40, 40] {
                let pause = backoff.pause();
                assert!(pause >= millis(middle) / 2 && pause <= millis(middle) * 3 / 2);
                found.push(pause);
            }
        }
        found.sort_unstable();
        found.dedup();
        assert!(found.len() > 20, "{found:?}");
    }
}
