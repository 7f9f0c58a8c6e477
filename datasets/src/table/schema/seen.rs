//! What a column is, by its cells.

use std::collections::BTreeSet;

use super::{ColumnKind, Missing, finite, missing_value, mixed, separated};
use crate::DatasetError;
use crate::table::Rows;
use crate::table::reading::has_decimal_comma;
use crate::table::separators::has_separators;

/// The most different values of a column that is not of numbers: each is a feature, or a class.
const MOST_CATEGORIES: usize = 1_000;

/// What has been seen of a column.
#[derive(Default)]
pub(super) struct Seen {
    /// Asked for, or because values are no numbers.
    categorical: bool,
    /// A number has been seen, of training rows or others.
    numbers: bool,
    values: BTreeSet<String>,
    count: u64,
    mean: f64,
    /// The sum of squared distances from the mean (Welford 1962).
    squares: f64,
    /// Cells that are no numbers, where the column is not asked for as categorical.
    texts: u64,
    /// How many of them are numbers as people write them.
    written: u64,
    /// The error of the first that has separators of thousands.
    separated: Option<DatasetError>,
}

impl Seen {
    pub(super) fn of(categorical: bool) -> Self {
        Self {
            categorical,
            ..Self::default()
        }
    }

    pub(super) fn see(
        &mut self,
        rows: &Rows,
        place: usize,
        missing: Missing,
        trains: bool,
    ) -> Result<(), DatasetError> {
        let Some(cell) = rows.cell(place) else {
            return match missing {
                Missing::Refuse => Err(missing_value(rows, place)),
                Missing::Impute => Ok(()),
            };
        };
        if !self.categorical {
            if finite(cell).is_none() && cell.parse::<f64>().is_ok() {
                return Err(mixed(rows, place, cell, "is not a number, or too large"));
            }
            match finite(cell) {
                Some(number) if self.values.is_empty() => {
                    self.numbers = true;
                    if trains {
                        self.count += 1;
                        let off = f64::from(number) - self.mean;
                        self.mean += off / self.count as f64;
                        self.squares += off * (f64::from(number) - self.mean);
                    }
                    return Ok(());
                }
                None if !self.numbers => self.see_text(rows, place, cell),
                Some(_) => {
                    self.refuse_separated()?;
                    return Err(mixed(
                        rows,
                        place,
                        cell,
                        "is a number, and cells before are none",
                    ));
                }
                None => {
                    return Err(mixed(
                        rows,
                        place,
                        cell,
                        "is not a number, and cells before are numbers",
                    ));
                }
            }
        }
        // A column whose first values are in test rows is one of categories, too.
        if (trains || self.values.is_empty()) && !self.values.contains(cell) {
            self.values.insert(cell.to_owned());
        }
        match self.values.len() > MOST_CATEGORIES {
            true => {
                self.refuse_separated()?;
                let problem = format!(
                    "it has more than {MOST_CATEGORIES} different values; leave it out by table.ignore"
                );
                Err(rows.wrong(place, problem))
            }
            false => Ok(()),
        }
    }

    fn see_text(&mut self, rows: &Rows, place: usize, cell: &str) {
        let is_separated = has_separators(cell);
        self.texts += 1;
        self.written += u64::from(is_separated || has_decimal_comma(cell));
        if is_separated && self.separated.is_none() {
            self.separated = Some(separated(rows, place, cell));
        }
    }

    /// Refuses a column most of whose cells are numbers with separators of thousands: each would become a category.
    fn refuse_separated(&mut self) -> Result<(), DatasetError> {
        match self.separated.take() {
            Some(error) if 2 * self.written > self.texts => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn kind(mut self, rows: &Rows, name: &str) -> Result<ColumnKind, DatasetError> {
        self.refuse_separated()?;
        if !self.values.is_empty() {
            let values = self.values.into_iter().collect();
            return Ok(ColumnKind::Category { values });
        }
        if self.count == 0 {
            return Err(rows.at(
                &format!("column `{name}`"),
                "it has no values in training rows",
            ));
        }
        let std = (self.squares / self.count as f64).sqrt();
        Ok(ColumnKind::Number {
            mean: self.mean,
            std: if std > 0.0 { std } else { 1.0 },
        })
    }
}
