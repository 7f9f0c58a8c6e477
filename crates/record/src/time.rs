//! Wall-clock time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970; zero on a machine whose clock is set before.
///
/// ```
/// let year_2020 = std::time::Duration::from_secs(1_577_836_800);
/// assert!(everburn_record::unix_time() > year_2020);
/// ```
pub fn unix_time() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// The time since 1970, in milliseconds: what the files of a run say of when.
pub fn unix_time_ms() -> u64 {
    u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX)
}
