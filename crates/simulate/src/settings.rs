//! What is simulated, and what may happen at most.

use std::time::Duration;

use everburn_collectives::heartbeat::HeartbeatOptions;

pub use crate::rank::Planted;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many ranks.
    pub ranks: usize,
    /// How many of them on each machine.
    pub ranks_per_machine: usize,
    /// The fewest ranks with which the job continues.
    pub min: usize,
    /// How many faults.
    pub faults: usize,
    /// Decides all that is random.
    pub seed: u64,
    /// The heartbeats of the ranks.
    pub beats: HeartbeatOptions,
    /// How long members of a broken group are waited for.
    pub patience: Duration,
    /// How long a rank may be stopped.
    pub stopped_limit: Duration,
    /// An error on purpose.
    pub planted: Option<Planted>,
}

impl Settings {
    /// A job of `ranks`, 8 per machine, with 50 faults. Heartbeats come twice per second, and a rank without one for
    /// 1.5 s is lost.
    #[must_use]
    pub fn new(ranks: usize, seed: u64) -> Self {
        Self {
            ranks,
            ranks_per_machine: 8,
            min: ranks.div_ceil(2),
            faults: 50,
            seed,
            beats: HeartbeatOptions {
                interval: Duration::from_millis(500),
                timeout: Some(Duration::from_millis(1500)),
                ..HeartbeatOptions::default()
            },
            patience: Duration::from_secs(1),
            stopped_limit: Duration::from_millis(1500),
            planted: None,
        }
    }
}

/// What must not be exceeded.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Until all ranks are connected.
    pub rendezvous: Duration,
    /// Messages per rank and second while training.
    pub messages: f64,
    /// From a fault to the next step with the right members.
    pub resolved: Duration,
}

impl Default for Bounds {
    /// 10 s, 20 messages, 5 s.
    fn default() -> Self {
        Self {
            rendezvous: Duration::from_secs(10),
            messages: 20.0,
            resolved: Duration::from_secs(5),
        }
    }
}
