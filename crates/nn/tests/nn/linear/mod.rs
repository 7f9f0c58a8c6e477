//! The linear layer, as its users see it.

mod drop_in;
mod split_backward;
