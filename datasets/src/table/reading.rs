//! Rows of a table's file, one at a time, with their places in it.

#[cfg(feature = "parquet")]
mod columnar;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use csv::{ErrorKind, StringRecord};

use crate::DatasetError;
use crate::error::{too_large, unreadable, wrong_at};
use crate::files::beginning;

/// The largest file that is read, in bytes: its cells are held in memory.
const MOST_BYTES: u64 = 1 << 30;

/// The most columns.
const MOST_COLUMNS: usize = 4096;

/// The most rows: their numbers have 32 bits, and one is for categories that are none.
const MOST_ROWS: usize = u32::MAX as usize - 1;

/// Texts that stand for no value.
const MISSING: [&str; 8] = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"];

/// How many bytes of a header are looked at for what separates its cells.
const HEADER_BYTES: u64 = 64 << 10;

/// A cell in another encoding, and what to do.
const NOT_UTF_8: &str = "it is not UTF-8; `iconv -f LATIN1 -t UTF-8` converts a table in Latin-1, and Excel writes UTF-8 as \
                         \"CSV UTF-8\"";

/// What a Parquet file begins with.
pub(crate) const PARQUET_MAGIC: &[u8] = b"PAR1";

/// The rows of a file.
pub(super) struct Rows {
    path: PathBuf,
    source: Source,
    header: Vec<String>,
    read: usize,
}

enum Source {
    Csv {
        reader: csv::Reader<File>,
        record: StringRecord,
        separator: u8,
    },
    #[cfg(feature = "parquet")]
    Parquet(columnar::Cells),
}

impl Source {
    fn csv(file: File, separator: u8) -> Self {
        let mut builder = csv::ReaderBuilder::new();
        builder.delimiter(separator).trim(csv::Trim::All);
        Self::Csv {
            reader: builder.from_reader(file),
            record: StringRecord::new(),
            separator,
        }
    }
}

impl Rows {
    /// Opens a file and reads its header.
    pub(super) fn open(path: &Path) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(|source| unreadable(path, source))?;
        let length = file.metadata().map_err(|source| unreadable(path, source))?;
        if length.len() > MOST_BYTES {
            return Err(too_large(path, MOST_BYTES));
        }
        let mut this = Self {
            path: path.to_owned(),
            source: Source::csv(file, separator(path)?),
            header: Vec::new(),
            read: 0,
        };
        let header = match beginning(path, PARQUET_MAGIC.len() as u64)? == PARQUET_MAGIC {
            true => this.open_parquet()?,
            false => this.read_header()?,
        };
        if header.len() > MOST_COLUMNS {
            let problem = format!("{} columns are more than {MOST_COLUMNS}", header.len());
            return Err(this.at("the header", problem));
        }
        this.header = header;
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

    /// The first line of a CSV file.
    fn read_header(&mut self) -> Result<Vec<String>, DatasetError> {
        let header = match &mut self.source {
            Source::Csv { reader, .. } => reader.headers().cloned(),
            #[cfg(feature = "parquet")]
            Source::Parquet(_) => Ok(StringRecord::new()),
        };
        let header = header.map_err(|error| self.refused(error))?;
        Ok(header.iter().map(str::to_owned).collect())
    }

    #[cfg(feature = "parquet")]
    fn open_parquet(&mut self) -> Result<Vec<String>, DatasetError> {
        let opened = columnar::Cells::open(&self.path);
        let (cells, header) = opened.map_err(|fault| self.at(&fault.place, fault.problem))?;
        self.source = Source::Parquet(cells);
        Ok(header)
    }

    #[cfg(not(feature = "parquet"))]
    fn open_parquet(&mut self) -> Result<Vec<String>, DatasetError> {
        let problem = "this build does not read Parquet: build with `--features parquet`, or write the table as CSV";
        Err(self.at("its beginning", problem))
    }

    /// Whether cells are separated by semicolons: then numbers may have a decimal comma.
    pub(super) fn has_semicolons(&self) -> bool {
        match self.source {
            Source::Csv { separator, .. } => separator == b';',
            #[cfg(feature = "parquet")]
            Source::Parquet(_) => false,
        }
    }

    /// The names of the columns.
    pub(super) fn header(&self) -> &[String] {
        &self.header
    }

    /// The number of a column.
    pub(super) fn column(&self, name: &str) -> Result<usize, DatasetError> {
        let found = self.header.iter().position(|column| column == name);
        found.ok_or_else(|| {
            let columns = shortened(&self.header.join(", "));
            self.at(
                "the header",
                format!("there is no column `{name}`, but {columns}"),
            )
        })
    }

    /// Goes to the next row; `false` at the end.
    pub(super) fn next(&mut self) -> Result<bool, DatasetError> {
        let more = match &mut self.source {
            Source::Csv {
                reader,
                record,
                separator,
            } => {
                let more = reader.read_record(record);
                if *separator == b';' {
                    *record = with_decimal_points(record);
                }
                more.map_err(|error| self.refused(error))?
            }
            #[cfg(feature = "parquet")]
            Source::Parquet(cells) => {
                let more = cells.next();
                more.map_err(|problem| self.at(&format!("row {}", self.read + 1), problem))?
            }
        };
        self.read += usize::from(more);
        match self.read > MOST_ROWS {
            true => Err(self.at("rows", format!("there are more than {MOST_ROWS}"))),
            false => Ok(more),
        }
    }

    /// A cell of this row; `None` where it has no value.
    pub(super) fn cell(&self, column: usize) -> Option<&str> {
        match &self.source {
            Source::Csv { record, .. } => {
                let cell = record.get(column).unwrap_or_default();
                (!MISSING.contains(&cell)).then_some(cell)
            }
            #[cfg(feature = "parquet")]
            Source::Parquet(cells) => cells.cell(column),
        }
    }

    /// An error in a cell of this row.
    pub(super) fn wrong(&self, column: usize, problem: impl AsRef<str>) -> DatasetError {
        let place = match &self.source {
            Source::Csv { record, .. } => {
                format!("line {}", record.position().map_or(0, csv::Position::line))
            }
            #[cfg(feature = "parquet")]
            Source::Parquet(_) => format!("row {}", self.read),
        };
        let place = format!("{place}, column `{}`", self.header[column]);
        self.at(&place, problem)
    }

    pub(super) fn at(&self, place: &str, problem: impl AsRef<str>) -> DatasetError {
        wrong_at(&self.path, place, problem)
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
                self.at(&format!("{line}, column {column}"), NOT_UTF_8)
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

/// What separates the cells of a CSV file: tabs by its name, semicolons where its header has these and no comma, or commas.
fn separator(path: &Path) -> Result<u8, DatasetError> {
    let ending = path.extension();
    if ending.is_some_and(|ending| ending.eq_ignore_ascii_case("tsv")) {
        return Ok(b'\t');
    }
    let text = beginning(path, HEADER_BYTES)?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let header = lines.next().unwrap_or_default();
    Ok(match header.contains(&b';') && !header.contains(&b',') {
        true => b';',
        false => b',',
    })
}

/// The cells of a row with points in place of decimal commas: `47,8` is a number where semicolons separate cells.
fn with_decimal_points(record: &StringRecord) -> StringRecord {
    let cell = |cell: &str| match has_decimal_comma(cell) {
        true => cell.replace(',', "."),
        false => cell.to_owned(),
    };
    let mut changed: StringRecord = record.iter().map(cell).collect();
    changed.set_position(record.position().cloned());
    changed
}

/// Whether a text is a number with a decimal comma.
pub(super) fn has_decimal_comma(cell: &str) -> bool {
    let Some((whole, part)) = cell.split_once(',') else {
        return false;
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = part.split_once(['e', 'E']).unwrap_or((part, "0"));
    digits(whole.trim_start_matches(['+', '-']))
        && digits(mantissa)
        && digits(exponent.trim_start_matches(['+', '-']))
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
