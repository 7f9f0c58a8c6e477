//! Rows of a CSV file, one at a time, with their lines.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use csv::{ErrorKind, StringRecord};
use sha2::{Digest, Sha256};

use crate::DatasetError;
use crate::tar::unreadable;

/// The largest file that is read, in bytes: its cells are held in memory.
const MOST_BYTES: u64 = 1 << 30;

/// The most columns.
const MOST_COLUMNS: usize = 4096;

/// The most rows: their numbers have 32 bits, and one is for categories that are none.
const MOST_ROWS: usize = u32::MAX as usize - 1;

/// Texts that stand for no value.
const MISSING: [&str; 8] = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"];

/// The rows of a file.
pub(super) struct Rows {
    path: PathBuf,
    reader: csv::Reader<File>,
    record: StringRecord,
    header: Vec<String>,
    read: usize,
}

/// SHA-256 of a file, in hexadecimal.
pub(super) fn fingerprint(path: &Path) -> Result<String, DatasetError> {
    let failed = |source| unreadable(path, source);
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path).map_err(failed)?, &mut hash).map_err(failed)?;
    Ok(format!("{:x}", hash.finalize()))
}

impl Rows {
    /// Opens a file and reads its header.
    pub(super) fn open(path: &Path) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(|source| unreadable(path, source))?;
        let length = file.metadata().map_err(|source| unreadable(path, source))?;
        if length.len() > MOST_BYTES {
            return Err(DatasetError::TooLarge {
                path: path.to_owned(),
                most: MOST_BYTES,
            });
        }
        let tabs = path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("tsv"));
        let mut builder = csv::ReaderBuilder::new();
        builder
            .delimiter(if tabs { b'\t' } else { b',' })
            .trim(csv::Trim::All);
        let mut this = Self {
            path: path.to_owned(),
            reader: builder.from_reader(file),
            record: StringRecord::new(),
            header: Vec::new(),
            read: 0,
        };
        let header = this.reader.headers().cloned();
        let header = header.map_err(|error| this.refused(error))?;
        if header.len() > MOST_COLUMNS {
            let problem = format!("{} columns are more than {MOST_COLUMNS}", header.len());
            return Err(this.at("the header", problem));
        }
        this.header = header.iter().map(str::to_owned).collect();
        // Some programs begin a file with a mark.
        if let Some(first) = this.header.first_mut() {
            *first = first.trim_start_matches('\u{feff}').to_owned();
        }
        let mut seen = BTreeSet::new();
        for (number, name) in this.header.iter().enumerate() {
            if name.is_empty() {
                return Err(this.at("the header", format!("column {} has no name", number + 1)));
            }
            if !seen.insert(name) {
                return Err(this.at("the header", format!("two columns are called `{name}`")));
            }
        }
        Ok(this)
    }

    /// The names of the columns.
    pub(super) fn header(&self) -> &[String] {
        &self.header
    }

    /// The number of a column.
    pub(super) fn column(&self, name: &str) -> Result<usize, DatasetError> {
        let found = self.header.iter().position(|column| column == name);
        found.ok_or_else(|| {
            let columns = self.header.join(", ");
            self.at(
                "the header",
                format!("there is no column `{name}`, but {}", shortened(&columns)),
            )
        })
    }

    /// Goes to the next row; `false` at the end.
    pub(super) fn next(&mut self) -> Result<bool, DatasetError> {
        let more = self.reader.read_record(&mut self.record);
        let more = more.map_err(|error| self.refused(error))?;
        self.read += usize::from(more);
        match self.read > MOST_ROWS {
            true => Err(self.at("rows", format!("there are more than {MOST_ROWS}"))),
            false => Ok(more),
        }
    }

    /// A cell of this row; `None` where it has no value.
    pub(super) fn cell(&self, column: usize) -> Option<&str> {
        let cell = self.record.get(column).unwrap_or_default();
        (!MISSING.contains(&cell)).then_some(cell)
    }

    /// An error in a cell of this row.
    pub(super) fn wrong(&self, column: usize, problem: impl Into<String>) -> DatasetError {
        let line = self.record.position().map_or(0, csv::Position::line);
        self.at(
            &format!("line {line}, column `{}`", self.header[column]),
            problem,
        )
    }

    pub(super) fn at(&self, place: &str, problem: impl Into<String>) -> DatasetError {
        DatasetError::Table {
            path: self.path.clone(),
            place: place.to_owned(),
            problem: problem.into(),
        }
    }

    fn refused(&self, error: csv::Error) -> DatasetError {
        let line = error.position().map_or(1, csv::Position::line);
        let line = format!("line {line}");
        match error.into_kind() {
            ErrorKind::Io(source) => unreadable(&self.path, source),
            ErrorKind::Utf8 { err, .. } => {
                let column = self.header.get(err.field());
                let column =
                    column.map_or((err.field() + 1).to_string(), |name| format!("`{name}`"));
                self.at(&format!("{line}, column {column}"), "it is not UTF-8")
            }
            ErrorKind::UnequalLengths {
                expected_len, len, ..
            } => {
                let column = self.header.get(len as usize);
                let lacks = column.map(|name| format!(": `{name}` is missing"));
                let problem = format!(
                    "{len} cells, and the header has {expected_len}{}",
                    lacks.unwrap_or_default()
                );
                self.at(&line, problem)
            }
            other => self.at(&line, format!("{other:?}")),
        }
    }
}

/// As much as a line has room for.
pub(super) fn shortened(text: &str) -> String {
    /// Longer ones hide the rest of a message.
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}
