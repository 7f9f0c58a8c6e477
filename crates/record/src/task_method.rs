//! The method of a task that a thread is in, for the report of a panic: Burn's own messages name neither task nor model.

use std::cell::Cell;

thread_local! {
    static PRESENT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Runs `method`, which is called `name`. A panic in it is reported with that name.
///
/// ```
/// use everburn_record::task_method;
///
/// let inside = task_method::within("Task::model", task_method::present);
/// assert_eq!((inside, task_method::present()), (Some("Task::model"), None));
/// ```
pub fn within<R>(name: &'static str, method: impl FnOnce() -> R) -> R {
    struct Restore(Option<&'static str>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PRESENT.set(self.0);
        }
    }
    let _restore = Restore(PRESENT.replace(Some(name)));
    method()
}

/// The innermost method that this thread is in. A panic's hook may ask: the stack is not yet unwound there.
pub fn present() -> Option<&'static str> {
    // A thread that ends may panic after its values are gone.
    PRESENT.try_with(Cell::get).ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn the_innermost_method_counts_and_a_panic_leaves_it() {
        let seen = within("Task::loss", || {
            let inner = within("Task::model", present);
            (inner, present())
        });
        assert_eq!(seen, (Some("Task::model"), Some("Task::loss")));
        let panicked = catch_unwind(|| within("Task::data", || panic!("no data")));
        assert!(panicked.is_err());
        assert_eq!(present(), None);
    }
}
