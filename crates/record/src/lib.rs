//! Shared ground of what writes a run and what reads one, without Burn: `train` writes with it, `report`, `monitor`,
//! `profile`, the command line and the benchmarks read and print with it.
//!
//! - [`file`](mod@file) writes whole files or none, and opens files without following links.
//! - [`lines`] reads the lines of a file of any length in bounded memory.
//! - [`proc`] reads what Linux tells of this machine and its processes.
//! - [`units`] writes bytes, times, counts and shares as a person reads them.
//!
//! ```
//! use everburn_record::file;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("report.json");
//! file::write(&path, b"{}")?;
//! assert_eq!(file::read_text(&path, 1 << 20)?, "{}");
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod file;
pub mod lines;
pub mod proc;
pub mod units;
