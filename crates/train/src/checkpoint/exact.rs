//! Numbers in a manifest that a person can read and that keep their bits: JSON's numbers may come back
//! changed in the last place.

use everburn_record::number_or_nan;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
struct Exact {
    /// For people; of what is not finite, JSON has none.
    #[serde(deserialize_with = "number_or_nan")]
    value: f64,
    /// The same in hexadecimal.
    bits: String,
}

impl Exact {
    fn of(value: f64) -> Self {
        let bits = format!("{:016x}", value.to_bits());
        Self { value, bits }
    }

    fn get<E: serde::de::Error>(&self) -> Result<f64, E> {
        let bits = u64::from_str_radix(&self.bits, 16);
        bits.map(f64::from_bits)
            .map_err(|_| E::custom(format!("`{}` are no bits of a number", self.bits)))
    }
}

pub(super) mod best {
    use super::{Deserialize, Deserializer, Exact, Serialize, Serializer};
    use everburn_record::BestEpoch;

    #[derive(Serialize, Deserialize)]
    struct Best {
        epoch: usize,
        validation_loss: Exact,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Exact>,
    }

    #[allow(clippy::ref_option)] // serde's signature
    pub(in crate::checkpoint) fn serialize<S: Serializer>(
        best: &Option<BestEpoch>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let best = best.map(|best| Best {
            epoch: best.epoch,
            validation_loss: Exact::of(best.validation_loss),
            value: best.value.map(Exact::of),
        });
        best.serialize(serializer)
    }

    pub(in crate::checkpoint) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Option<BestEpoch>, D::Error> {
        let best = Option::<Best>::deserialize(deserializer)?;
        let best = best.map(|best| {
            Ok(BestEpoch {
                epoch: best.epoch,
                validation_loss: best.validation_loss.get()?,
                value: best.value.map(|value| value.get()).transpose()?,
            })
        });
        best.transpose()
    }
}

pub(super) mod sums {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use super::{Deserialize, Deserializer, Exact, Serialize, Serializer};
    use crate::metrics::sums::{ACCURACY, MetricSums, WeightedSum};

    #[derive(Serialize, Deserialize)]
    struct Sums {
        loss_sum: Exact,
        /// The accuracy's sum, whose weight is the predictions; also where nothing has been counted yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        correct: Option<u64>,
        predictions: u64,
        samples: u64,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        metrics: BTreeMap<String, Sum>,
    }

    #[derive(Serialize, Deserialize)]
    struct Sum {
        sum: Exact,
        weight: Exact,
    }

    /// How many predictions were correct, if that is all that the accuracy says.
    fn correct_of(sums: &MetricSums) -> Option<u64> {
        let Some(accuracy) = sums.metrics.get(ACCURACY) else {
            return sums.is_nothing().then_some(0);
        };
        let correct = accuracy.sum as u64;
        let is_count = correct as f64 == accuracy.sum;
        (is_count && accuracy.weight == sums.predictions as f64).then_some(correct)
    }

    pub(in crate::checkpoint) fn serialize<S: Serializer>(
        sums: &MetricSums,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let correct = correct_of(sums);
        let others = sums.metrics.iter();
        let others = others.filter(|(name, _)| correct.is_none() || *name != ACCURACY);
        let sum = |of: &WeightedSum| Sum {
            sum: Exact::of(of.sum),
            weight: Exact::of(of.weight),
        };
        let sums = Sums {
            loss_sum: Exact::of(sums.loss_sum),
            correct,
            predictions: sums.predictions,
            samples: sums.samples,
            metrics: others
                .map(|(name, of)| (name.to_string(), sum(of)))
                .collect(),
        };
        sums.serialize(serializer)
    }

    pub(in crate::checkpoint) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<MetricSums, D::Error> {
        let read = Sums::deserialize(deserializer)?;
        let sums = MetricSums {
            loss_sum: read.loss_sum.get()?,
            predictions: read.predictions,
            samples: read.samples,
            ..MetricSums::default()
        };
        let mut sums = match read.correct {
            Some(correct) if !sums.is_nothing() => {
                let predictions = sums.predictions as f64;
                sums.with_metric(ACCURACY, correct as f64, predictions)
            }
            _ => sums,
        };
        for (name, Sum { sum, weight }) in read.metrics {
            let (sum, weight) = (sum.get()?, weight.get()?);
            let sum = WeightedSum { sum, weight };
            sums.metrics.insert(Cow::Owned(name), sum);
        }
        Ok(sums)
    }
}
