//! The devices of a rank: threads, memory, kernels.

pub(crate) mod compute_threads;
pub(crate) mod kernels;
pub(crate) mod memory;
pub(crate) mod verification;
