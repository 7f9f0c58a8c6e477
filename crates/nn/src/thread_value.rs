//! What code on a thread finds while something runs there.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Runs `work` with `value` in `variable`, and puts back what was there before, after a panic too.
pub(crate) fn with_value<T: 'static, R>(
    variable: &'static LocalKey<RefCell<Option<T>>>,
    value: T,
    work: impl FnOnce() -> R,
) -> R {
    struct Restore<T: 'static> {
        variable: &'static LocalKey<RefCell<Option<T>>>,
        before: Option<T>,
    }
    impl<T: 'static> Drop for Restore<T> {
        fn drop(&mut self) {
            self.variable.set(self.before.take());
        }
    }
    let before = variable.replace(Some(value));
    let _restore = Restore { variable, before };
    work()
}
