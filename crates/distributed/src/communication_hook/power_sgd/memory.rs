//! What PowerSGD remembers of a parameter from step to step.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

use super::orthonormal::orthonormalise;
use super::products;

/// The shape of a gradient as a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Shape {
    /// The first dimension, and all others together; `None` for scalars and vectors.
    pub(super) fn of(shape: &[usize]) -> Option<Self> {
        let (rows, others) = shape.split_first()?;
        (!others.is_empty()).then(|| Self {
            rows: *rows,
            columns: others.iter().product(),
        })
    }

    /// Whether two factors of `rank` columns have fewer elements than the matrix.
    pub(super) fn shrinks(self, rank: usize) -> bool {
        // In 128 bits, because the rank may be any number.
        let factors = rank as u128 * (self.rows as u128 + self.columns as u128);
        factors < self.rows as u128 * self.columns as u128
    }
}

/// What one rank remembers of one parameter.
#[derive(Debug)]
pub(super) struct Memory {
    shape: Shape,
    /// How many steps have begun.
    steps: u64,
    /// The columns of `Q`, one after the other, orthonormal; the same on all ranks. Empty until
    /// compression begins.
    right: Vec<f32>,
    /// What this rank has not sent yet: `E_w`. Empty until compression begins.
    error: Vec<f32>,
}

impl Memory {
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            shape,
            steps: 0,
            right: Vec::new(),
            error: Vec::new(),
        }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// Counts a step and returns how many came before.
    pub(super) fn begin_step(&mut self) -> u64 {
        let before = self.steps;
        self.steps += 1;
        before
    }

    /// Makes sure that there is a right factor and an error.
    pub(super) fn recall(&mut self, path: &str, rank: usize) {
        if self.right.is_empty() {
            self.right = vec![0.0; rank * self.shape.columns];
            self.replace_zero_columns(path);
        }
        self.error.resize(self.shape.rows * self.shape.columns, 0.0);
    }

    pub(super) fn right(&self) -> &[f32] {
        &self.right
    }

    pub(super) fn add_error_to(&self, values: &mut [f32]) {
        for (value, error) in values.iter_mut().zip(&self.error) {
            *value += error;
        }
    }

    /// Remembers what of `matrix` is not in the product of `left` and `own_right`.
    pub(super) fn keep_error(&mut self, matrix: &[f32], left: &[f32], own_right: &[f32]) {
        let rank = own_right.len() / self.shape.columns;
        products::residual(matrix, left, own_right, rank, &mut self.error);
    }

    /// Remembers the right factor for the next step. One that is zero (no rank had a gradient, or
    /// none was left) says nothing, and the one before is kept.
    pub(super) fn keep_right(&mut self, path: &str, right: &[f32], rank: usize) {
        debug_assert_eq!(right.len(), rank * self.shape.columns);
        if right.iter().all(|x| *x == 0.0) {
            return;
        }
        self.right.copy_from_slice(right);
        orthonormalise(&mut self.right, self.shape.columns);
        self.replace_zero_columns(path);
    }

    /// Puts new columns in place of those that are zero, since `M Q` could never bring them back.
    fn replace_zero_columns(&mut self, path: &str) {
        let mut random = None;
        for column in self.right.chunks_exact_mut(self.shape.columns) {
            if column.iter().any(|x| *x != 0.0) {
                continue;
            }
            let random = random.get_or_insert_with(|| random_of(path, self.shape, self.steps));
            column.fill_with(|| uniform(random));
        }
        if random.is_some() {
            orthonormalise(&mut self.right, self.shape.columns);
        }
    }
}

/// Random numbers that are the same on all ranks, and others for each parameter and step.
fn random_of(path: &str, shape: Shape, step: u64) -> ChaCha8Rng {
    let mut seed = Sha256::new();
    for number in [shape.rows as u64, shape.columns as u64, step] {
        seed.update(number.to_le_bytes());
    }
    seed.update(path.as_bytes());
    ChaCha8Rng::from_seed(seed.finalize().into())
}

/// Uniform between -1 and 1. (Any distribution without a preferred direction will do, and a normal
/// one needs logarithms, whose last bit may differ from machine to machine.)
fn uniform(random: &mut ChaCha8Rng) -> f32 {
    let of_24_bits = (random.next_u32() >> 8) as f32;
    of_24_bits / (1 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        rows: 6,
        columns: 5,
    };

    fn started(path: &str) -> Memory {
        let mut memory = Memory::new(SHAPE);
        memory.recall(path, 2);
        memory
    }

    #[test]
    fn a_start_is_the_same_on_all_ranks_and_another_for_each_parameter() {
        assert_eq!(started("a").right(), started("a").right());
        assert_ne!(started("a").right(), started("b").right());
        assert!(started("a").right().iter().all(|x| *x != 0.0));
    }

    #[test]
    fn a_factor_of_zeros_leaves_the_one_before() {
        let mut memory = started("a");
        let before = memory.right().to_vec();
        memory.keep_right("a", &[0.0; 10], 2);
        assert_eq!(memory.right(), before);
    }

    #[test]
    fn columns_that_are_lost_begin_anew_beside_those_that_are_not() {
        let mut memory = started("a");
        let before = memory.right().to_vec();
        // Twice the same direction.
        let kept = [0.0, 3.0, 0.0, 4.0, 0.0];
        memory.keep_right("a", &[kept, kept].concat(), 2);
        let (first, second) = memory.right().split_at(5);
        assert_eq!(first, [0.0, 0.6, 0.0, 0.8, 0.0]);
        let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>();
        assert!(dot(first, second).abs() < 1e-6);
        assert!((dot(second, second) - 1.0).abs() < 1e-6);
        assert_ne!(second, &before[5..]);
    }

    #[test]
    fn vectors_and_what_factors_would_not_shrink_are_no_matrices() {
        assert_eq!(Shape::of(&[]), None);
        assert_eq!(Shape::of(&[7]), None);
        let shape = |shape: &[usize]| Shape::of(shape).unwrap();
        assert_eq!(
            shape(&[20, 10, 5, 5]),
            Shape {
                rows: 20,
                columns: 250
            }
        );
        // 2 x (4 + 4) = 16 = 4 x 4.
        assert!(!shape(&[4, 4]).shrinks(2));
        assert!(shape(&[4, 5]).shrinks(2));
        assert!(!shape(&[0, 9]).shrinks(1));
        assert!(!shape(&[4, 5]).shrinks(usize::MAX));
    }
}
