//! Numbers in a manifest that a person can read and that keep their bits: JSON's numbers may come back
//! changed in the last place.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
struct Exact {
    /// For people.
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
    use crate::report::BestEpoch;

    #[derive(Serialize, Deserialize)]
    struct Best {
        epoch: usize,
        validation_loss: Exact,
    }

    #[allow(clippy::ref_option)] // serde's signature
    pub(in crate::checkpoint) fn serialize<S: Serializer>(
        best: &Option<BestEpoch>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let best = best.map(|best| Best {
            epoch: best.epoch,
            validation_loss: Exact::of(best.validation_loss),
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
            })
        });
        best.transpose()
    }
}

pub(super) mod tally {
    use super::{Deserialize, Deserializer, Exact, Serialize, Serializer};
    use crate::tally::Tally;

    #[derive(Serialize, Deserialize)]
    struct Sums {
        loss_sum: Exact,
        correct: u64,
        predictions: u64,
        samples: u64,
    }

    pub(in crate::checkpoint) fn serialize<S: Serializer>(
        tally: &Tally,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let sums = Sums {
            loss_sum: Exact::of(tally.loss_sum),
            correct: tally.correct,
            predictions: tally.predictions,
            samples: tally.samples,
        };
        sums.serialize(serializer)
    }

    pub(in crate::checkpoint) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Tally, D::Error> {
        let sums = Sums::deserialize(deserializer)?;
        Ok(Tally {
            loss_sum: sums.loss_sum.get()?,
            correct: sums.correct,
            predictions: sums.predictions,
            samples: sums.samples,
        })
    }
}
