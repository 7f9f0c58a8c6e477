//! What the users of this crate see without a GPU, in one program: each that links Burn takes long to link.
//!
//! Under `cargo test` all tests share a process and its generator of random numbers, which checkpointed segments seed:
//! what must be equal is drawn once, or not at all.

mod batch_norm;
mod communication_hooks;
mod ddp;
mod device;
mod loader;
mod models;
mod overlap;
mod parameters;
mod ranks;
mod steps;
mod tensor_parallel;
