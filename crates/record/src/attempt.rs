//! Attempts whose panics are caught, and reported by nobody: what fails there fails again where the error belongs.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// The result of `work`; `None` if it panics, which the panic hooks of Everburn's processes do not report.
///
/// ```
/// use everburn_record::attempt;
///
/// assert_eq!(attempt::run(|| 7), Some(7));
/// assert!(attempt::run(attempt::is_running).unwrap() && !attempt::is_running());
/// ```
pub fn run<R>(work: impl FnOnce() -> R) -> Option<R> {
    let before = RUNNING.replace(true);
    let ended = catch_unwind(AssertUnwindSafe(work));
    RUNNING.set(before);
    ended.ok()
}

/// Whether this thread is in an attempt. A panic's hook may ask: the stack is not yet unwound there.
#[must_use]
pub fn is_running() -> bool {
    // A thread that ends may panic after its values are gone.
    RUNNING.try_with(Cell::get).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_attempt_and_no_outer_one() {
        let seen = run(|| {
            let inner = run(|| -> u8 { panic!("caught") });
            (inner, is_running())
        });
        assert_eq!(seen, Some((None, true)));
        assert!(!is_running());
    }
}
