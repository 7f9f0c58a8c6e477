//! The system's clocks. `rustix` has them behind a feature with which all that is on it would be built anew, Burn's
//! dashboard among it, and `std` does not give its clock's number.

#![expect(
    unsafe_code,
    reason = "rustix has clocks only with a feature that would build Burn anew"
)]

/// A clock of the system.
#[derive(Debug, Clone, Copy)]
pub(super) enum Clock {
    /// Time since the machine was started, the same for all processes.
    Monotonic,
    /// How long the calling thread has computed.
    Thread,
}

impl Clock {
    /// What it shows, in nanoseconds. Signal-safe (signal-safety(7)).
    pub(super) fn nanoseconds(self) -> u64 {
        let clock = match self {
            Self::Monotonic => libc::CLOCK_MONOTONIC,
            Self::Thread => libc::CLOCK_THREAD_CPUTIME_ID,
        };
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the structure is this function's own, and whole.
        let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
        debug_assert_eq!(failed, 0, "Linux has both clocks");
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let rest = u64::try_from(time.tv_nsec).unwrap_or_default();
        seconds * 1_000_000_000 + rest
    }
}
