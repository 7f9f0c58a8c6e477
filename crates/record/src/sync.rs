//! Locks that outlive a panic of another thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Locks `mutex`. A panic elsewhere leaves our states consistent (each critical section is a few
/// assignments), so a poisoned lock is taken all the same rather than spread as a second panic.
///
/// ```
/// use std::sync::Mutex;
/// use everburn_record::sync::lock;
///
/// let count = Mutex::new(1);
/// *lock(&count) += 1;
/// assert_eq!(*lock(&count), 2);
/// ```
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for `condition` to be notified or for `deadline`; the second value says that the deadline
/// has passed.
pub fn wait_until<'a, T>(
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

/// Waits while `waits` says so of what `guard` locks, asked again whenever `condition` is notified, and no longer than to
/// `deadline`; the second value says that it would still wait.
///
/// ```
/// use std::sync::{Condvar, Mutex};
/// use std::time::Instant;
/// use everburn_record::sync::{lock, wait_while};
///
/// let (count, changed) = (Mutex::new(1), Condvar::new());
/// let (count, late) = wait_while(&changed, lock(&count), Instant::now(), |count| *count > 0);
/// assert!(late && *count == 1);
/// ```
pub fn wait_while<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Instant,
    waits: impl FnMut(&mut T) -> bool,
) -> (MutexGuard<'a, T>, bool) {
    let left = deadline.saturating_duration_since(Instant::now());
    let (guard, timeout) = condition
        .wait_timeout_while(guard, left, waits)
        .unwrap_or_else(PoisonError::into_inner);
    (guard, timeout.timed_out())
}
