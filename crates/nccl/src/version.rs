//! Versions as NVIDIA's libraries number them.

use std::fmt;

/// A version of NCCL.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::NcclVersion;
///
/// let version = NcclVersion::from_code(22105);
/// assert_eq!(version.to_string(), "2.21.5");
/// assert!(version > NcclVersion::from_code(2708));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NcclVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl NcclVersion {
    /// What `ncclGetVersion` says: `NCCL_VERSION` in nccl.h, which had less room up to 2.8.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        let unit = if code < 10_000 { 1000 } else { 10_000 };
        Self {
            major: code / unit,
            minor: code % unit / 100,
            patch: code % 100,
        }
    }

    /// The number of this version since 2.9.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A version of CUDA.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::CudaVersion;
///
/// assert_eq!(CudaVersion::from_code(12040).to_string(), "12.4");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl CudaVersion {
    /// What `cuDriverGetVersion` says: a thousand times the first number, ten times the second.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        Self {
            major: code / 1000,
            minor: code % 1000 / 10,
        }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nccl_h_and_cuda_h_have_them() {
        let texts = [2708, 2804, 21800, 22809].map(|code| NcclVersion::from_code(code).to_string());
        assert_eq!(texts, ["2.7.8", "2.8.4", "2.18.0", "2.28.9"]);
        assert_eq!(NcclVersion::from_code(22105).code(), 22105);
        assert_eq!(CudaVersion::from_code(13000).to_string(), "13.0");
    }
}
