//! The method of a task that a thread is in, and what it works on, for the report of a panic: Burn's own messages name neither
//! task nor model.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What a thread works on, in words that are made when they are asked for.
type Facts = Rc<dyn Fn() -> String>;

thread_local! {
    static PRESENT: Cell<Option<&'static str>> = const { Cell::new(None) };
    static FACTS: RefCell<Option<Facts>> = const { RefCell::new(None) };
}

/// Runs `method`, which is called `name`. A panic in it is reported with that name.
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

/// Runs `work`. The report of a panic in it has what `facts` says. It is asked while the thread panics, and must not panic.
pub fn with_facts<R>(facts: impl Fn() -> String + 'static, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Facts>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FACTS.set(self.0.take());
        }
    }
    let _restore = Restore(FACTS.replace(Some(Rc::new(facts))));
    work()
}

/// What this thread works on.
pub fn facts() -> Option<String> {
    let facts = FACTS.try_with(|facts| facts.try_borrow().ok()?.clone());
    facts.ok().flatten().map(|facts| facts())
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

    #[test]
    fn the_innermost_facts_count_and_a_panic_leaves_them() {
        let say = |text: &'static str| move || text.to_owned();
        let seen = with_facts(say("outer"), || {
            let inner = with_facts(say("inner"), facts);
            (inner.unwrap(), facts().unwrap())
        });
        assert_eq!(seen, ("inner".to_owned(), "outer".to_owned()));
        let panicked = catch_unwind(|| with_facts(say("a batch"), || panic!("no data")));
        assert!(panicked.is_err());
        assert_eq!(facts(), None);
    }
}
