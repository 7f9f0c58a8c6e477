//! `confusion.json`: which classes a classifier takes for which.

use serde::{Deserialize, Serialize};

/// What `confusion.json` holds: how many samples of each class were taken for each class.
///
/// ```
/// use everburn_record::ConfusionMatrix;
///
/// let matrix = ConfusionMatrix {
///     split: "test".into(),
///     step: Some(300),
///     classes: vec!["cat".into(), "dog".into()],
///     counts: vec![vec![8, 2], vec![1, 9]],
/// };
/// matrix.check().unwrap();
/// assert_eq!(matrix.total(), 20);
/// assert_eq!(matrix.correct(), 17);
/// assert_eq!(matrix.recall(0), Some(0.8));
/// assert_eq!(matrix.precision(0), Some(8.0 / 9.0));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConfusionMatrix {
    /// Which part of the data was counted: `test` or `validation`.
    #[serde(default)]
    pub split: String,
    /// After how many steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// For each true class, how many of its samples were taken for each class.
    pub counts: Vec<Vec<u64>>,
}

impl ConfusionMatrix {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "confusion.json";

    /// How many classes there may be: more can neither be drawn nor read.
    pub const MOST_CLASSES: usize = 1000;

    /// Checks that there is a count for each two classes.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        let classes = self.classes.len();
        if classes == 0 || classes > Self::MOST_CLASSES {
            let most = Self::MOST_CLASSES;
            return Err(format!(
                "it has {classes} classes, and 1 to {most} can be shown"
            ));
        }
        if self.counts.len() != classes {
            let rows = self.counts.len();
            return Err(format!(
                "it has {classes} classes and {rows} rows of counts"
            ));
        }
        let is_short = |row: &Vec<u64>| row.len() != classes;
        match self.counts.iter().position(is_short) {
            None => Ok(()),
            Some(row) => Err(format!(
                "row {row} of its counts has {} numbers, and there are {classes} classes",
                self.counts[row].len()
            )),
        }
    }

    /// How many samples there are.
    pub fn total(&self) -> u64 {
        sum(self.counts.iter().flatten().copied())
    }

    /// How many of them were taken for what they are.
    pub fn correct(&self) -> u64 {
        sum((0..self.classes.len()).map(|class| self.count(class, class)))
    }

    /// How many samples of class `actual` were taken for class `predicted`.
    pub fn count(&self, actual: usize, predicted: usize) -> u64 {
        let row = self.counts.get(actual);
        row.and_then(|row| row.get(predicted)).copied().unwrap_or(0)
    }

    /// How many samples of class `actual` there are.
    pub fn actual(&self, actual: usize) -> u64 {
        sum(self.counts.get(actual).into_iter().flatten().copied())
    }

    /// The share of the samples of `class` that were recognised; absent if there are none.
    pub fn recall(&self, class: usize) -> Option<f64> {
        share(self.count(class, class), self.actual(class))
    }

    /// The share of the samples taken for `class` that are of it; absent if there are none.
    pub fn precision(&self, class: usize) -> Option<f64> {
        let taken = sum((0..self.counts.len()).map(|actual| self.count(actual, class)));
        share(self.count(class, class), taken)
    }

    /// The mistakes made most often, as (true class, predicted class, how often), at most `most` of them.
    pub fn mistakes(&self, most: usize) -> Vec<(usize, usize, u64)> {
        let classes = 0..self.classes.len();
        let pairs = classes
            .clone()
            .flat_map(|a| classes.clone().map(move |p| (a, p)));
        let wrong = pairs.filter(|(actual, predicted)| actual != predicted);
        let mut mistakes: Vec<_> = wrong
            .map(|(actual, predicted)| (actual, predicted, self.count(actual, predicted)))
            .filter(|(_, _, count)| *count > 0)
            .collect();
        mistakes.sort_by_key(|(actual, predicted, count)| (u64::MAX - count, *actual, *predicted));
        mistakes.truncate(most);
        mistakes
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(classes: usize, counts: &[&[u64]]) -> ConfusionMatrix {
        ConfusionMatrix {
            classes: (0..classes).map(|class| class.to_string()).collect(),
            counts: counts.iter().map(|row| row.to_vec()).collect(),
            ..ConfusionMatrix::default()
        }
    }

    #[test]
    fn counts_that_do_not_fit_are_named() {
        let wrong = |classes, counts| matrix(classes, counts).check().unwrap_err();
        assert!(wrong(0, &[]).contains("0 classes"));
        assert!(wrong(1001, &[]).contains("1001 classes"));
        assert!(wrong(2, &[&[1, 2]]).contains("1 rows"));
        assert!(wrong(2, &[&[1, 2], &[1]]).contains("row 1"));
    }

    #[test]
    fn what_has_no_samples_has_no_share() {
        let matrix = matrix(2, &[&[u64::MAX, 1], &[0, 0]]);
        assert_eq!(matrix.recall(1), None);
        assert_eq!(matrix.precision(1), Some(0.0));
        assert_eq!(matrix.total(), u64::MAX);
    }

    #[test]
    fn the_most_frequent_mistake_comes_first() {
        let matrix = matrix(3, &[&[5, 1, 4], &[4, 9, 0], &[0, 2, 9]]);
        assert_eq!(matrix.mistakes(3), [(0, 2, 4), (1, 0, 4), (2, 1, 2)]);
    }
}
