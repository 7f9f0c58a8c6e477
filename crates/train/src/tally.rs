//! What a step reports: sums over samples, so that ranks can be added up.

use burn::prelude::*;
use burn::tensor::{Element, Int, TensorReadError, Transaction};
use burn_train::metric::{Adaptor, ItemLazy};
use everburn_collectives::group::{ProcessGroup, ReduceOp, Work};
use everburn_record::RankStep;
use serde::{Deserialize, Serialize};

use crate::predictions::{Classes, Predictions};
use crate::rank_times::{self, ForwardPass, NUMBERS, PastStep};

/// Sums over predictions: a prediction is the class of a sample, or the next token of a text, of
/// which a sample has many. A mean is formed last and once, over all ranks: never a mean of means.
///
/// ```
/// use everburn_train::Tally;
///
/// let two = Tally { loss_sum: 3.0, correct: 1, predictions: 2, samples: 2 };
/// let one = Tally { loss_sum: 0.0, correct: 1, predictions: 1, samples: 1 };
/// assert_eq!((two + one).mean_loss(), 1.0);
/// assert_eq!((two + one).accuracy(), 2.0 / 3.0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// The sum of each prediction's loss, in nats.
    pub loss_sum: f64,
    /// How many predictions were correct.
    pub correct: u64,
    /// How many predictions there were.
    pub predictions: u64,
    /// How many samples there were.
    pub samples: u64,
}

impl Tally {
    /// The mean loss of a prediction, NaN if there was none.
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.predictions as f64
    }

    /// The share of predictions that were correct, NaN if there was none.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.predictions as f64
    }

    /// Starts to add up the tallies and the votes to stop of all ranks.
    pub(crate) fn all_reduce(self, stop: bool, group: &ProcessGroup) -> PendingTally {
        let votes = Votes {
            stop,
            ..Votes::default()
        };
        self.all_reduce_with(votes, None, None, group)
    }

    /// The same, and lets all ranks know what memory this one has used, in bytes, and where `past` is given, on
    /// all ranks or on none, what the step before was for this rank, if it has made one.
    pub(crate) fn all_reduce_with(
        self,
        votes: Votes,
        memory: Option<u64>,
        past: Option<Option<PastStep>>,
        group: &ProcessGroup,
    ) -> PendingTally {
        let mut numbers = vec![
            self.loss_sum,
            self.correct as f64,
            self.predictions as f64,
            self.samples as f64,
            f64::from(votes.stop),
            f64::from(votes.save),
            f64::from(votes.regroup),
        ];
        // A place for each rank, so that a sum hands out what each has: their largest is wanted.
        let of_ranks = (0..group.world_size()).map(|rank| match memory {
            Some(bytes) if rank == group.rank() => bytes as f64,
            _ => 0.0,
        });
        numbers.extend(of_ranks);
        if let Some(past) = past {
            let begin = numbers.len() + NUMBERS * group.rank();
            numbers.resize(numbers.len() + NUMBERS * group.world_size(), 0.0);
            if let Some(past) = past {
                numbers[begin..begin + NUMBERS].copy_from_slice(&past.numbers());
            }
        }
        PendingTally {
            sums: group.all_reduce(numbers, ReduceOp::Sum),
            ranks: group.world_size(),
        }
    }
}

impl std::ops::Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            loss_sum: self.loss_sum + other.loss_sum,
            correct: self.correct + other.correct,
            predictions: self.predictions + other.predictions,
            samples: self.samples + other.samples,
        }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Tallies on their way between the ranks.
pub(crate) struct PendingTally {
    sums: Work<Vec<f64>>,
    ranks: usize,
}

impl PendingTally {
    /// The sum over all ranks, and whether any of them wants to stop: the same on every rank.
    pub(crate) fn wait(
        self,
    ) -> Result<(Tally, bool), everburn_collectives::group::CollectiveError> {
        let all = self.wait_for_all()?;
        Ok((all.tally, all.votes.stop))
    }

    /// All that the ranks have told.
    pub(crate) fn wait_for_all(self) -> Result<Told, everburn_collectives::group::CollectiveError> {
        let sums = self.sums.wait()?;
        let tally = Tally {
            loss_sum: sums[0],
            correct: sums[1] as u64,
            predictions: sums[2] as u64,
            samples: sums[3] as u64,
        };
        let votes = Votes {
            stop: sums[4] > 0.0,
            save: sums[5] > 0.0,
            regroup: sums[6] > 0.0,
        };
        let (memory, past) = sums[7..].split_at(self.ranks);
        let peak_memory = memory.iter().map(|bytes| *bytes as u64).max();
        Ok(Told {
            tally,
            votes,
            peak_memory: peak_memory.filter(|bytes| *bytes > 0),
            past: rank_times::of_ranks(past, |rank| rank),
        })
    }
}

/// What all ranks together found in a step.
pub(crate) struct Told {
    pub(crate) tally: Tally,
    pub(crate) votes: Votes,
    /// The most memory that a rank has told of, in bytes.
    pub(crate) peak_memory: Option<u64>,
    /// What the step before was for each rank of the group, where they have told.
    pub(crate) past: Vec<RankStep>,
}

/// What a rank wants after a step, and then what any of them wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Votes {
    pub(crate) stop: bool,
    /// A checkpoint is due.
    pub(crate) save: bool,
    /// Somebody waits to be let in.
    pub(crate) regroup: bool,
}

/// What all ranks together found in a step, once it is there.
pub(crate) enum Verdict {
    Pending(PendingTally),
    Known(Told),
}

impl Verdict {
    /// Waits for it.
    pub(crate) fn known(self) -> Result<Self, everburn_collectives::group::CollectiveError> {
        Ok(Self::Known(self.wait()?))
    }

    /// Waits for it, if need be.
    pub(crate) fn wait(self) -> Result<Told, everburn_collectives::group::CollectiveError> {
        match self {
            Self::Pending(pending) => pending.wait_for_all(),
            Self::Known(told) => Ok(told),
        }
    }
}

/// A step's report on its way to burn-train's metrics.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "one a step is alive: a box would cost more"
)]
pub enum StepReport {
    /// This process' own samples; the numbers may still be on the device.
    Local {
        /// The mean loss of a prediction, shape `[1]`.
        loss: Tensor<1>,
        /// How many predictions were correct, shape `[1]`.
        correct: Tensor<1, Int>,
        /// How many predictions there were.
        predictions: usize,
        /// How many samples there were.
        samples: usize,
        /// What the forward pass was; `None` if nobody has measured it.
        forward: Option<ForwardPass>,
        /// Which class each sample is of, and which it was taken for, where there are classes.
        classes: Option<Classes>,
    },
    /// The samples of all ranks.
    OfAllRanks {
        /// The sums.
        tally: Tally,
        /// What they cost.
        cost: StepCost,
    },
}

/// What a training step cost a rank.
///
/// ```
/// use everburn_train::StepCost;
///
/// let cost = StepCost { seconds: 0.5, exposed: 0.1, ..StepCost::default() };
/// assert_eq!((cost + cost).exposed, 0.2);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepCost {
    /// How long the step took, in seconds.
    pub seconds: f64,
    /// How long the rank stood still for other ranks, in seconds: for gradients and for the verdict
    /// on the step.
    pub waited: f64,
    /// The part of `waited` that is the exchange of gradients which the backward pass did not hide,
    /// in seconds.
    pub exposed: f64,
    /// How long gradients were being exchanged, hidden or not, in seconds.
    pub communication: f64,
    /// How many bytes of gradients the rank handed to the exchange, after compression.
    pub gradient_bytes: u64,
    /// The most memory that a rank has used ([`PeakMemory`](crate::PeakMemory)), in bytes; absent where no
    /// rank can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
}

impl std::ops::Add for StepCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            waited: self.waited + other.waited,
            exposed: self.exposed + other.exposed,
            communication: self.communication + other.communication,
            gradient_bytes: self.gradient_bytes + other.gradient_bytes,
            peak_memory: self.peak_memory.max(other.peak_memory),
        }
    }
}

impl std::ops::AddAssign for StepCost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl StepReport {
    /// The sums, read from the device where they are still there.
    ///
    /// # Errors
    /// The device's error if they cannot be read.
    pub fn tally(&self) -> Result<Tally, TensorReadError> {
        let mut tallies = StepReport::tallies(std::slice::from_ref(self))?;
        Ok(tallies.pop().unwrap_or_default())
    }

    /// The sums of several, of which those that are still on the device are read together, with one wait.
    ///
    /// # Errors
    /// As [`tally`](Self::tally).
    pub fn tallies(reports: &[Self]) -> Result<Vec<Tally>, TensorReadError> {
        let mut transaction = Transaction::default();
        for report in reports {
            if let Self::Local { loss, correct, .. } = report {
                transaction = transaction.register(loss.clone()).register(correct.clone());
            }
        }
        let read = transaction.try_execute().map_err(TensorReadError::from)?;
        let mut read = read.into_iter();
        let mut next = || read.next().expect("what was registered is read");
        let tally = |report: &Self| match report {
            Self::Local {
                predictions,
                samples,
                ..
            } => {
                let (loss, correct) = (next(), next());
                Tally {
                    loss_sum: first::<f64>(&loss) * *predictions as f64,
                    correct: first::<i64>(&correct) as u64,
                    predictions: *predictions as u64,
                    samples: *samples as u64,
                }
            }
            Self::OfAllRanks { tally, .. } => *tally,
        };
        Ok(reports.iter().map(tally).collect())
    }

    /// The same, with what the forward pass was.
    #[must_use]
    pub(crate) fn after_forward(mut self, pass: ForwardPass) -> Self {
        if let Self::Local { forward, .. } = &mut self {
            *forward = Some(pass);
        }
        self
    }
}

/// The number of a tensor that has one.
fn first<T: Element>(data: &TensorData) -> T {
    data.iter::<T>().next().expect("a sum is one number")
}

/// The output of a training step that a strategy over ranks can add up.
pub trait Report: ItemLazy + 'static {
    /// This process' sums.
    ///
    /// # Errors
    /// The device's error if they cannot be read.
    fn local(&self) -> Result<Tally, TensorReadError>;

    /// Which class each of this process' samples is of, and which it was taken for; `None` where there are no
    /// classes.
    ///
    /// # Errors
    /// The device's error if they cannot be read.
    fn predictions(&self) -> Result<Option<Predictions>, TensorReadError>;

    /// What this process' forward pass was, where it was measured.
    fn forward(&self) -> Option<ForwardPass>;

    /// The sums of several outputs of this process, read together.
    ///
    /// # Errors
    /// The device's error if they cannot be read.
    fn local_sums(outputs: &[Self]) -> Result<Vec<Tally>, TensorReadError>
    where
        Self: Sized;

    /// The output that stands for the samples of all ranks.
    fn of_all_ranks(tally: Tally, cost: StepCost) -> Self;
}

impl Report for StepReport {
    fn local(&self) -> Result<Tally, TensorReadError> {
        self.tally()
    }

    fn predictions(&self) -> Result<Option<Predictions>, TensorReadError> {
        match self {
            Self::Local {
                classes: Some(classes),
                ..
            } => classes.read().map(Some),
            _ => Ok(None),
        }
    }

    fn forward(&self) -> Option<ForwardPass> {
        match self {
            Self::Local { forward, .. } => *forward,
            Self::OfAllRanks { .. } => None,
        }
    }

    fn local_sums(outputs: &[Self]) -> Result<Vec<Tally>, TensorReadError> {
        Self::tallies(outputs)
    }

    fn of_all_ranks(tally: Tally, cost: StepCost) -> Self {
        Self::OfAllRanks { tally, cost }
    }
}

impl ItemLazy for StepReport {
    fn sync(self) -> Result<Self, burn::tensor::ExecutionError> {
        Ok(match self {
            Self::Local {
                loss,
                correct,
                predictions,
                samples,
                forward,
                classes,
            } => {
                loss.device().flush()?;
                Self::Local {
                    loss: loss.without_autodiff(),
                    correct: correct.without_autodiff(),
                    predictions,
                    samples,
                    forward,
                    classes,
                }
            }
            other => other,
        })
    }
}

impl Adaptor<StepReport> for StepReport {
    fn adapt(&self) -> StepReport {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighted_by_predictions() {
        let large = Tally {
            loss_sum: 10.0,
            correct: 9,
            predictions: 10,
            samples: 2,
        };
        let small = Tally {
            loss_sum: 5.0,
            correct: 0,
            predictions: 1,
            samples: 1,
        };
        let both = large + small;
        assert_eq!(both.mean_loss(), 15.0 / 11.0);
        assert_eq!(both.accuracy(), 9.0 / 11.0);
    }

    #[test]
    fn an_empty_tally_has_no_mean() {
        assert!(Tally::default().mean_loss().is_nan());
    }
}
