//! The linear layer, as its users see it.

mod deferral;
mod drop_in;
#[path = "../sync/numbers.rs"]
mod numbers;
