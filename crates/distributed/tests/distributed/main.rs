//! What the users of this crate see without a GPU, in one program: each that links Burn takes long to link.

mod batch_norm;
mod communication_hooks;
mod ddp;
mod deferral;
mod device;
mod loader;
mod models;
mod overlap;
mod steps;
mod tensor_parallel;
