//! What the columns of a table are.

mod seen;

use std::path::Path;

use serde::{Deserialize, Serialize};

use self::seen::Seen;
use super::reading::shortened;
use super::separators::has_separators;
use super::{NO_CATEGORY, Rows, TableDataset, TableRequest, Values};
use crate::DatasetError;

/// What becomes of cells without a value: empty ones, `NA`, `N/A`, `NaN`, `null` and `?`.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::Missing;
///
/// assert_eq!(serde_json::from_str::<Missing>("\"impute\"").unwrap(), Missing::Impute);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    /// They are an error.
    #[default]
    Refuse,
    /// Of numbers, the mean over training rows takes their place; of categories, none.
    Impute,
}

/// A column.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{Column, ColumnKind};
///
/// let column = Column { name: "area".into(), kind: ColumnKind::Number { mean: 90.0, std: 30.0 } };
/// assert_eq!(column.kind.width(), 1);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name in the header.
    pub name: String,
    /// What its cells are.
    #[serde(flatten)]
    pub kind: ColumnKind,
}

/// What the cells of a column are.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::ColumnKind;
///
/// let kind = ColumnKind::Category { values: vec!["flat".into(), "house".into()] };
/// assert_eq!(kind.width(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum ColumnKind {
    /// Numbers, with their mean and standard deviation over training rows.
    Number {
        /// The mean.
        mean: f64,
        /// The standard deviation; 1 where all numbers are alike.
        std: f64,
    },
    /// Different values, in alphabetical order.
    Category {
        /// The values.
        values: Vec<String>,
    },
}

impl ColumnKind {
    /// How many features it makes.
    pub fn width(&self) -> usize {
        match self {
            Self::Number { .. } => 1,
            Self::Category { values } => values.len(),
        }
    }

    /// A number, standardised; zero where it is missing.
    pub(super) fn standardised(&self, number: f32) -> f32 {
        match self {
            Self::Number { mean, std } if !number.is_nan() => {
                ((f64::from(number) - mean) / std) as f32
            }
            _ => 0.0,
        }
    }

    /// Adds the features of a cell.
    pub(super) fn encode(&self, values: &Values, row: usize, features: &mut Vec<f32>) {
        match values {
            Values::Numbers(numbers) => features.push(self.standardised(numbers[row])),
            Values::Categories(categories) => {
                let own = categories[row] as usize;
                let one = |category| if category == own { 1.0 } else { 0.0 };
                features.extend((0..self.width()).map(one));
            }
        }
    }

    /// A column without cells.
    fn empty(&self) -> Values {
        match self {
            Self::Number { .. } => Values::Numbers(Vec::new()),
            Self::Category { .. } => Values::Categories(Vec::new()),
        }
    }
}

/// What the columns of a table are, and which one is predicted.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{Column, ColumnKind, Missing, TableSchema};
///
/// let number = |name: &str| Column { name: name.into(), kind: ColumnKind::Number { mean: 100.0, std: 20.0 } };
/// let schema = TableSchema {
///     columns: vec![number("area")],
///     target: number("price"),
///     missing: Missing::Refuse,
/// };
/// assert_eq!((schema.width(), schema.outputs()), (1, 1));
/// assert_eq!(schema.in_units(0.5), 110.0);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSchema {
    /// What is read, in the order of the file.
    pub columns: Vec<Column>,
    /// What is predicted.
    pub target: Column,
    /// What becomes of missing values.
    #[serde(default)]
    pub missing: Missing,
}

impl TableSchema {
    /// How many features a row has.
    pub fn width(&self) -> usize {
        self.columns.iter().map(|column| column.kind.width()).sum()
    }

    /// How many numbers a model predicts: one, or one for each class.
    pub fn outputs(&self) -> usize {
        self.target.kind.width()
    }

    /// The classes; `None` if a number is predicted.
    pub fn classes(&self) -> Option<&[String]> {
        match &self.target.kind {
            ColumnKind::Number { .. } => None,
            ColumnKind::Category { values } => Some(values),
        }
    }

    /// A predicted number, no longer standardised.
    pub fn in_units(&self, predicted: f32) -> f64 {
        match self.target.kind {
            ColumnKind::Number { mean, std } => f64::from(predicted) * std + mean,
            ColumnKind::Category { .. } => f64::from(predicted),
        }
    }

    /// The rows of a file that has these columns, in any order. The target may be absent, as in a table that is to be
    /// predicted; other columns are left out.
    ///
    /// # Errors
    /// As [`load_table`](crate::load_table).
    pub fn read(&self, path: &Path) -> Result<TableDataset, DatasetError> {
        let mut rows = Rows::open(path)?;
        let places = self.columns.iter().map(|column| rows.column(&column.name));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let target_place = rows.column(&self.target.name).ok();
        let mut columns: Vec<_> = self
            .columns
            .iter()
            .map(|column| column.kind.empty())
            .collect();
        let mut target = target_place.map(|_| self.target.kind.empty());
        let mut count = 0;
        while rows.next()? {
            count += 1;
            for ((column, place), values) in self.columns.iter().zip(&places).zip(&mut columns) {
                push(values, &column.kind, &rows, *place, self.missing)?;
            }
            if let (Some(place), Some(values)) = (target_place, &mut target) {
                push(values, &self.target.kind, &rows, place, Missing::Refuse)?;
            }
        }
        Ok(TableDataset::of(self.clone(), columns, target, count))
    }

    /// What the columns of a file are, and how many rows it has. `is_test` says which rows are left out of the statistics.
    pub(super) fn infer(
        request: &TableRequest,
        is_test: impl Fn(usize) -> bool,
    ) -> Result<(Self, usize), DatasetError> {
        let mut rows = Rows::open(&request.file)?;
        let target = rows.column(&request.target)?;
        for name in request.ignore.iter().chain(&request.categorical) {
            rows.column(name)?;
        }
        if request.ignore.contains(&request.target) {
            return Err(rows.at(
                "the header",
                format!("`{}` is the target, and ignored", request.target),
            ));
        }
        let header = rows.header().to_vec();
        let is_read = |name: &String| !request.ignore.contains(name);
        let mut columns: Vec<_> = header
            .iter()
            .map(|name| Seen::of(request.categorical.contains(name)))
            .collect();
        let mut count = 0;
        while rows.next()? {
            for (place, seen) in columns.iter_mut().enumerate() {
                if is_read(&header[place]) {
                    let missing = if place == target {
                        Missing::Refuse
                    } else {
                        request.missing
                    };
                    seen.see(&rows, place, missing, !is_test(count))?;
                }
            }
            count += 1;
        }
        let named = header.into_iter().zip(columns).enumerate();
        let mut kinds = named.filter(|(_, (name, _))| is_read(name));
        let mut features = Vec::new();
        let mut found = None;
        kinds.try_for_each(|(place, (name, seen))| {
            let kind = seen.kind(&rows, &name)?;
            let column = Column { name, kind };
            match place == target {
                true => found = Some(column),
                false => features.push(column),
            }
            Ok::<_, DatasetError>(())
        })?;
        let none = "there is no column but the target";
        let target = found.filter(|_| !features.is_empty());
        let target = target.ok_or_else(|| rows.at("the header", none))?;
        let schema = Self {
            columns: features,
            target,
            missing: request.missing,
        };
        Ok((schema, count))
    }
}

/// Adds a cell to its column.
fn push(
    values: &mut Values,
    kind: &ColumnKind,
    rows: &Rows,
    place: usize,
    missing: Missing,
) -> Result<(), DatasetError> {
    let cell = rows.cell(place);
    if cell.is_none() && missing == Missing::Refuse {
        return Err(missing_value(rows, place));
    }
    match (values, kind) {
        (Values::Categories(categories), ColumnKind::Category { values }) => {
            let known = cell.and_then(|cell| {
                values
                    .binary_search_by(|value| value.as_str().cmp(cell))
                    .ok()
            });
            categories.push(known.map_or(NO_CATEGORY, |category| category as u32));
        }
        (Values::Numbers(numbers), _) => numbers.push(match cell {
            None => f32::NAN,
            Some(cell) => finite(cell).ok_or_else(|| {
                mixed(
                    rows,
                    place,
                    cell,
                    "is not a number, and the column is of numbers",
                )
            })?,
        }),
        // A column begins as its kind says.
        (Values::Categories(categories), ColumnKind::Number { .. }) => categories.push(NO_CATEGORY),
    }
    Ok(())
}

/// The number in a cell; `None` of other texts and of what is not finite.
fn finite(cell: &str) -> Option<f32> {
    cell.parse::<f32>().ok().filter(|number| number.is_finite())
}

fn missing_value(rows: &Rows, place: usize) -> DatasetError {
    rows.wrong(
        place,
        "the cell has no value; `--set table.missing=impute` puts the column's mean, or no category, in its place. The target \
         must have a value in every row",
    )
}

fn separated(rows: &Rows, place: usize, cell: &str) -> DatasetError {
    let cell = shortened(&cell.escape_debug().to_string());
    rows.wrong(
        place,
        format!(
            "`{cell}` looks like a number with separators of thousands; write the column's numbers without them, as in \
             `1054.25`, or name it in table.categorical if these are names"
        ),
    )
}

fn mixed(rows: &Rows, place: usize, cell: &str, problem: &str) -> DatasetError {
    if has_separators(cell) {
        return separated(rows, place, cell);
    }
    let cell = shortened(&cell.escape_debug().to_string());
    rows.wrong(
        place,
        format!("`{cell}` {problem}; table.categorical names columns of any values"),
    )
}
