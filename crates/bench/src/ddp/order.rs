//! What a rank of `bench ddp` is to do, and what rank 0 answers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a step consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Forward and backward.
    Compute,
    /// The exchange of gradients that are there already.
    Communication,
    /// Forward and backward, then the exchange.
    Sequential,
    /// Forward and backward, with the exchange beside it.
    Overlapped,
}

impl Mode {
    pub(super) const ALL: [Self; 4] = [
        Self::Compute,
        Self::Communication,
        Self::Sequential,
        Self::Overlapped,
    ];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Communication => "communication",
            Self::Sequential => "sequential",
            Self::Overlapped => "overlapped",
        })
    }
}

/// The steps that are wanted of a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(super) mode: Mode,
    pub(super) transport: String,
    /// The inputs and outputs of each layer.
    pub(super) width: usize,
    pub(super) layers: usize,
    /// Samples of each rank.
    pub(super) batch: usize,
    /// Steps that are measured.
    pub(super) steps: usize,
}

/// What rank 0 reports of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// The median over the steps of the slowest rank's time.
    pub(super) milliseconds: f64,
    /// Of that, waiting for gradients on rank 0.
    pub(super) exposed_ms: f64,
    /// Of the model.
    pub(super) parameters: usize,
}
