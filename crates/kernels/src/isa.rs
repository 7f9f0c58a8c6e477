//! Which vector instructions the kernels use, chosen when the program runs.

use pulp::{Scalar, Simd, WithSimd};

/// A set of vector instructions.
///
/// Results are the same bits for any number of threads, but not between instruction sets: the
/// width of a vector decides in which order sums are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    /// 16 floats a vector.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 8 floats a vector, with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 4 floats a vector.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// No vectors.
    Scalar,
}

impl InstructionSet {
    /// The widest set that this processor has.
    pub(crate) fn best() -> Self {
        #[cfg(test)]
        if let Some(chosen) = CHOSEN.get() {
            return chosen;
        }
        #[cfg(target_arch = "x86_64")]
        {
            if pulp::x86::V4::try_new().is_some() {
                return Self::Avx512;
            }
            if pulp::x86::V3::try_new().is_some() {
                return Self::Avx2;
            }
        }
        #[cfg(target_arch = "aarch64")]
        if pulp::aarch64::Neon::try_new().is_some() {
            return Self::Neon;
        }
        Self::Scalar
    }

    /// How many `f32` a vector holds.
    pub(crate) fn lanes(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 8,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => 4,
            Self::Scalar => 1,
        }
    }

    /// How many vector registers there are.
    pub(crate) fn registers(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 32,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 16,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => 32,
            Self::Scalar => 16,
        }
    }

    /// Runs `operation`, compiled for this set. A set that the processor lacks falls back to no
    /// vectors, which is slow; callers start from [`InstructionSet::best`].
    #[inline]
    pub(crate) fn run<Op: WithSimd>(self, operation: Op) -> Op::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                if let Some(simd) = pulp::x86::V4::try_new() {
                    return Simd::vectorize(simd, operation);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                if let Some(simd) = pulp::x86::V3::try_new() {
                    return Simd::vectorize(simd, operation);
                }
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => {
                if let Some(simd) = pulp::aarch64::Neon::try_new() {
                    return Simd::vectorize(simd, operation);
                }
            }
            Self::Scalar => {}
        }
        Simd::vectorize(Scalar::new(), operation)
    }

    /// The sets that this processor has, for tests of all of them.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Self> {
        let mut sets = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(pulp::x86::V3::try_new().map(|_| Self::Avx2));
            sets.extend(pulp::x86::V4::try_new().map(|_| Self::Avx512));
        }
        #[cfg(target_arch = "aarch64")]
        sets.extend(pulp::aarch64::Neon::try_new().map(|_| Self::Neon));
        sets
    }

    /// Makes this the best set of this thread, for tests of all sets.
    #[cfg(test)]
    pub(crate) fn choose(self) {
        CHOSEN.set(Some(self));
    }
}

#[cfg(test)]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<InstructionSet>> = const { std::cell::Cell::new(None) };
}
