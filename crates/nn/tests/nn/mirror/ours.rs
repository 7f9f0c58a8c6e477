//! The models with the imports of this crate.

pub use everburn_nn as nn;
pub use everburn_nn::tensor;

#[path = "models.rs"]
#[expect(clippy::duplicate_mod, reason = "the same models with another import")]
pub mod models;
