//! What is simulated.

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
    /// How many faults.
    pub faults: usize,
    /// Decides all that is random.
    pub seed: u64,
    /// The heartbeats of the ranks.
    pub beats: HeartbeatOptions,
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
            faults: 50,
            seed,
            beats: HeartbeatOptions {
                interval: Duration::from_millis(500),
                timeout: Some(Duration::from_millis(1500)),
                ..HeartbeatOptions::default()
            },
            planted: None,
        }
    }
}
