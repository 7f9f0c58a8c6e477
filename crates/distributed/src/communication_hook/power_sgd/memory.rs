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
