//! The linear layer, as its users see it.

mod deferral;
mod drop_in;
