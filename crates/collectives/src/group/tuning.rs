//! Which algorithm for which messages: a measured table, and tables of the user's own.

use std::str::FromStr;

use super::algorithm::Algorithm;

/// How many rows a table may have: enough for three sizes at four numbers of ranks over two kinds
/// of path, and little enough that [`super::GroupOptions`] stays cheap to copy.
const MAX_ROWS: usize = 24;

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

impl Path {
    const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
            Self::Hosts => "hosts",
        }
    }
}

/// One row: up to so many ranks and so many bytes over this path, this algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    path: Path,
    ranks: usize,
    bytes: usize,
    algorithm: Algorithm,
}

/// Which algorithm a group takes for which messages: the first row that fits.
///
/// A table is text with one row a line: path (`shm`, `tcp`, or `hosts` for several hosts with
/// several ranks each), most ranks, most bytes (`any` for no limit), algorithm. `#` begins a
/// comment. A message that no row fits is exchanged [`Algorithm::Direct`].
///
/// ```
/// use everburn_collectives::group::{GroupOptions, Tuning};
///
/// let tuning: Tuning = "
///     shm     4      16384  flat
///     tcp     any    any    ring
/// ".parse()?;
/// let options = GroupOptions { tuning, ..GroupOptions::default() };
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    rows: [Option<Row>; MAX_ROWS],
}

const ANY: usize = usize::MAX;

const fn row(path: Path, ranks: usize, bytes: usize, algorithm: Algorithm) -> Option<Row> {
    Some(Row {
        path,
        ranks,
        bytes,
        algorithm,
    })
}

impl Tuning {
    /// The table for what has been measured: 2 and 4 ranks as processes, in shared memory and over
    /// loopback TCP, on 2 cores of an Intel Xeon (AVX-512, KVM), 2026-11-21. The rows for more
    /// ranks and for several hosts follow from the costs in [`Algorithm`]'s module.
    pub const MEASURED: Self = Self::of(&[
        row(Path::SharedMemory, 2, 32 << 10, Algorithm::Flat),
        row(Path::SharedMemory, 8, 8 << 10, Algorithm::Flat),
        row(
            Path::SharedMemory,
            ANY,
            4 << 10,
            Algorithm::RecursiveDoubling,
        ),
        row(Path::SharedMemory, ANY, ANY, Algorithm::Direct),
        row(Path::Tcp, 2, 8 << 10, Algorithm::Flat),
        row(Path::Tcp, 2, ANY, Algorithm::Direct),
        row(Path::Tcp, 8, 32 << 10, Algorithm::Flat),
        row(Path::Tcp, ANY, 4 << 10, Algorithm::RecursiveDoubling),
        row(Path::Tcp, 16, ANY, Algorithm::Direct),
        row(Path::Tcp, ANY, 256 << 10, Algorithm::HalvingDoubling),
        row(Path::Tcp, ANY, ANY, Algorithm::Ring),
        row(Path::Hosts, 8, 4 << 10, Algorithm::Flat),
        row(Path::Hosts, ANY, ANY, Algorithm::Hierarchical),
    ]);

    const fn of(given: &[Option<Row>]) -> Self {
        let mut rows = [None; MAX_ROWS];
        let mut index = 0;
        while index < given.len() {
            rows[index] = given[index];
            index += 1;
        }
        Self { rows }
    }

    /// The algorithm for an all-reduce of `bytes` bytes.
    pub(crate) fn choose(&self, path: Path, ranks: usize, bytes: usize) -> Algorithm {
        let fits = |row: &&Row| row.path == path && ranks <= row.ranks && bytes <= row.bytes;
        let row = self.rows.iter().flatten().find(fits);
        row.map_or(Algorithm::Direct, |row| row.algorithm)
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::MEASURED
    }
}

impl FromStr for Tuning {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rows = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let row = read_row(&words).map_err(|reason| format!("line {number}: {reason}"))?;
            rows.push(Some(row));
        }
        if rows.len() > MAX_ROWS {
            let found = rows.len();
            return Err(format!("{found} rows are more than the {MAX_ROWS} allowed"));
        }
        Ok(Self::of(&rows))
    }
}

fn read_row(words: &[&str]) -> Result<Row, String> {
    let [path, ranks, bytes, algorithm] = words else {
        let found = words.len();
        return Err(format!(
            "a row has a path, ranks, bytes and an algorithm, not {found} words"
        ));
    };
    let paths = [Path::SharedMemory, Path::Tcp, Path::Hosts];
    let path = paths.into_iter().find(|known| known.name() == *path);
    let limit = |word: &str| match word {
        "any" => Ok(ANY),
        word => word
            .parse()
            .map_err(|_| format!("`{word}` is neither a number nor `any`")),
    };
    Ok(Row {
        path: path.ok_or("the path is not shm, tcp or hosts")?,
        ranks: limit(ranks)?,
        bytes: limit(bytes)?,
        algorithm: algorithm.parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_row_that_fits_is_taken() {
        let tuning: Tuning = "tcp 2 10 flat\ntcp 2 any ring # comment\n\nshm any any flat"
            .parse()
            .unwrap();
        let choose = |path, ranks, bytes| tuning.choose(path, ranks, bytes);
        assert_eq!(choose(Path::Tcp, 2, 10), Algorithm::Flat);
        assert_eq!(choose(Path::Tcp, 2, 11), Algorithm::Ring);
        assert_eq!(choose(Path::Tcp, 3, 1), Algorithm::Direct);
        assert_eq!(choose(Path::SharedMemory, 99, ANY), Algorithm::Flat);
    }

    #[test]
    fn a_table_that_cannot_be_read_says_where() {
        for (text, expected) in [
            ("\nshm 2 flat", "line 2: a row has a path"),
            ("udp 2 2 flat", "line 1: the path is not shm"),
            ("tcp two 2 flat", "line 1: `two` is neither"),
            ("tcp 2 2 flatter", "line 1: there is no algorithm `flatter`"),
        ] {
            let error = text.parse::<Tuning>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let long = "shm 1 1 flat\n".repeat(MAX_ROWS + 1);
        assert!(long.parse::<Tuning>().unwrap_err().contains("25 rows"));
    }
}
