//! The decisions of a launcher that a simulation makes, too. No part of the API.

pub use crate::supervisor::machine_processes::{MachineProcesses, StoreEvent};
pub use crate::supervisor::stopped::{Process, StoppedRanks};
