//! Layers with our kernels compute what Burn's do.

mod comparison;
mod equivalence;
mod images;
mod shapes;
