//! `ranks.jsonl`: what each rank did, as a table of ranks and pieces of the run.

use std::collections::BTreeMap;
use std::path::Path;

use everburn_record::{RankLine, RankLoad, RankStep, awaited_rank, file, slow_ranks};

use super::grid::Quantity;
use super::{Note, json_lines};

/// How many pieces a run is cut into at most: each is a few pixels wide.
pub(super) const MOST_COLUMNS: usize = 240;

/// How many ranks have times of their own.
const MOST_RANKS: usize = 4096;

/// A line has about 150 bytes per rank.
const LONGEST_LINE: usize = 1 << 20;

/// Some steps of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Cell {
    steps: u64,
    seconds: f64,
    waited: f64,
}

impl Cell {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.seconds += other.seconds;
        self.waited += other.waited;
    }

    /// The mean of a step, in seconds.
    pub(super) fn mean(&self, quantity: Quantity) -> Option<f64> {
        let sum = match quantity {
            Quantity::Work => (self.seconds - self.waited).max(0.0),
            Quantity::Waited => self.waited,
            Quantity::Step => self.seconds,
        };
        (self.steps > 0).then(|| sum / self.steps as f64)
    }
}

/// A piece of the run, of all ranks.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Column {
    /// It begins at step `index * width`.
    pub(super) index: u64,
    pub(super) cells: Vec<Cell>,
}

impl Column {
    fn join(&mut self, later: &Self) {
        let count = self.cells.len().max(later.cells.len());
        self.cells.resize(count, Cell::default());
        for (cell, other) in self.cells.iter_mut().zip(&later.cells) {
            cell.add(other);
        }
    }
}

/// What a rank did over the whole run, in seconds of all steps that were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankTotal {
    /// How many steps were recorded.
    pub steps: u64,
    /// How long they took.
    pub seconds: f64,
    /// Standing still for other ranks.
    pub waited: f64,
    /// Waiting for data.
    pub data: f64,
    /// Forward passes.
    pub forward: f64,
    /// Backward passes.
    pub backward: f64,
    /// The optimizer.
    pub optimizer: f64,
    /// The most memory in a step, in bytes.
    pub peak_memory: Option<u64>,
}

impl RankTotal {
    /// The mean of a step's own work, in seconds.
    #[must_use]
    pub fn work(&self) -> f64 {
        (self.seconds - self.waited).max(0.0) / self.steps.max(1) as f64
    }

    fn add(&mut self, step: &RankStep) {
        self.steps += 1;
        self.seconds += step.seconds;
        self.waited += step.waited;
        self.data += step.data;
        self.forward += step.forward;
        self.backward += step.backward;
        self.optimizer += step.optimizer;
        self.peak_memory = self.peak_memory.max(step.peak_memory);
    }
}

/// The times of all ranks over the run, decimated as they are read.
///
/// ```
/// use everburn_report::{Quantity, RankTimes};
///
/// let mut times = RankTimes::default();
/// for step in 1..=4 {
///     let line = format!(
///         r#"{{"step":{step},"ranks":[{{"rank":0,"seconds":1,"waited":0.75}},{{"rank":1,"seconds":1}}]}}"#
///     );
///     times.push(&serde_json::from_str(&line).unwrap());
/// }
/// let grid = times.grid(Quantity::Work, 64);
/// assert_eq!(grid.rows, ["0", "1"]);
/// assert_eq!(grid.values[0][0], Some(0.25));
/// assert_eq!(times.slow(), [(1, 4.0)]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RankTimes {
    /// How many steps a column has.
    pub(super) width: u64,
    pub(super) columns: Vec<Column>,
    /// The place of each rank in the cells of a column.
    pub(super) places: BTreeMap<usize, usize>,
    totals: Vec<RankTotal>,
    left_out: bool,
}

impl Default for RankTimes {
    fn default() -> Self {
        Self {
            width: 1,
            columns: Vec::new(),
            places: BTreeMap::new(),
            totals: Vec::new(),
            left_out: false,
        }
    }
}

impl RankTimes {
    /// Reads `ranks.jsonl` of a run directory, if there is one; what is wrong with it is noted.
    pub fn read(folder: &Path, notes: &mut Vec<Note>) -> Option<Self> {
        const NAME: &str = RankLine::FILE;
        let file = super::found(file::open(&folder.join(NAME)), NAME, notes)?;
        let mut times = Self::default();
        json_lines::each(file, NAME, LONGEST_LINE, notes, |line: RankLine| {
            times.push(&line);
        });
        if times.left_out {
            let what = format!("it has more than {MOST_RANKS} ranks: the others are left out");
            notes.push(Note::new(NAME, what));
        }
        (!times.columns.is_empty()).then_some(times)
    }

    /// Adds a step. Steps that go back are added to those that were there.
    pub fn push(&mut self, line: &RankLine) {
        let index = line.step / self.width;
        // A run that was resumed may have made steps twice: both were made, and both took their time.
        let at = self.columns.partition_point(|column| column.index < index);
        if self
            .columns
            .get(at)
            .is_none_or(|column| column.index != index)
        {
            let cells = Vec::new();
            self.columns.insert(at, Column { index, cells });
        }
        for step in &line.ranks {
            let times = [step.seconds, step.waited, step.exposed, step.data];
            let passes = [step.forward, step.backward, step.optimizer];
            if !times
                .iter()
                .chain(&passes)
                .all(|time| (0.0..1e9).contains(time))
            {
                continue;
            }
            let Some(place) = self.place(step.rank) else {
                continue;
            };
            let cells = &mut self.columns[at].cells;
            if cells.len() <= place {
                cells.resize(place + 1, Cell::default());
            }
            cells[place].add(&Cell {
                steps: 1,
                seconds: step.seconds,
                waited: step.waited,
            });
            self.totals[place].add(step);
        }
        while self.columns.len() > MOST_COLUMNS {
            self.width *= 2;
            let columns = std::mem::take(&mut self.columns);
            for mut column in columns {
                column.index /= 2;
                match self.columns.last_mut() {
                    Some(last) if last.index == column.index => last.join(&column),
                    _ => self.columns.push(column),
                }
            }
        }
    }

    fn place(&mut self, rank: usize) -> Option<usize> {
        if let Some(place) = self.places.get(&rank) {
            return Some(*place);
        }
        if self.totals.len() == MOST_RANKS {
            self.left_out = true;
            return None;
        }
        self.places.insert(rank, self.totals.len());
        self.totals.push(RankTotal::default());
        Some(self.totals.len() - 1)
    }

    /// The ranks, in order, with what each did.
    pub fn totals(&self) -> impl ExactSizeIterator<Item = (usize, &RankTotal)> {
        let totals = self.places.iter();
        totals.map(|(rank, place)| (*rank, &self.totals[*place]))
    }

    /// The ranks whose own work takes at least a quarter longer than the median rank's, with how many times as long it
    /// takes, the slowest first.
    #[must_use]
    pub fn slow(&self) -> Vec<(usize, f64)> {
        slow_ranks(&self.loads())
    }

    /// The rank that the others have waited for, where one is [slow](Self::slow) over eight steps or more and they waited at
    /// least a quarter of their time, with that part. What the slow rank waits itself is not counted: that is the exchange's own.
    #[must_use]
    pub fn waited_for(&self) -> Option<(usize, f64)> {
        awaited_rank(&self.loads())
    }

    fn loads(&self) -> Vec<RankLoad> {
        let of_rank = |(rank, total): (usize, &RankTotal)| RankLoad {
            rank,
            steps: total.steps,
            seconds: total.seconds,
            waited: total.waited,
        };
        self.totals().map(of_rank).collect()
    }
}

#[cfg(test)]
mod tests;
