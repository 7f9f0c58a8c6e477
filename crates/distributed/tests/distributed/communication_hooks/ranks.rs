//! Ranks that reduce buckets, step by step.

use everburn_collectives::group::CollectiveError;
use everburn_distributed::{CommunicationHookConfig, GradientBucket, ParameterSlot};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::ranks::on_ranks;

pub const WORLD_SIZES: [usize; 4] = [1, 2, 3, 4];

/// One bucket of one step.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub index: usize,
    pub slots: Vec<ParameterSlot>,
    pub values: Vec<f32>,
}

/// What became of it.
#[derive(Debug, Clone)]
pub struct Reduced {
    pub values: Vec<f32>,
    pub bytes: u64,
}

/// Reduces all that `buckets` gives for a rank with one hook a rank. Asserts that all ranks hold
/// the same bits and sent as many bytes, and returns what they hold.
pub fn reduce_all(
    world_size: usize,
    hook: &str,
    buckets: impl Fn(usize) -> Vec<Bucket> + Sync,
) -> Vec<Reduced> {
    let config: CommunicationHookConfig = hook.parse().unwrap();
    let mut ranks = on_ranks(world_size, |group| {
        let mut hook = config.build();
        let reduced = buckets(group.rank()).into_iter().map(|mut bucket| {
            let bytes = hook.reduce(bucket.borrow(), &group)?;
            let values = bucket.values;
            Ok(Reduced { values, bytes })
        });
        reduced
            .collect::<Result<Vec<_>, CollectiveError>>()
            .unwrap()
    });
    let first = ranks.remove(0);
    for (rank, other) in ranks.iter().enumerate() {
        assert_eq!(other.len(), first.len());
        for (step, (ours, theirs)) in first.iter().zip(other).enumerate() {
            assert_eq!(ours.bytes, theirs.bytes, "rank {}, step {step}", rank + 1);
            assert_eq!(
                bits(&ours.values),
                bits(&theirs.values),
                "rank {}, step {step}",
                rank + 1
            );
        }
    }
    first
}

impl Bucket {
    pub fn borrow(&mut self) -> GradientBucket<'_> {
        GradientBucket {
            index: self.index,
            slots: &self.slots,
            values: &mut self.values,
        }
    }

    /// A bucket that one parameter fills.
    pub fn of_one(path: &str, shape: &[usize], values: Vec<f32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        Self {
            index: 0,
            slots: slots(&[(path, shape)]),
            values,
        }
    }
}

/// The bits, with one NaN for all: which of them an addition gives is the processor's choice.
pub fn bits(values: &[f32]) -> Vec<u32> {
    let one_nan = |x: &f32| if x.is_nan() { f32::NAN } else { *x };
    values.iter().map(|x| one_nan(x).to_bits()).collect()
}

/// Parameters one after the other.
pub fn slots(parameters: &[(&str, &[usize])]) -> Vec<ParameterSlot> {
    let mut offset = 0;
    let slot = |(path, shape): &(&str, &[usize])| {
        let slot = ParameterSlot {
            path: (*path).to_owned(),
            shape: shape.to_vec(),
            offset,
        };
        offset += shape.iter().product::<usize>();
        slot
    };
    parameters.iter().map(slot).collect()
}

/// Numbers uniform between -1 and 1, others for each `seed`.
pub fn random(seed: &[usize], length: usize) -> Vec<f32> {
    let seed = seed
        .iter()
        .fold(17u64, |seed, x| seed.wrapping_mul(1_000_003) ^ *x as u64);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
    (0..length).map(|_| uniform()).collect()
}

/// A random matrix of at most this rank, row by row.
pub fn matrix_of_rank(rank: usize, rows: usize, columns: usize, seed: &[usize]) -> Vec<f32> {
    let mut matrix = vec![0.0; rows * columns];
    for k in 0..rank {
        let left = random(&[seed, &[k, 1]].concat(), rows);
        let right = random(&[seed, &[k, 2]].concat(), columns);
        for (i, value) in matrix.iter_mut().enumerate() {
            *value += left[i / columns] * right[i % columns];
        }
    }
    matrix
}

/// The sum over ranks of what each has, in `f64`.
pub fn sum_over<'a>(values: impl IntoIterator<Item = &'a [f32]>) -> Vec<f64> {
    let mut sums = Vec::new();
    for values in values {
        sums.resize(values.len(), 0.0);
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += f64::from(*value);
        }
    }
    sums
}

pub fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The norm of `expected - found`, relative to that of `expected`.
pub fn relative_error(expected: &[f64], found: &[f32]) -> f64 {
    let pairs = expected.iter().zip(found);
    let difference: Vec<f64> = pairs.map(|(x, y)| x - f64::from(*y)).collect();
    norm(&difference) / norm(expected)
}

#[test]
fn without_compression_the_sums_are_exact() {
    for world_size in WORLD_SIZES {
        for length in [0, 1, 37, 10_000] {
            // Whole numbers, of which a sum in any order is exact.
            let bucket = |rank: usize, step: usize| {
                let values = (0..length).map(|i| ((i * 7 + rank * 5 + step) % 1001) as f32);
                Bucket::of_one("weight", &[length], values.collect())
            };
            let buckets = |rank| (0..2).map(|step| bucket(rank, step)).collect();
            for (step, reduced) in reduce_all(world_size, "none", buckets).iter().enumerate() {
                let inputs: Vec<_> = (0..world_size).map(|rank| bucket(rank, step)).collect();
                let expected = sum_over(inputs.iter().map(|bucket| bucket.values.as_slice()));
                let found: Vec<f64> = reduced.values.iter().map(|x| f64::from(*x)).collect();
                assert_eq!(found, expected);
                assert_eq!(reduced.bytes, 4 * length as u64);
            }
        }
    }
}
