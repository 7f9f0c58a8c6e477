//! A process's view of the kernel.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everburn_collectives::runtime::Runtime;
use rand::RngExt;

use super::{Event, Kernel, nanoseconds};

/// A process's view of the kernel.
pub(super) struct ProcessRuntime {
    pub(super) kernel: Arc<Kernel>,
    pub(super) process: usize,
}

impl Runtime for ProcessRuntime {
    fn now(&self) -> Instant {
        let state = self.kernel.state();
        let local = state.processes[self.process].local(state.now);
        self.kernel.epoch + Duration::from_nanos(local)
    }

    fn wait(&self, condition: usize, deadline: Instant) {
        let wait = self.kernel.prepare();
        let local = deadline.saturating_duration_since(self.kernel.epoch);
        let mut state = self.kernel.state();
        let at = state.processes[self.process].global(nanoseconds(local));
        if condition != 0 {
            state.conditions.entry(condition).or_default().push(wait);
        }
        drop(state);
        self.kernel.block(wait, Some(Duration::from_nanos(at)));
        if condition != 0 {
            let mut state = self.kernel.state();
            if let Some(waits) = state.conditions.get_mut(&condition) {
                waits.retain(|other| *other != wait);
                if waits.is_empty() {
                    state.conditions.remove(&condition);
                }
            }
        }
    }

    fn notify(&self, condition: usize) {
        let mut state = self.kernel.state();
        let now = state.now;
        for (thread, ticket) in state.conditions.remove(&condition).unwrap_or_default() {
            state.push(now, Event::Wake { thread, ticket });
        }
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.kernel.spawn(self.process, name, work)
    }

    fn random(&self) -> u64 {
        self.kernel.state().random.random()
    }

    fn process_id(&self) -> u32 {
        10_000 + self.process as u32
    }

    fn host_name(&self) -> Option<String> {
        Some(format!(
            "machine-{:03}",
            self.kernel.machine_of(self.process)
        ))
    }
}
