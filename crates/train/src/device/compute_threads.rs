//! The threads that a rank computes on.

use std::cell::RefCell;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::TrainError;

thread_local! {
    /// Ends with its thread.
    static POOL: RefCell<Option<ThreadPool>> = const { RefCell::new(None) };
}

/// Makes this thread the first of `threads` that compute together what it asks for, for the rest of its
/// life.
///
/// A thread outside a rayon pool hands each operation of a CPU back end over to the pool that all
/// share, and sleeps until it is done: two switches of threads an operation, which cost the small
/// ones more than they gain. Threads of the process without this setting, as those that read data,
/// stay with the shared pool and can neither wait for this one nor be waited for.
///
/// Does nothing on a thread of a pool.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// std::thread::spawn(|| {
///     everburn::train::compute_on_this_thread(2).unwrap();
///     assert_eq!(rayon::current_num_threads(), 2);
///     assert_eq!(rayon::current_thread_index(), Some(0));
/// })
/// .join()
/// .unwrap();
/// ```
///
/// # Errors
/// [`TrainError::Config`] if the system has no more threads.
pub fn compute_on_this_thread(threads: usize) -> Result<(), TrainError> {
    if rayon::current_thread_index().is_some() {
        return Ok(());
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads.max(1))
        .use_current_thread()
        .thread_name(|index| format!("compute-{index}"))
        .build()
        .map_err(|error| {
            TrainError::Config(format!(
                "no {threads} threads to compute on ({error}): is there a limit, `ulimit -u`?"
            ))
        })?;
    POOL.set(Some(pool));
    Ok(())
}
