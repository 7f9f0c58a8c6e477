//! Where the threads of a test meet.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use everburn_record::sync::{lock, wait_while};

/// Long enough for a busy machine.
const GENEROUS: Duration = Duration::from_secs(60);

/// A place where the ranks of a test meet outside of the group under test. Unlike the standard library's barrier it
/// has a deadline, so a rank that fails does not hang the others.
pub struct Meeting {
    size: usize,
    arrived: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    /// A place for `size` threads.
    pub fn of(size: usize) -> Self {
        Self {
            size,
            arrived: Mutex::new(0),
            changed: Condvar::new(),
        }
    }

    /// Waits until each thread has arrived as often as this one.
    ///
    /// # Panics
    /// If one has not come in time.
    pub fn wait(&self) {
        let deadline = Instant::now() + GENEROUS;
        let mut arrived = lock(&self.arrived);
        let turn = *arrived / self.size;
        *arrived += 1;
        self.changed.notify_all();
        let waits = |arrived: &mut usize| *arrived / self.size == turn;
        let late = wait_while(&self.changed, arrived, deadline, waits).1;
        assert!(!late, "a rank has not come to the meeting");
    }
}
