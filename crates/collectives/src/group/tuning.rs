//! Which algorithm for which messages: a measured table.

use super::algorithm::Algorithm;

/// What the slowest path between two ranks of a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// All ranks share memory.
    SharedMemory,
    /// Some ranks are connected by TCP, and each host has one rank, or all share one host.
    Tcp,
    /// Several hosts, of which at least one has several ranks.
    Hosts,
}

/// One row: up to this many ranks and this many bytes over this path, this algorithm.
struct Row {
    path: Path,
    ranks: usize,
    bytes: usize,
    algorithm: Algorithm,
}

const ANY: usize = usize::MAX;

const DOUBLING: Algorithm = Algorithm::RecursiveDoubling;

const fn row(path: Path, ranks: usize, bytes: usize, algorithm: Algorithm) -> Row {
    Row {
        path,
        ranks,
        bytes,
        algorithm,
    }
}

/// What has been measured: 2 and 4 ranks as processes, in shared memory and over loopback TCP, on 2
/// cores of an Intel Xeon (AVX-512, KVM), 2026-11-21. The rows for more ranks and for several hosts
/// follow from the costs in [`Algorithm`]'s module.
const MEASURED: [Row; 13] = [
    row(Path::SharedMemory, 2, 32 << 10, Algorithm::Flat),
    row(Path::SharedMemory, 8, 8 << 10, Algorithm::Flat),
    row(Path::SharedMemory, ANY, 4 << 10, DOUBLING),
    row(Path::SharedMemory, ANY, ANY, Algorithm::Direct),
    row(Path::Tcp, 2, 8 << 10, Algorithm::Flat),
    row(Path::Tcp, 2, ANY, Algorithm::Direct),
    row(Path::Tcp, 8, 32 << 10, Algorithm::Flat),
    row(Path::Tcp, ANY, 4 << 10, DOUBLING),
    row(Path::Tcp, 16, ANY, Algorithm::Direct),
    row(Path::Tcp, ANY, 256 << 10, Algorithm::HalvingDoubling),
    row(Path::Tcp, ANY, ANY, Algorithm::Ring),
    row(Path::Hosts, 8, 4 << 10, Algorithm::Flat),
    row(Path::Hosts, ANY, ANY, Algorithm::Hierarchical),
];

/// The algorithm for an all-reduce of `bytes` bytes: that of the first row that fits.
pub(crate) fn choose(path: Path, ranks: usize, bytes: usize) -> Algorithm {
    let fits = |row: &&Row| row.path == path && ranks <= row.ranks && bytes <= row.bytes;
    let row = MEASURED.iter().find(fits);
    row.expect("each path has a row for any ranks and bytes")
        .algorithm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_row_that_fits_is_taken() {
        assert_eq!(choose(Path::Tcp, 2, 8 << 10), Algorithm::Flat);
        assert_eq!(choose(Path::Tcp, 2, (8 << 10) + 1), Algorithm::Direct);
        assert_eq!(choose(Path::Tcp, 3, (8 << 10) + 1), Algorithm::Flat);
        assert_eq!(choose(Path::Tcp, 17, 1 << 20), Algorithm::Ring);
        assert_eq!(choose(Path::Hosts, 9, 0), Algorithm::Hierarchical);
    }

    #[test]
    fn every_message_has_an_algorithm() {
        for path in [Path::SharedMemory, Path::Tcp, Path::Hosts] {
            choose(path, ANY, ANY);
        }
    }
}
