//! Checkpointed segments equal the same code without checkpoints.

mod blocks;
mod equivalence;
mod memory;
pub mod model;
mod refusals;
