//! The linear layer, as its users see it.

mod drop_in;
#[path = "../sync/numbers.rs"]
mod numbers;
