//! A metric that an objective reports of a batch.

use std::borrow::Cow;

use burn::prelude::*;
use burn::tensor::{Int, Transaction};

use crate::metrics::sums::LOSS;

/// How many bytes the name of a metric may have: it is in lines, tables and tabs.
const LONGEST_NAME: usize = 64;

/// A number of a batch, which may still be on the device.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::prelude::*;
/// use everburn::train::Amount;
///
/// let pixels = Amount::from(64);
/// let error = Amount::from(Tensor::<1>::from_floats([0.5], &Device::flex()));
/// assert!(matches!((pixels, error), (Amount::Number(64.0), Amount::Float(_))));
/// ```
#[derive(Debug, Clone)]
pub enum Amount {
    /// Shape `[1]`; no gradients are taken of it.
    Float(Tensor<1>),
    /// Shape `[1]`.
    Int(Tensor<1, Int>),
    /// Known without the device.
    Number(f64),
}

impl Amount {
    fn values(&self) -> usize {
        match self {
            Self::Float(tensor) => tensor.dims()[0],
            Self::Int(tensor) => tensor.dims()[0],
            Self::Number(_) => 1,
        }
    }

    /// Adds it to what is read from the device, if it is there.
    pub(crate) fn register(&self, transaction: Transaction) -> Transaction {
        match self {
            Self::Float(tensor) => transaction.register(tensor.clone()),
            Self::Int(tensor) => transaction.register(tensor.clone()),
            Self::Number(_) => transaction,
        }
    }

    /// The number; `next` is the next one that was read from the device.
    pub(crate) fn read(&self, next: impl FnOnce() -> f64) -> f64 {
        match self {
            Self::Number(number) => *number,
            _ => next(),
        }
    }

    pub(crate) fn without_autodiff(self) -> Self {
        match self {
            Self::Float(tensor) => Self::Float(tensor.without_autodiff()),
            Self::Int(tensor) => Self::Int(tensor.without_autodiff()),
            number => number,
        }
    }
}

impl From<Tensor<1>> for Amount {
    fn from(tensor: Tensor<1>) -> Self {
        Self::Float(tensor.detach())
    }
}

impl From<Tensor<1, Int>> for Amount {
    fn from(tensor: Tensor<1, Int>) -> Self {
        Self::Int(tensor)
    }
}

impl From<f64> for Amount {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Amount {
    fn from(number: usize) -> Self {
        Self::Number(number as f64)
    }
}

/// A metric of a batch: a sum, and the weight by which it is divided. Sums and weights of micro-batches, ranks and
/// steps are added up; the mean is formed last.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::NamedSum;
///
/// // Of 8 samples, whose absolute errors are 2 in all.
/// let metric = NamedSum::new("mae", 2.0, 8);
/// assert_eq!(metric.name, "mae");
/// ```
#[derive(Debug, Clone)]
pub struct NamedSum {
    /// Its name, the same on all ranks.
    pub name: Cow<'static, str>,
    /// The sum.
    pub sum: Amount,
    /// What it is divided by: how many samples, pixels or pairs it is of, or the union of an intersection.
    pub weight: Amount,
}

impl NamedSum {
    /// A metric.
    ///
    /// # Panics
    /// Panics if `name` is empty, longer than 64 bytes, has control characters, or is `loss`, which is that of the
    /// objective, or if `sum` or `weight` has several values, as one of each sample.
    #[track_caller]
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        sum: impl Into<Amount>,
        weight: impl Into<Amount>,
    ) -> Self {
        let name = name.into();
        let is_plain = !name.is_empty() && !name.chars().any(char::is_control);
        assert!(
            is_plain && name.len() <= LONGEST_NAME && name != LOSS,
            "{name:?} is no name for a metric: take another than `{LOSS}`, of 1 to {LONGEST_NAME} bytes without \
             control characters"
        );
        let (sum, weight) = (sum.into(), weight.into());
        for (what, amount) in [("sum", &sum), ("weight", &weight)] {
            let values = amount.values();
            assert_eq!(
                values, 1,
                "the {what} of the metric `{name}` has {values} values, and is one number for the batch: add them up, `.sum()`"
            );
        }
        Self { name, sum, weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "\"loss\" is no name for a metric")]
    fn the_loss_has_its_name_for_itself() {
        NamedSum::new(LOSS, 1.0, 1);
    }

    #[test]
    #[should_panic(
        expected = "the sum of the metric `mae` has 3 values, and is one number for the batch: add them up, \
                               `.sum()`"
    )]
    fn a_number_of_each_sample_is_no_sum() {
        NamedSum::new("mae", Tensor::<1>::ones([3], &Device::flex()), 3);
    }

    #[test]
    #[should_panic(expected = "the weight of the metric `mae` has 3 values")]
    fn a_weight_of_each_sample_is_no_weight() {
        NamedSum::new("mae", 1.0, Tensor::<1, Int>::ones([3], &Device::flex()));
    }
}
