//! One loop, compiled for several instruction sets, of which the machine's best is run.
//!
//! The release binary is built for every x86-64 processor, whose baseline has vectors of 16 bytes
//! only. Here each loop is compiled thrice, and `pulp` asks the processor once. On other
//! architectures (NEON on aarch64) the baseline is what there is.
//!
//! All of them compute the same bits: IEEE 754 prescribes sums, products, quotients and
//! comparisons, the compiler neither reorders nor fuses them, and the NaN that it leaves open is
//! settled by [`super::Accumulator::canonical`].

#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

use super::conversion::{Baseline, ConvertF16};

/// A loop that is to be compiled for several instruction sets.
pub(crate) trait Kernel {
    /// Runs the loop. To be `inline(always)`, and all that it calls too: what is not inlined is
    /// compiled for the baseline.
    fn run<S: ConvertF16>(self, set: S);
}

/// An instruction set for which the loops are compiled and which this machine has.
//
// `pulp::Arch` is the same, but it knows AVX2 only as a feature, which is not among those that
// Burn asks for: another set of features would build Burn twice.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InstructionSet {
    /// That of every machine of this architecture.
    Baseline,
    /// Vectors of 32 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx2(V3),
    /// Vectors of 64 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512(V4),
}

impl InstructionSet {
    /// The widest that this machine has.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(avx512) = V4::try_new() {
                return Self::Avx512(avx512);
            }
            if let Some(avx2) = V3::try_new() {
                return Self::Avx2(avx2);
            }
        }
        Self::Baseline
    }

    /// All that this machine has.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let all = [
            Some(Self::Baseline),
            #[cfg(target_arch = "x86_64")]
            V3::try_new().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            V4::try_new().map(Self::Avx512),
        ];
        all.into_iter().flatten().collect()
    }

    /// Runs `kernel` as it is compiled for this instruction set.
    pub(crate) fn run(self, kernel: impl Kernel) {
        match self {
            Self::Baseline => kernel.run(Baseline),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(avx2) => avx2.vectorize(Inlined(kernel, avx2)),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(avx512) => avx512.vectorize(Inlined(kernel, avx512)),
        }
    }
}

/// A kernel in the form that `pulp` calls.
#[cfg(target_arch = "x86_64")]
struct Inlined<K, S>(K, S);

#[cfg(target_arch = "x86_64")]
impl<K: Kernel, S: ConvertF16> pulp::NullaryFnOnce for Inlined<K, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.run(self.1);
    }
}
