//! The clock that all processes of a machine share.

mod system;

use std::time::Instant;

use self::system::Clock;

/// Now, in nanoseconds of `CLOCK_MONOTONIC`: the same clock in all processes of a machine, since it was started.
pub fn now() -> u64 {
    Clock::Monotonic.nanoseconds()
}

/// How long the calling thread has computed, in nanoseconds.
pub(crate) fn thread_cpu() -> u64 {
    Clock::Thread.nanoseconds()
}

/// When `instant` was, by [`now`]. An instant of this process that is in the past.
pub(crate) fn at(instant: Instant) -> u64 {
    converter()(instant)
}

/// Tells when instants of this process that are in the past were, by [`now`]: as far from each other as they are.
pub(crate) fn converter() -> impl Fn(Instant) -> u64 {
    let (here, there) = (Instant::now(), now());
    move |instant| there.saturating_sub(here.saturating_duration_since(instant).as_nanos() as u64)
}

/// The best estimate of another clock from several exchanges with it, each `(asked, told, answered)`: own time at the
/// question, the other's time, own time at the answer.
///
/// The other clock was read somewhere between question and answer; the shortest exchange says most narrowly where, and
/// its middle is the estimate, wrong by half its length at most (Cristian, "Probabilistic clock synchronization",
/// Distributed Computing 3, 1989).
///
/// Returns what is to be added to a time of the own clock to get the other's, and by how much that may be wrong, in
/// nanoseconds; `None` without exchanges.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// // The other clock is 1000 ahead. The second exchange was the quicker one.
/// let exchanges = [(0, 1090, 100), (200, 1205, 210)];
/// assert_eq!(everburn::profile::clock_offset(&exchanges), Some((1000, 5)));
/// ```
pub fn clock_offset(exchanges: &[(u64, u64, u64)]) -> Option<(i64, u64)> {
    let shortest = exchanges
        .iter()
        .min_by_key(|(asked, _, answered)| answered.saturating_sub(*asked))?;
    let (asked, told, answered) = *shortest;
    let length = answered.saturating_sub(asked);
    let middle = asked + length / 2;
    Some((told as i64 - middle as i64, length.div_ceil(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_found_on_the_common_clock() {
        let before = now();
        let instant = Instant::now();
        let after = now();
        let found = at(instant);
        let read = now();
        // `at` reads two clocks, one after the other: wrong by the time between at most, which is long where another
        // process has the core.
        let off = read - after;
        assert!(
            found >= before && found <= after + off,
            "{before} {found} {after}, off by {off} at most"
        );
    }

    #[test]
    fn a_clock_behind_gives_a_negative_offset() {
        assert_eq!(clock_offset(&[(5_000, 1_010, 5_020)]), Some((-4_000, 10)));
        assert_eq!(clock_offset(&[]), None);
    }
}
