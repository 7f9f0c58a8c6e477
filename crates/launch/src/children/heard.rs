//! What a child says while it runs.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// How much is taken in at once of a child that runs: one that never stops talking has its deadline, too.
const AT_ONCE: u64 = 1 << 24;

/// A line that a child says.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::Said;
///
/// fn log(said: Said<'_>) -> String {
///     match said {
///         Said::Output(line) => line.to_owned(),
///         Said::Error(line) => format!("! {line}"),
///     }
/// }
/// assert_eq!(log(Said::Error("no such kernel")), "! no such kernel");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'a> {
    /// On its standard output.
    Output(&'a str),
    /// On its standard error.
    Error(&'a str),
}

/// A file that is being written, as far as it was read.
pub(super) struct Growing {
    file: Option<File>,
    /// The beginning of a line.
    begun: Vec<u8>,
}

impl Growing {
    pub(super) fn open(path: &Path) -> Self {
        Self {
            file: File::open(path).ok(),
            begun: Vec::new(),
        }
    }

    /// Hands each line to `hear` that was written since the last call; at the `end` also one that was only begun.
    pub(super) fn hear(&mut self, end: bool, hear: impl FnMut(&str)) {
        if let Some(file) = &self.file {
            let most = if end { u64::MAX } else { AT_ONCE };
            // What cannot be read is not heard.
            let _ = Read::take(file, most).read_to_end(&mut self.begun);
        }
        let newline = self.begun.iter().rposition(|byte| *byte == b'\n');
        let whole = match end {
            true => self.begun.len(),
            false => newline.map_or(0, |newline| newline + 1),
        };
        String::from_utf8_lossy(&self.begun[..whole])
            .lines()
            .for_each(hear);
        self.begun.drain(..whole);
    }
}
