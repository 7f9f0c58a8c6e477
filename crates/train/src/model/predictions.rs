//! Which classes a classifier takes for which.

use burn::prelude::*;
use burn::tensor::{Int, TensorReadError};
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_record::ConfusionMatrix;

/// The classes of a batch's samples, which may still be on the device.
///
/// # Shapes
/// - predicted, actual: `[B]`, each below `count`
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::Classes;
///
/// let device = Device::flex();
/// let ints = |values| Tensor::<1, Int>::from_ints(values, &device);
/// let classes = Classes { count: 3, predicted: ints([0, 2]), actual: ints([1, 2]) };
/// assert_eq!(classes.read().unwrap().pairs, [(1, 0), (2, 2)]);
/// ```
#[derive(Debug, Clone)]
pub struct Classes {
    /// How many classes there are.
    pub count: usize,
    /// Which class each sample was taken for.
    pub predicted: Tensor<1, Int>,
    /// Which class it is of.
    pub actual: Tensor<1, Int>,
}

impl Classes {
    /// The same in the host's memory.
    ///
    /// # Errors
    /// The device's error if they cannot be read.
    pub fn read(&self) -> Result<Predictions, TensorReadError> {
        let read = |classes: &Tensor<1, Int>| -> Result<Vec<usize>, TensorReadError> {
            let data = classes.clone().try_into_data()?;
            Ok(data.iter::<i64>().map(|class| class as usize).collect())
        };
        let (actual, predicted) = (read(&self.actual)?, read(&self.predicted)?);
        Ok(Predictions {
            classes: self.count,
            pairs: actual.into_iter().zip(predicted).collect(),
        })
    }
}

/// What a classifier took some samples for.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// let predictions = everburn::train::Predictions { classes: 2, pairs: vec![(0, 1), (1, 1)] };
/// assert_eq!(predictions.pairs.len(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Predictions {
    /// How many classes there are.
    pub classes: usize,
    /// For each sample its class, and the one it was taken for.
    pub pairs: Vec<(usize, usize)>,
}

/// How many of this rank's samples of each class were taken for each class.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    classes: usize,
    /// Row by row; `f64` counts up to 2^53 of them.
    counts: Vec<f64>,
}

impl Counts {
    /// Counts some samples, unless there are too many classes for anybody to look at.
    pub(crate) fn add(&mut self, predictions: &Predictions) {
        let classes = predictions.classes;
        if classes > ConfusionMatrix::MOST_CLASSES {
            return;
        }
        if self.counts.is_empty() {
            self.classes = classes;
            self.counts = vec![0.0; classes * classes];
        }
        for (actual, predicted) in &predictions.pairs {
            if *actual < classes && *predicted < classes && classes == self.classes {
                self.counts[actual * classes + predicted] += 1.0;
            }
        }
    }

    /// The sums over all ranks, all of which call this; `None` where there are no classes. A rank may have had no
    /// samples, and then does not know how many classes there are.
    pub(crate) fn all_reduce(
        mut self,
        group: &ProcessGroup,
        names: &[String],
    ) -> Result<Option<ConfusionMatrix>, CollectiveError> {
        let classes = group.all_reduce(vec![self.classes as f64], ReduceOp::Max);
        let classes = classes.wait()?[0] as usize;
        if classes == 0 {
            return Ok(None);
        }
        self.counts.resize(classes * classes, 0.0);
        let counts = group.all_reduce(self.counts, ReduceOp::Sum).wait()?;
        let name = |class: usize| names.get(class).cloned();
        Ok(Some(ConfusionMatrix {
            split: "test".to_string(),
            step: None,
            classes: (0..classes)
                .map(|class| name(class).unwrap_or_else(|| class.to_string()))
                .collect(),
            counts: counts
                .chunks_exact(classes)
                .map(|row| row.iter().map(|count| *count as u64).collect())
                .collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;

    use super::*;

    #[test]
    fn samples_are_counted_by_what_they_are_and_what_they_were_taken_for() {
        let mut counts = Counts::default();
        for pairs in [vec![(0, 0), (0, 1)], vec![(1, 1), (5, 0)]] {
            counts.add(&Predictions { classes: 2, pairs });
        }
        let group = ProcessGroup::alone(GroupOptions::default());
        let names = ["cat".to_string()];
        let matrix = counts.all_reduce(&group, &names).unwrap().unwrap();
        assert_eq!(matrix.classes, ["cat", "1"]);
        assert_eq!(matrix.counts, [[1, 1], [0, 1]]);
        matrix.check().unwrap();
        let none = Counts::default().all_reduce(&group, &[]).unwrap();
        assert_eq!(none, None);
    }
}
