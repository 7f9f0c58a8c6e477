//! The models with Burn's imports.

pub use burn::{nn, tensor};

#[path = "models.rs"]
pub mod models;
