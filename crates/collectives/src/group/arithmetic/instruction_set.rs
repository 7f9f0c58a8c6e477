//! One loop, compiled for several instruction sets, of which the machine's best is run.
//!
//! The release binary is built for every x86-64 processor, whose baseline has vectors of 16 bytes
//! only. Here each loop is compiled thrice, and `pulp` asks the processor once. On other
//! architectures (NEON on aarch64) the baseline is what there is.
//!
//! All of them compute the same bits: IEEE 754 prescribes sums, products, quotients and
//! comparisons, the compiler neither reorders nor fuses them, and the NaN that it leaves open is
//! settled by [`super::Accumulator::canonical`].

/// A loop that is to be compiled for several instruction sets.
pub(crate) trait Kernel {
    /// Runs the loop. To be `inline(always)`, and all that it calls too: what is not inlined is
    /// compiled for the baseline.
    fn run(self);
}

/// Runs `kernel` on the widest vectors that this machine has.
#[cfg(target_arch = "x86_64")]
pub(crate) fn run(kernel: impl Kernel) {
    // `pulp::Arch` does the same, but only as far as features ask for: AVX2 is not among those
    // that Burn asks for, and another set of features would build Burn twice.
    if let Some(avx512) = pulp::x86::V4::try_new() {
        avx512.vectorize(Inlined(kernel));
    } else if let Some(avx2) = pulp::x86::V3::try_new() {
        avx2.vectorize(Inlined(kernel));
    } else {
        kernel.run();
    }
}

/// Runs `kernel` as it is compiled for all machines of this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn run(kernel: impl Kernel) {
    kernel.run();
}

/// A kernel in the form that `pulp` calls.
#[cfg(target_arch = "x86_64")]
struct Inlined<K>(K);

#[cfg(target_arch = "x86_64")]
impl<K: Kernel> pulp::NullaryFnOnce for Inlined<K> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.run();
    }
}
