//! How many floating point operations layers compute. It is counted by `everburn-kernels`; in a build without the
//! back end of CPUs, nobody counts.

#[cfg(feature = "flex")]
pub(crate) use everburn_kernels::add_operations;
#[cfg(feature = "flex")]
pub use everburn_kernels::{count_operations, operations_counted, peak_operations};

#[cfg(not(feature = "flex"))]
pub use self::nobody::*;

#[cfg(not(feature = "flex"))]
mod nobody {
    /// Whether operations are counted from now on: in this build they never are.
    pub fn count_operations(_wanted: bool) {}

    /// How many operations have been counted: none in this build.
    pub fn operations_counted() -> u64 {
        0
    }

    /// How many operations per second this machine computes at most: in this build 0, which is not known.
    pub fn peak_operations() -> f64 {
        0.0
    }

    pub(crate) fn add_operations(_sums: usize, _terms: usize) {}
}
