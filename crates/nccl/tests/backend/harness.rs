//! What the tests of the backend share.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use everburn_collectives::group::CollectiveError;
pub use everburn_tests::Meeting;

pub const SIZES: [usize; 3] = [1, 2, 4];

/// Long enough for a busy machine.
pub const GENEROUS: Duration = Duration::from_secs(60);

/// A deadline that is meant to pass, and long enough for what comes before it on a busy machine:
/// connecting has the same.
pub const SHORT: Duration = Duration::from_secs(4);

/// As [`SHORT`], where a rank is alone or already connected: nothing before it waits for others.
pub const MOMENT: Duration = Duration::from_millis(500);

/// The error of a result that must be one.
pub fn error<T: std::fmt::Debug>(result: Result<T, CollectiveError>) -> CollectiveError {
    result.expect_err("the operation should have failed")
}

/// A kernel that runs until it is released, or the test has ended.
pub struct Gate {
    open: Option<Sender<()>>,
    wait: Option<Receiver<()>>,
}

impl Gate {
    pub fn new() -> Self {
        let (open, wait) = channel();
        Self {
            open: Some(open),
            wait: Some(wait),
        }
    }

    pub fn kernel(&mut self) -> impl FnOnce() + Send + use<> + 'static {
        let wait = self.wait.take().expect("a gate has one kernel");
        move || {
            // Opened, dropped or too late: the stream continues.
            let _ = wait.recv_timeout(GENEROUS);
        }
    }

    pub fn open(&mut self) {
        self.open.take();
    }
}
