//! Event files.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::checksum::masked;
use crate::protocol;

/// How many files of one second and process there may be: more is an error of the caller.
const MOST_FILES: u32 = 1000;

/// An event file that is open for writing. Each call is one write, so that TensorBoard can read while it continues.
/// See the [crate's example](crate).
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// Makes a file in `folder`, which is made where it is missing. `host` goes into its name; `step` is how many
    /// steps have been made: what earlier files of the folder have of later steps does not count any more.
    /// `wall_time` is in seconds since 1970.
    ///
    /// # Errors
    /// The system's error if it cannot be made or written to.
    pub fn create(folder: &Path, host: &str, step: u64, wall_time: f64) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let host: String = host.chars().take(64).map(plain).collect();
        let (seconds, process) = (wall_time as u64, std::process::id());
        for number in 0..MOST_FILES {
            let name = format!("events.out.tfevents.{seconds:010}.{host}.{process}.{number}");
            let path = folder.join(name);
            match File::create_new(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    let mut this = Self { file: file?, path };
                    this.record(&protocol::version(wall_time))?;
                    if step > 0 {
                        this.record(&protocol::begins_at(wall_time, step + 1))?;
                    }
                    return Ok(this);
                }
            }
        }
        Err(io::Error::other("there are too many event files"))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes some numbers of `step`, each under its tag, as in `loss/train`. A number that is none is left out:
    /// TensorBoard would end the curve there.
    ///
    /// # Errors
    /// The system's error if they cannot be written.
    pub fn scalars(&mut self, step: u64, wall_time: f64, values: &[(&str, f64)]) -> io::Result<()> {
        let finite = values.iter().filter(|(_, value)| value.is_finite());
        let values: Vec<_> = finite.copied().collect();
        if values.is_empty() {
            return Ok(());
        }
        self.record(&protocol::scalars(wall_time, step, &values))
    }

    /// A TFRecord.
    fn record(&mut self, data: &[u8]) -> io::Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(data.len() + 16);
        record.extend(length);
        record.extend(masked(&length).to_le_bytes());
        record.extend(data);
        record.extend(masked(data).to_le_bytes());
        self.file.write_all(&record)
    }
}
