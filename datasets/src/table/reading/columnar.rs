//! Rows of a Parquet file.

use std::fs::File;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use data_encoding::HEXLOWER;
use parquet::basic::Repetition;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};

use super::MOST_BYTES;

/// The cells of one row after the other, as text.
pub(super) struct Cells {
    rows: RowIter<'static>,
    row: Vec<Option<String>>,
}

/// What is wrong with a file, and where.
pub(super) struct Fault {
    pub(super) place: String,
    pub(super) problem: String,
}

impl Cells {
    /// Opens a file; the names of its columns.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<String>), Fault> {
        let fault = |place: &str, problem: String| Fault {
            place: place.to_owned(),
            problem,
        };
        let file = File::open(path).map_err(|error| fault("the file", error.to_string()))?;
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let reader = caught(|| SerializedFileReader::new(file));
        let reader = reader.map_err(|problem| fault("its footer", problem))?;
        let reader = reader.map_err(|error| fault("its footer", error.to_string()))?;
        check_sizes(reader.metadata(), length).map_err(|problem| fault("its footer", problem))?;
        let schema = reader.metadata().file_metadata().schema_descr();
        let mut header = Vec::new();
        for field in schema.root_schema().get_fields() {
            let name = field.name().to_owned();
            let info = field.get_basic_info();
            let repeats = info.has_repetition() && info.repetition() == Repetition::REPEATED;
            if repeats || !field.is_primitive() {
                let problem = "its cells have several values each, and a table has one";
                return Err(fault(&format!("column `{name}`"), problem.to_owned()));
            }
            header.push(name);
        }
        let rows = caught(|| reader.into_iter()).map_err(|problem| fault("its footer", problem))?;
        let cells = Self {
            rows,
            row: Vec::new(),
        };
        Ok((cells, header))
    }

    /// Goes to the next row; `false` at the end.
    pub(super) fn next(&mut self) -> Result<bool, String> {
        match caught(|| self.rows.next())? {
            None => Ok(false),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(row)) => {
                self.row = texts(row);
                Ok(true)
            }
        }
    }

    /// A cell of this row; `None` where it has no value.
    pub(super) fn cell(&self, column: usize) -> Option<&str> {
        self.row.get(column)?.as_deref()
    }
}

/// What `read` yields. The crate panics on some files that are damaged; nothing that it has then is used any more.
fn caught<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    let read = panic::catch_unwind(AssertUnwindSafe(read));
    read.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("it is damaged ({})", text.unwrap_or_default())
    })
}

/// Refuses a footer whose sizes are absurd, before anything of that size is read.
fn check_sizes(metadata: &ParquetMetaData, length: u64) -> Result<(), String> {
    let mut whole: u64 = 0;
    for (number, group) in metadata.row_groups().iter().enumerate() {
        for column in group.columns() {
            let (at, size) = (column.data_page_offset(), column.compressed_size());
            let (Ok(at), Ok(size)) = (u64::try_from(at), u64::try_from(size)) else {
                return Err(format!("row group {number} has a size or place below 0"));
            };
            if at.saturating_add(size) > length {
                return Err(format!("row group {number} ends after the file does"));
            }
            whole = whole.saturating_add(column.uncompressed_size().unsigned_abs());
        }
    }
    match whole > MOST_BYTES {
        true => Err(format!(
            "the columns have {whole} bytes, more than {MOST_BYTES}, which is the most that is read"
        )),
        false => Ok(()),
    }
}

/// The cells of a row. A float that is not a number has no value, as in CSV.
fn texts(row: Row) -> Vec<Option<String>> {
    let text = |(_, field)| match field {
        Field::Null => None,
        Field::Float(number) => (!number.is_nan()).then(|| number.to_string()),
        Field::Double(number) => (!number.is_nan()).then(|| number.to_string()),
        Field::Float16(number) => (!number.is_nan()).then(|| number.to_f32().to_string()),
        Field::Bool(value) => Some(value.to_string()),
        Field::Byte(number) => Some(number.to_string()),
        Field::Short(number) => Some(number.to_string()),
        Field::Int(number) => Some(number.to_string()),
        Field::Long(number) => Some(number.to_string()),
        Field::UByte(number) => Some(number.to_string()),
        Field::UShort(number) => Some(number.to_string()),
        Field::UInt(number) => Some(number.to_string()),
        Field::ULong(number) => Some(number.to_string()),
        Field::Str(text) => Some(text),
        // Some programs do not mark text as such.
        Field::Bytes(bytes) => Some(match std::str::from_utf8(bytes.data()) {
            Ok(text) => text.to_owned(),
            Err(_) => HEXLOWER.encode(bytes.data()),
        }),
        // Dates, times and decimals.
        other => Some(other.to_string()),
    };
    row.into_columns().into_iter().map(text).collect()
}
