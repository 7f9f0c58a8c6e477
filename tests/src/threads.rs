//! Ranks of a test that are threads.

use std::thread;

/// Calls `body` with each input on a thread of its own; the results in the order of the inputs.
///
/// # Panics
/// If `body` does.
pub fn in_parallel<I: Send, R: Send>(
    inputs: impl IntoIterator<Item = I>,
    body: impl Fn(I) -> R + Sync,
) -> Vec<R> {
    let body = &body;
    thread::scope(|scope| {
        let inputs = inputs.into_iter();
        let threads = inputs.map(|input| scope.spawn(move || body(input)));
        let threads = threads.collect::<Vec<_>>();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread panicked"))
            .collect()
    })
}
