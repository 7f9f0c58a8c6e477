//! What the ranks' steps took, over the run.

use std::collections::BTreeMap;

use everburn_record::{RankLine, RankStep};

/// How many columns are kept one by one; when there are twice as many, each two of the older half become one.
const MOST_COLUMNS: usize = 4096;

/// How many values are kept of all columns; with many ranks there are fewer columns.
const MOST_VALUES: usize = 1 << 19;

/// Some steps, of all ranks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Column {
    /// The last of its steps.
    pub step: u64,
    /// By rank, how long a step took, in seconds: the longest of them.
    pub seconds: BTreeMap<usize, f64>,
    /// By rank, how long it worked itself, without waiting for others, in seconds: the longest of them.
    pub work: BTreeMap<usize, f64>,
}

impl Column {
    pub(crate) fn of(line: &RankLine) -> Self {
        let steps = || line.ranks.iter();
        Self {
            step: line.step,
            seconds: steps().map(|step| (step.rank, step.seconds)).collect(),
            work: steps().map(|step| (step.rank, own_work(step))).collect(),
        }
    }

    fn values(&self) -> usize {
        self.seconds.len() + self.work.len()
    }

    /// The two as one; a slow step stays visible.
    pub(crate) fn join(&mut self, later: &Self) {
        self.step = self.step.max(later.step);
        for (map, other) in [
            (&mut self.seconds, &later.seconds),
            (&mut self.work, &later.work),
        ] {
            for (rank, value) in other {
                let place = map.entry(*rank).or_insert(0.0);
                *place = place.max(*value);
            }
        }
    }
}

/// A step without the waiting: the steps of all ranks take as long as the slowest one's.
pub(crate) fn own_work(step: &RankStep) -> f64 {
    (step.seconds - step.waited).max(0.0)
}

/// The columns of a run, the newest last.
///
/// ```
/// use everburn_monitor::History;
/// use everburn_record::{RankLine, RankStep};
///
/// let mut history = History::default();
/// let ranks = vec![RankStep { rank: 0, seconds: 0.5, waited: 0.25, ..RankStep::default() }];
/// history.push(&RankLine { step: 1, ranks, ..RankLine::default() });
/// assert_eq!(history.newest(10)[0].work[&0], 0.25);
/// ```
#[derive(Debug, Clone, Default)]
pub struct History {
    columns: Vec<Column>,
    /// How many values they have.
    values: usize,
}

impl History {
    /// Takes a line; `false` if it was there before.
    pub fn push(&mut self, line: &RankLine) -> bool {
        if self
            .columns
            .last()
            .is_some_and(|last| last.step >= line.step)
        {
            return false;
        }
        self.columns.push(Column::of(line));
        self.values += self.columns.last().map_or(0, Column::values);
        // Of columns that have no rank in common, joining keeps all values: only their number ends it then.
        while self.columns.len() > MOST_COLUMNS
            || (self.values > MOST_VALUES && self.columns.len() > 2)
        {
            let newer = self.columns.split_off(self.columns.len().div_ceil(2));
            self.columns = joined(&self.columns, self.columns.len().div_ceil(2));
            self.columns.extend(newer);
            self.values = self.columns.iter().map(Column::values).sum();
        }
        true
    }

    /// About how many bytes it holds.
    #[cfg(any(test, fuzzing))]
    pub(super) fn held(&self) -> usize {
        assert!(self.columns.len() <= MOST_COLUMNS);
        self.columns.len() * size_of::<Column>() + self.values * size_of::<(usize, f64)>()
    }

    /// The newest columns, at most `count` of them.
    #[must_use]
    pub fn newest(&self, count: usize) -> Vec<Column> {
        let first = self.columns.len().saturating_sub(count);
        self.columns[first..].to_vec()
    }

    /// The whole run in at most `count` columns.
    #[must_use]
    pub fn whole(&self, count: usize) -> Vec<Column> {
        match self.columns.len() <= count {
            true => self.columns.clone(),
            false => joined(&self.columns, count),
        }
    }
}

/// `columns` as `count` of about equal width.
fn joined(columns: &[Column], count: usize) -> Vec<Column> {
    let (all, count) = (columns.len(), count.max(1));
    let mut wide: Vec<Column> = Vec::with_capacity(count);
    for (index, column) in columns.iter().enumerate() {
        let place = index * count / all;
        match wide.get_mut(place) {
            Some(wide) => wide.join(column),
            None => wide.push(column.clone()),
        }
    }
    wide
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64, seconds: f64) -> RankLine {
        let ranks = vec![RankStep {
            rank: 3,
            seconds,
            ..RankStep::default()
        }];
        RankLine {
            step,
            ranks,
            ..RankLine::default()
        }
    }

    #[test]
    fn a_slow_step_is_seen_however_long_the_run() {
        let mut history = History::default();
        for step in 1..=20_000 {
            let seconds = if step == 77 { 9.0 } else { 1.0 };
            assert!(history.push(&line(step, seconds)));
        }
        assert!(!history.push(&line(20_000, 1.0)));
        assert!(history.columns.len() <= MOST_COLUMNS);
        let whole = history.whole(80);
        assert_eq!(whole.len(), 80);
        assert!(whole.iter().any(|column| column.seconds[&3] == 9.0));
        assert_eq!(whole.last().unwrap().step, 20_000);
        assert_eq!(history.newest(3).len(), 3);
    }
}
