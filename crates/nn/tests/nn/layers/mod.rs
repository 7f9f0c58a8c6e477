//! Layers with kernels of ours compute what Burn's do.

mod comparison;
mod drop_in;
mod equivalence;
mod images;
mod shapes;
