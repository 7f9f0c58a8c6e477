//! What the users of this crate see, in one program: each that links Burn takes long to link.

mod alone;
mod half_precision;
mod layers;
mod linear;
mod mirror;
mod numbers;
mod operations;
mod placement;
mod recompute;
mod replay;
mod sync;
