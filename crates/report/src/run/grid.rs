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
            let mut row = vec![(0.0, 0_u32); count];
            for (column, place) in self.columns.iter().zip(&places) {
                let cells = band
                    .iter()
                    .filter_map(|(_, place)| column.cells.get(*place));
                let means = cells.filter_map(|cell| cell.mean(quantity));
                if let Some(slowest) = means.reduce(f64::max) {
                    row[*place].0 += slowest;
                    row[*place].1 += 1;
                }
            }
            let mean = |(sum, count): (f64, u32)| (count > 0).then(|| sum / f64::from(count));
            row.into_iter().map(mean).collect::<Vec<Option<f64>>>()
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

    /// Where each column is in a table, and how many of the columns one of the table stands for. Steps are recorded every
    /// so often, and some between: one of the table is as wide as nine of ten pauses are at most, so that what is
    /// between is no gap. Where nobody recorded for longer than that, there is one.
    fn places_of_columns(&self) -> (Vec<usize>, u64) {
        let gaps = self.columns.windows(2);
        let mut gaps: Vec<u64> = gaps.map(|pair| pair[1].index - pair[0].index).collect();
        gaps.sort_unstable();
        let most = gaps.len().saturating_sub(1) * 9 / 10;
        let usual = gaps.get(most).copied().unwrap_or(1);
        let first = self.columns.first().map_or(0, |column| column.index);
        let last = self.columns.last().map_or(0, |column| column.index);
        // This many that there is room for them, whatever was recorded.
        let apart = usual
            .max((last - first).div_ceil(2 * MOST_COLUMNS as u64))
            .max(1);
        let places = self.columns.iter();
        let places = places.map(|column| ((column.index - first) / apart) as usize);
        (places.collect(), apart)
    }
}
