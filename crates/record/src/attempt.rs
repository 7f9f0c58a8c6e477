//! Attempts whose panics are caught, and reported by nobody: what fails there fails again where the error belongs.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    static REPORT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Does `work`. The panic hooks of Everburn's processes do not report a panic of it.
///
/// # Errors
/// What it panicked with.
///
/// ```
/// use everburn_record::attempt;
///
/// assert_eq!(attempt::run(|| 7).unwrap(), 7);
/// assert!(attempt::run(|| attempt::holds("no file")).unwrap());
/// assert!(!attempt::holds("out of an attempt"));
/// assert_eq!(attempt::take_report().as_deref(), Some("no file"));
/// ```
pub fn run<R>(work: impl FnOnce() -> R) -> thread::Result<R> {
    let before = RUNNING.replace(true);
    REPORT.set(None);
    let ended = catch_unwind(AssertUnwindSafe(work));
    RUNNING.set(before);
    ended
}

/// Whether this thread is in an attempt, which then keeps the report of its panic: for the hook of a panic, which reports
/// others.
pub fn holds(report: &str) -> bool {
    // A thread that ends may panic after its values are gone.
    let is_running = RUNNING.try_with(Cell::get).unwrap_or(false);
    if is_running {
        REPORT.set(Some(report.to_owned()));
    }
    is_running
}

/// The report of the panic that has ended the last attempt of this thread, where a hook has made one.
pub fn take_report() -> Option<String> {
    REPORT.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_attempt_and_no_outer_one() {
        let seen = run(|| {
            let inner = run(|| -> u8 { panic!("caught") });
            (inner.is_err(), take_report(), holds("outer"))
        });
        assert_eq!(seen.unwrap(), (true, None, true));
        assert!(!holds("outside"));
        assert_eq!(take_report().as_deref(), Some("outer"));
        run(|| ()).unwrap();
        assert_eq!(take_report(), None);
    }
}
