//! A mutex with a deadline, and waits with one for what may never come.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use everburn_collectives::sync::{lock, wait_while};
use everburn_collectives::worker::Worker;

/// A mutex that is only locked with a deadline: its holder may be in an NCCL call that does not return.
pub(crate) struct TimedMutex<T> {
    value: Mutex<Option<T>>,
    back: Condvar,
}

impl<T> TimedMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(Some(value)),
            back: Condvar::new(),
        }
    }

    /// The value, or `None` if `deadline` passes first.
    pub(crate) fn take_until(&self, deadline: Instant) -> Option<TimedMutexGuard<'_, T>> {
        let value = lock(&self.value);
        let (mut value, _) = wait_while(&self.back, value, deadline, |it| it.is_none());
        let value = Some(value.take()?);
        Some(TimedMutexGuard { mutex: self, value })
    }
}

pub(crate) struct TimedMutexGuard<'a, T> {
    mutex: &'a TimedMutex<T>,
    value: Option<T>,
}

impl<T> Deref for TimedMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("only `drop` takes it")
    }
}

impl<T> DerefMut for TimedMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("only `drop` takes it")
    }
}

impl<T> Drop for TimedMutexGuard<'_, T> {
    fn drop(&mut self) {
        *lock(&self.mutex.value) = self.value.take();
        self.mutex.back.notify_one();
    }
}

/// Sleeps between polls of what cannot be waited for with a deadline (a GPU event, the state of a communicator): hardly
/// at first, because most complete soon, then for a millisecond.
pub(crate) struct Backoff {
    since: Instant,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
        }
    }

    pub(crate) fn sleep(&self) {
        let rest = match self.since.elapsed().as_micros() {
            0..50 => return std::hint::spin_loop(),
            50..1000 => Duration::from_micros(20),
            _ => Duration::from_millis(1),
        };
        std::thread::sleep(rest);
    }
}

/// Calls `body` on a separate thread and waits for its result for `patience`: for calls that may never return. A later
/// result is dropped.
pub(crate) fn bounded<R: Send + 'static>(
    name: &str,
    patience: Duration,
    body: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let mut worker = Worker::start(name, (), |_| ()).ok()?;
    let answer = worker.ask(move |()| body()).wait_within(patience);
    // It may never end.
    worker.end_within(Duration::ZERO);
    answer.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_turn_is_one_threads_at_a_time_and_waited_for_with_a_deadline() {
        let mutex = Arc::new(TimedMutex::new(0));
        let mut first = mutex.take_until(Instant::now()).unwrap();
        assert!(
            mutex
                .take_until(Instant::now() + Duration::from_millis(5))
                .is_none()
        );
        *first += 1;
        let waiter = {
            let mutex = mutex.clone();
            std::thread::spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(30);
                *mutex.take_until(deadline).unwrap()
            })
        };
        drop(first);
        assert_eq!(waiter.join().unwrap(), 1);
    }

    #[test]
    fn a_call_that_does_not_return_is_left_behind() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let stuck = bounded("stuck", Duration::from_millis(10), move || {
            held.recv().is_ok()
        });
        assert_eq!(stuck, None);
        drop(release);
        assert_eq!(bounded("quick", Duration::from_secs(30), || 7), Some(7));
    }
}
