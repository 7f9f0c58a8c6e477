//! Tables: rows of numbers and categories, from CSV files, and from Parquet files with the feature `parquet`.
//!
//! A file is read twice, with one row in memory: once to see what each column is, and once to keep its cells, four bytes
//! each. What a column's numbers are scaled by comes from training rows alone.

mod reading;
mod schema;
mod separators;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn_dataset::Dataset;

pub(crate) use self::reading::PARQUET_MAGIC;
use self::reading::Rows;
pub use self::schema::{Column, ColumnKind, Missing, TableSchema};
use crate::DatasetError;
use crate::error::wrong_at;
use crate::files::sha256_of;
use crate::proportion::in_proportion;

/// Every row of this many is a test row.
const TEST_SHARE: usize = 10;

/// Which table is wanted, and how it is read.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{Missing, TableRequest};
///
/// let request = TableRequest { missing: Missing::Impute, ..TableRequest::new("houses.csv", "price") };
/// assert!(request.ignore.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRequest {
    /// The file: cells are separated by commas, by tabs if its name ends with `.tsv`, or by semicolons if the first line has
    /// these and no comma; then numbers may have a decimal comma. The first line names the columns. A file that begins as Parquet is read as such, with the feature `parquet`.
    pub file: PathBuf,
    /// The column to be predicted: a number, or one of its different values.
    pub target: String,
    /// Columns that are not read.
    pub ignore: Vec<String>,
    /// Columns whose numbers are names, such as postal codes.
    pub categorical: Vec<String>,
    /// What becomes of cells without a value.
    pub missing: Missing,
}

impl TableRequest {
    /// All columns of a file, to predict `target`. Missing values are refused.
    pub fn new(file: impl Into<PathBuf>, target: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            target: target.into(),
            ignore: Vec::new(),
            categorical: Vec::new(),
            missing: Missing::Refuse,
        }
    }
}

/// Training rows, test rows, and what their columns are: the answer of [`load_table`].
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{LoadedTable, TableRequest, load_table};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("houses.csv");
/// let rows: String = (0..20).map(|n| format!("{},{},{}\n", 50 + n, ["flat", "house"][n % 2], 100 + 3 * n)).collect();
/// std::fs::write(&file, format!("area,kind,price\n{rows}"))?;
///
/// let LoadedTable { train, test, schema, .. } = load_table(&TableRequest::new(file, "price"))?;
/// assert_eq!((train.len(), test.len()), (18, 2));
/// assert_eq!(schema.width(), 1 + 2, "a number and two categories");
/// let row = test.row(0);
/// assert_eq!(row.features[1..], [0.0, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct LoadedTable {
    /// Nine of ten rows.
    pub train: TableDataset,
    /// Every tenth row.
    pub test: TableDataset,
    /// What the columns are: other tables are read by it, and predictions understood.
    pub schema: TableSchema,
    /// SHA-256 of the file, in hexadecimal, and the order of the training rows where it is not the file's.
    pub fingerprint: String,
    /// Whether its cells are separated by semicolons.
    pub semicolons: bool,
}

/// Reads a table, whose every tenth row is a test row. Where the target is a class, the classes of the training rows alternate,
/// so that the last ones, which a training holds out for validation, are of all classes.
///
/// A column of numbers is standardised: its mean over training rows becomes zero, and its standard deviation one. Any other
/// column has a feature for each of the values that training rows have, of which one is one and the others are zero; a
/// value that only other rows have is none of them. The target is a number, standardised too, or a class.
///
/// # Errors
/// [`DatasetError::Read`], and [`DatasetError::Data`] if the file is too large, or with the line and the column of a cell that
/// cannot be used: of a row with more or fewer cells than the header, of a column that has numbers and other values, or
/// numbers with separators of thousands, of a missing value unless `request.missing` allows it; or with the column that is
/// named and not there.
pub fn load_table(request: &TableRequest) -> Result<LoadedTable, DatasetError> {
    let mut fingerprint = sha256_of(&request.file)?;
    let (schema, rows) = TableSchema::infer(request, is_test)?;
    if rows < TEST_SHARE {
        let problem =
            format!("{rows} rows are fewer than {TEST_SHARE}, of which one becomes a test row");
        return Err(wrong_at(&request.file, "rows", problem));
    }
    let all = schema.read(&request.file)?;
    all.needs_targets(&request.file)?;
    let (test, train): (Vec<u32>, Vec<u32>) =
        (0..all.len() as u32).partition(|row| is_test(*row as usize));
    let part = |rows: Vec<u32>| TableDataset {
        rows: rows.into(),
        ..all.clone()
    };
    let train = match &all.cells.target {
        Some(Values::Categories(classes)) => {
            // Earlier versions read them in the order of the file: their runs are told that the data are others.
            fingerprint += " in proportion";
            let order = in_proportion(train.iter().map(|row| classes[*row as usize] as usize));
            order.into_iter().map(|place| train[place]).collect()
        }
        _ => train,
    };
    Ok(LoadedTable {
        train: part(train),
        test: part(test),
        schema,
        fingerprint,
        semicolons: Rows::open(&request.file)?.has_semicolons(),
    })
}

/// Reads all rows of a table by the columns of another one, of which a model was trained: they are its test rows.
///
/// # Errors
/// As [`load_table`]; also if the table lacks a column.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{DatasetError, TableSchema, load_test_table};
///
/// fn rows(schema: &TableSchema) -> Result<usize, DatasetError> {
///     Ok(load_test_table("next-year.csv", schema)?.test.len())
/// }
/// ```
pub fn load_test_table(
    file: impl AsRef<Path>,
    schema: &TableSchema,
) -> Result<LoadedTable, DatasetError> {
    let file = file.as_ref();
    let all = schema.read(file)?;
    if all.cells.target.is_none() {
        let name = &schema.target.name;
        let problem =
            format!("there is no column `{name}`, which a test compares predictions with");
        return Err(wrong_at(file, "the header", problem));
    }
    all.needs_targets(file)?;
    Ok(LoadedTable {
        train: all.clone(),
        test: all,
        schema: schema.clone(),
        fingerprint: sha256_of(file)?,
        semicolons: Rows::open(file)?.has_semicolons(),
    })
}

/// Whether a row is a test row.
fn is_test(row: usize) -> bool {
    row % TEST_SHARE == TEST_SHARE - 1
}

/// Rows of a table, in memory: four bytes a cell. Cloning shares them.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::TableDataset;
///
/// fn mean_target(rows: &TableDataset) -> f32 {
///     let targets = (0..rows.len()).map(|row| rows.row(row).target);
///     targets.sum::<f32>() / rows.len() as f32
/// }
/// ```
#[derive(Clone)]
pub struct TableDataset {
    cells: Arc<Cells>,
    /// The numbers of the rows in the file.
    rows: Arc<[u32]>,
}

/// All cells of a file, column by column.
struct Cells {
    schema: TableSchema,
    columns: Vec<Values>,
    /// Absent in a table that is to be predicted.
    target: Option<Values>,
}

/// The cells of a column.
pub(crate) enum Values {
    /// Missing ones are not a number.
    Numbers(Vec<f32>),
    /// Numbers of categories; missing and unknown ones are [`NO_CATEGORY`].
    Categories(Vec<u32>),
}

/// A category that is none of a column's.
const NO_CATEGORY: u32 = u32::MAX;

/// A row, as a model sees it.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::TableRow;
///
/// let row = TableRow { features: vec![0.5, 0.0, 1.0], target: -0.25 };
/// assert_eq!(row.features.len(), 3);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct TableRow {
    /// The features: standardised numbers, and one and zeros of categories.
    pub features: Vec<f32>,
    /// The standardised number, or the number of the class; zero where it is unknown.
    pub target: f32,
}

impl TableDataset {
    fn of(schema: TableSchema, columns: Vec<Values>, target: Option<Values>, rows: u32) -> Self {
        Self {
            cells: Arc::new(Cells {
                schema,
                columns,
                target,
            }),
            rows: (0..rows).collect(),
        }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The first `count` rows, or all if there are fewer.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        Self {
            cells: Arc::clone(&self.cells),
            rows: self.rows[..self.len().min(count)].into(),
        }
    }

    /// Row `index`.
    ///
    /// # Panics
    /// Panics if `index >= len()`.
    pub fn row(&self, index: usize) -> TableRow {
        let row = self.rows[index] as usize;
        let Cells {
            schema,
            columns,
            target,
        } = &*self.cells;
        let mut features = Vec::with_capacity(schema.width());
        for (column, values) in schema.columns.iter().zip(columns) {
            column.kind.encode(values, row, &mut features);
        }
        let target = target.as_ref().map_or(0.0, |values| match values {
            Values::Numbers(numbers) => schema.target.kind.standardised(numbers[row]),
            Values::Categories(classes) => classes[row] as f32,
        });
        TableRow { features, target }
    }

    /// Refuses a table to learn from whose classes are not all known.
    fn needs_targets(&self, file: &Path) -> Result<(), DatasetError> {
        let Some(Values::Categories(classes)) = &self.cells.target else {
            return Ok(());
        };
        match classes.iter().position(|class| *class == NO_CATEGORY) {
            None => Ok(()),
            Some(row) => {
                let name = &self.cells.schema.target.name;
                let place = format!("row {}, column `{name}`", row + 1);
                let problem = "no training row has its class: every tenth row is a test row, or all are of another table";
                Err(wrong_at(file, &place, problem))
            }
        }
    }
}

impl Dataset<TableRow> for TableDataset {
    fn get(&self, index: usize) -> Result<TableRow, burn_dataset::DatasetError> {
        Ok(self.row(index))
    }

    fn len(&self) -> usize {
        self.rows.len()
    }
}

debug_by!(TableDataset, it => rows: it.rows.len(), columns: it.cells.columns.len());

#[cfg(test)]
mod tests;
