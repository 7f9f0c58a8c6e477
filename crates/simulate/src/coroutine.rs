//! The stacks of simulated threads, between which one thread of the system changes in nanoseconds.
#![allow(
    unsafe_code,
    reason = "a coroutine is left from deep within the code that it runs, which has no part in the simulation"
)]

use std::cell::Cell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{CoroutineResult, Yielder};

thread_local! {
    /// The way out of the coroutine that runs; null where none does.
    static RUNNING: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// Work that can be left and continued. It must not be dropped before its end.
pub(crate) struct Coroutine(corosensei::Coroutine<(), (), Result<(), Panicked>, DefaultStack>);

/// The work has panicked, and the panic has been printed.
pub(crate) struct Panicked;

impl Coroutine {
    /// Begins with the first [`Coroutine::resume`].
    pub(crate) fn new(stack: DefaultStack, work: impl FnOnce() + 'static) -> Self {
        Self(corosensei::Coroutine::with_stack(stack, |yielder, ()| {
            RUNNING.set(yielder);
            catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)
        }))
    }

    /// Runs until the work [`suspend`]s itself, or ends: then its stack is free.
    pub(crate) fn resume(mut self) -> ControlFlow<Result<DefaultStack, Panicked>, Self> {
        let result = self.0.resume(());
        RUNNING.set(ptr::null());
        match result {
            CoroutineResult::Yield(()) => ControlFlow::Continue(self),
            CoroutineResult::Return(result) => {
                ControlFlow::Break(result.map(|()| self.0.into_stack()))
            }
        }
    }
}

/// Leaves the coroutine that calls this, until it is resumed.
///
/// # Panics
/// Outside of any.
pub(crate) fn suspend() {
    let own = RUNNING.get();
    assert!(!own.is_null(), "only a simulated thread may wait");
    // SAFETY: It is set whenever a coroutine is entered, and reset when one is left: it is the caller's, which has it on
    // its stack as long as it runs.
    unsafe { &*own }.suspend(());
    RUNNING.set(own);
}
