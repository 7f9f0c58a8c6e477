//! What a side of `bench recompute` is to do, and what it answers.

use serde::{Deserialize, Serialize};

/// The steps that are wanted of a side.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(super) activation_checkpointing: String,
    pub(super) layers: usize,
    pub(super) width: usize,
    pub(super) heads: usize,
    /// The length of a text, in tokens.
    pub(super) context: usize,
    /// Texts a step.
    pub(super) batch: usize,
    /// Steps that are measured.
    pub(super) steps: usize,
}

/// What a side has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(super) milliseconds: f64,
    /// The most that a measured step has used.
    pub(super) peak_bytes: u64,
    pub(super) parameters: usize,
    /// Of the last step: equal on all sides.
    pub(super) loss: f64,
}
