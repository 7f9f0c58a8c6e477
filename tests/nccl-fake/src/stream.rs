//! Streams and events: each stream is a thread that does what it is given in order; events say when it has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use everburn_record::sync::{lock, wait_while};

/// How long anything in the fake waits: longer than any test, so that none hangs for ever.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// An event: over when each stream that it was recorded on has come to it.
#[derive(Default)]
pub(super) struct FakeEvent {
    outstanding: Mutex<usize>,
    over: Condvar,
}

impl FakeEvent {
    pub(super) fn is_over(&self) -> bool {
        *lock(&self.outstanding) == 0
    }

    /// As many streams will come to it.
    pub(super) fn expect(&self, streams: usize) {
        *lock(&self.outstanding) += streams;
    }

    fn arrive(&self) {
        *lock(&self.outstanding) -= 1;
        self.over.notify_all();
    }

    fn wait(&self) {
        let deadline = Instant::now() + PATIENCE;
        let outstanding = lock(&self.outstanding);
        drop(wait_while(&self.over, outstanding, deadline, |it| *it > 0));
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// A stream's end for those who give it work. Its thread ends when this is dropped and all is done.
#[derive(Clone)]
pub(super) struct FakeStream {
    tasks: Sender<Task>,
}

impl FakeStream {
    /// Of a rank whose tasks are dropped once `dead` is set.
    pub(super) fn new(dead: Arc<AtomicBool>) -> Self {
        let (tasks, given): (_, Receiver<Task>) = channel();
        let run = move || {
            for task in given {
                if !dead.load(Ordering::Acquire) {
                    task();
                }
            }
        };
        let thread = std::thread::Builder::new().name("fake-stream".into());
        thread.spawn(run).expect("a test machine has threads");
        Self { tasks }
    }

    pub(super) fn give(&self, task: impl FnOnce() + Send + 'static) {
        // A stream that is gone has nothing to do any more.
        let _ = self.tasks.send(Box::new(task));
    }

    /// One of the streams that `event` expects.
    pub(super) fn come_to(&self, event: &Arc<FakeEvent>) {
        let event = event.clone();
        self.give(move || event.arrive());
    }

    pub(super) fn wait(&self, event: &Arc<FakeEvent>) {
        let event = event.clone();
        self.give(move || event.wait());
    }
}
