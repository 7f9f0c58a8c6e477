//! The times of all ranks as a table.

use super::ranks::{MOST_COLUMNS, RankTimes};

/// Which of a rank's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// What the rank did itself: the step without the waiting. Ranks wait for each other, so their steps take equally
    /// long, and only this tells who is slow.
    Work,
    /// Standing still for other ranks.
    Waited,
    /// The whole step.
    Step,
}

/// A table of times: rows are ranks, or the slowest of several, columns are pieces of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// What each row is: a rank, or several as `0–3`.
    pub rows: Vec<String>,
    /// The first step of the first column.
    pub from: u64,
    /// How many steps a column has.
    pub width: u64,
    /// For each row, the mean of a step in each column, in seconds; absent where the rank took no part.
    pub values: Vec<Vec<Option<f64>>>,
}

impl RankTimes {
    /// The table of `quantity`. With more ranks than `most_rows`, a row is the slowest of several.
    #[must_use]
    pub fn grid(&self, quantity: Quantity, most_rows: usize) -> Grid {
        let ranks = self.places.iter().map(|(rank, place)| (*rank, *place));
        let ranks: Vec<(usize, usize)> = ranks.collect();
        let of_a_row = ranks.len().div_ceil(most_rows.max(1)).max(1);
        let (places, apart) = self.places_of_columns();
        let count = places.last().map_or(0, |last| last + 1);
        let row = |band: &[(usize, usize)]| {
            let mut row = vec![None; count];
            for (column, place) in self.columns.iter().zip(&places) {
                let cells = band
                    .iter()
                    .filter_map(|(_, place)| column.cells.get(*place));
                let means = cells.filter_map(|cell| cell.mean(quantity));
                row[*place] = means.reduce(f64::max);
            }
            row
        };
        let name = |band: &[(usize, usize)]| match band {
            [(rank, _)] => rank.to_string(),
            [(first, _), .., (last, _)] => format!("{first}–{last}"),
            [] => String::new(),
        };
        let first = self.columns.first().map_or(0, |column| column.index);
        Grid {
            rows: ranks.chunks(of_a_row).map(name).collect(),
            from: first.saturating_mul(self.width),
            width: self.width.saturating_mul(apart),
            values: ranks.chunks(of_a_row).map(row).collect(),
        }
    }

    /// Where each column stands in a table, and how many of the columns one of the table stands for. Steps are recorded every
    /// so often: what lies between is no gap. Where nobody recorded for longer than that, there is one.
    fn places_of_columns(&self) -> (Vec<usize>, u64) {
        let gaps = self
            .columns
            .windows(2)
            .map(|pair| pair[1].index - pair[0].index);
        let apart = gaps.min().unwrap_or(1);
        let first = self.columns.first().map_or(0, |column| column.index);
        let places = self
            .columns
            .iter()
            .map(|column| (column.index - first) / apart);
        let places: Vec<u64> = places.collect();
        if places
            .last()
            .is_some_and(|last| *last >= 2 * MOST_COLUMNS as u64)
        {
            // Gaps would be all there is.
            return ((0..self.columns.len()).collect(), apart);
        }
        (
            places.into_iter().map(|place| place as usize).collect(),
            apart,
        )
    }
}
