//! A running child and its process group.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::ChildError;

/// How often a child is looked at: often enough for a human, too seldom to disturb a measurement.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// How long a child may take to end after SIGTERM; the launcher of ranks ends them first.
const GRACE: Duration = Duration::from_secs(10);

/// How long it may take after SIGKILL: what hangs in a driver may outlive that.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// A child that heads a process group. Nothing of the group outlives this value.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) child: Child,
    group: Pid,
    reaped: bool,
}

impl Running {
    pub(super) fn new(child: Child) -> Self {
        Self {
            group: Pid::from_child(&child),
            child,
            reaped: false,
        }
    }

    /// Waits for its end; `look` is called whenever it is looked at and has not ended.
    pub(super) fn wait(
        mut self,
        name: &str,
        deadline: Duration,
        interrupted: &AtomicBool,
        mut look: impl FnMut(),
    ) -> Result<ExitStatus, ChildError> {
        let start = Instant::now();
        while !self.has_ended() {
            look();
            if interrupted.load(Ordering::Relaxed) {
                self.end_gently();
                return Err(ChildError::Interrupted);
            }
            if start.elapsed() >= deadline {
                self.end_gently();
                return Err(ChildError::TooLong {
                    name: name.to_owned(),
                    timeout: deadline,
                });
            }
            thread::sleep(LOOK);
        }
        self.reap()
            .map_err(|error| ChildError::new(format!("{name} cannot be waited for: {error}")))
    }

    /// Whether the child has ended. It is not reaped yet, so the group's number stays ours.
    pub(super) fn has_ended(&self) -> bool {
        has_ended(self.group)
    }

    fn end_gently(&mut self) {
        self.signal(Signal::TERM);
        ends_within(self.group, GRACE);
    }

    /// Sends a signal to the child alone.
    pub(super) fn signal_head(&self, signal: Signal) {
        if !self.has_ended() {
            // It is not reaped, so its number is still its own.
            let _ = kill_process(self.group, signal);
        }
    }

    /// Sends a signal to all of the child's group; nothing once the child is reaped, because the number may be another's then.
    pub(super) fn signal(&self, signal: Signal) {
        if !self.reaped {
            // An error means that none is left, which is what is wanted.
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// Waits for a child whose output has ended, up to `timeout`, then ends what is left of it.
    pub(super) fn finish(&mut self, timeout: Duration) -> io::Result<ExitStatus> {
        ends_within(self.group, timeout);
        self.reap()
    }

    /// Ends what is left of the group, the child as the last.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        if !self.reaped {
            self.signal(Signal::KILL);
            if !ends_within(self.group, AFTER_KILL) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.reaped = true;
        }
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.reap();
    }
}

/// Whether the child `pid` ends within `timeout`. It is not reaped, so its number stays ours.
pub(crate) fn ends_within(pid: Pid, timeout: Duration) -> bool {
    let start = Instant::now();
    while !has_ended(pid) {
        if start.elapsed() >= timeout {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}
