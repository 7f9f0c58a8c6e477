//! Layers with our kernels compute what Burn's do.

mod comparison;
mod drop_in;
mod equivalence;
mod images;
mod shapes;
