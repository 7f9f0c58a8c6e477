//! Gradients that stay on their devices: the same numbers as through host memory, and the same errors.
//!
//! Devices are made up here: tensors of the processor, whose memory is lent to the stand-in for NCCL, as
//! CUDA's is to NCCL.

mod communicators;
mod connecting;
mod failures;
mod results;
mod rounded;
mod sharding;
pub mod ways;
