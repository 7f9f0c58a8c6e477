//! Locks that outlive a panic, and waits with a deadline.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Locks `mutex`. A test that has panicked is no reason for others to: states change in a few assignments.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for `condition` or for `deadline`; the second value says that the deadline has passed.
pub(crate) fn wait_until<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Instant,
) -> (MutexGuard<'a, T>, bool) {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return (guard, true);
    }
    let (guard, _) = condition
        .wait_timeout(guard, left)
        .unwrap_or_else(PoisonError::into_inner);
    (guard, false)
}
