//! PowerSGD: gradients travel as the factors of a low-rank approximation.
//!
//! Vogels, Karimireddy and Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for
//! Distributed Optimization", algorithms 1 and 2. The gradient of a parameter of shape
//! `[d0, d1, ...]` is an n x m matrix with `n = d0` and `m = d1 d2 ...`. In each step, with `G_w`
//! the gradient of rank `w` and `E_w` what it could not send before:
//!
//! 1. `M_w = G_w + E_w` and `P_w = M_w Q`, with the `Q` (m x r) of the step before.
//! 2. First all-reduce: `P = sum of P_w`, n x r, and beside it everything that is not compressed.
//! 3. The columns of `P` are made orthonormal; `Q_w = M_w^T P`.
//! 4. Second all-reduce: `Q = sum of Q_w`.
//! 5. The sum of the gradients is taken to be `P Q^T`; and `E_w = M_w - P Q_w^T`.
//!
//! This is one step of a power iteration, and because `Q` is kept, `P` converges to the leading
//! singular vectors while the gradients change slowly. The products of step 5 are computed by each
//! rank from the same bits in the same order, so the results have the same bits.
//!
//! **Error feedback.** The sum over ranks of `E_w` is the sum of the `M_w` less what came out, so
//! nothing is lost, it is only late. Each rank keeps what *it* could not send (as in algorithm 2),
//! not its gradient less the mean over ranks as PyTorch's `powerSGD_hook` does: `E_w` is a
//! projection of what rank `w` had, so it needs no knowledge of weights, and a rank without samples
//! in a step (zero gradient) hands in what it still owes.
//!
//! **What differs from the paper.** Sums take the place of means, since the gradients are weighted
//! before. `Q` is made orthonormal before it is used (as in PyTorch's hook and in the authors'
//! code), which leaves the result as it is but keeps `M Q` from overflowing or vanishing. Columns
//! that depend on the others are dropped from `P` and begin anew in `Q`. The first steps are sent
//! whole. A matrix in whose factors something is not finite becomes NaN as a whole, on all ranks,
//! and what the ranks remember of it stays as it was before the step.
//!
//! **Cost** for a bucket: two collectives of together `r (n + m)` numbers for each compressed
//! matrix, and `6 r n m` multiplications and additions each. Memory: as much again as the
//! compressed gradients, for `E_w`.

mod memory;
mod orthonormal;
mod products;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;

use everburn_collectives::group::{CollectiveError, ProcessGroup};

use self::memory::{Memory, Shape};
use self::orthonormal::orthonormalise;
use super::all_reduce::sum_over_ranks;
use super::{CommunicationHook, GradientBucket, ParameterSlot};

/// Sends low-rank factors of the gradients' matrices, with error feedback (Vogels et al. 2019).
///
/// Vectors, and matrices that two factors would not make smaller, are sent as they are. What the
/// hook remembers is kept by the parameters' paths, so buckets may be rebuilt at any time. It is
/// not part of a checkpoint: a resumed training begins with `start_after` whole steps again.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use std::num::NonZeroUsize;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{CommunicationHook, GradientBucket, ParameterSlot, PowerSgd};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let mut hook = PowerSgd::new(NonZeroUsize::MIN, 0);
/// // A matrix of rank 1.
/// let mut values: Vec<f32> = (0..64).map(|i| ((i / 8) * (i % 8)) as f32).collect();
/// let slots = [ParameterSlot { path: "weight".to_owned(), shape: vec![8, 8], offset: 0 }];
/// let bucket = GradientBucket { index: 0, slots: &slots, values: &mut values };
/// assert_eq!(hook.reduce(bucket, &group).unwrap(), 4 * (8 + 8));
/// assert!((values[63] - 49.0).abs() < 1e-4);
/// ```
#[doc(alias = "powerSGD_hook")]
#[derive(Debug)]
pub struct PowerSgd {
    rank: usize,
    start_after: u64,
    memories: HashMap<String, Memory>,
    /// What travels; kept from bucket to bucket for its allocation, as the next.
    message: Vec<f32>,
    /// The right factors of this rank's own matrices.
    own_rights: Vec<f32>,
}

/// A compressed matrix, on its way through a step.
#[derive(Debug)]
struct Matrix {
    path: String,
    memory: Memory,
    /// Where it is in the bucket.
    place: Range<usize>,
    left: Vec<f32>,
}

impl PowerSgd {
    /// A hook whose factors have `rank` columns, and which sends the first `start_after` gradients
    /// of each parameter whole.
    #[must_use]
    pub fn new(rank: NonZeroUsize, start_after: u64) -> Self {
        Self {
            rank: rank.get(),
            start_after,
            memories: HashMap::new(),
            message: Vec::new(),
            own_rights: Vec::new(),
        }
    }

    /// The matrices of the bucket that are compressed in this step, in their order in the bucket.
    fn take_matrices(
        &mut self,
        slots: &[ParameterSlot],
        length: usize,
    ) -> Result<Vec<Matrix>, String> {
        let mut matrices = Vec::new();
        for slot in slots {
            let place = place_of(slot, length)?;
            let Some(shape) = Shape::of(&slot.shape).filter(|shape| shape.shrinks(self.rank))
            else {
                continue;
            };
            let (path, mut memory) = self
                .memories
                .remove_entry(&slot.path)
                .filter(|(_, memory)| memory.shape() == shape)
                .unwrap_or_else(|| (slot.path.clone(), Memory::new(shape)));
            if memory.begin_step() < self.start_after {
                self.memories.insert(path, memory);
                continue;
            }
            memory.recall(&path, self.rank);
            matrices.push(Matrix {
                path,
                memory,
                place,
                left: Vec::new(),
            });
        }
        matrices.sort_by_key(|matrix| matrix.place.start);
        match matrices
            .windows(2)
            .find(|pair| pair[0].place.end > pair[1].place.start)
        {
            Some(pair) => Err(format!(
                "`{}` and `{}` overlap in the bucket",
                pair[0].path, pair[1].path
            )),
            None => Ok(matrices),
        }
    }

    /// Steps 1 and 2: sums the left factors, and what is not compressed.
    fn all_reduce_left(
        &mut self,
        matrices: &mut [Matrix],
        values: &mut [f32],
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        self.message.clear();
        for matrix in matrices.iter() {
            let values = &mut values[matrix.place.clone()];
            matrix.memory.add_error_to(values);
            let start = self.message.len();
            let rows = matrix.memory.shape().rows;
            self.message.resize(start + self.rank * rows, 0.0);
            let left = &mut self.message[start..];
            products::left_factor(values, matrix.memory.right(), self.rank, left);
        }
        for plain in plain_places(matrices, values.len()) {
            self.message.extend_from_slice(&values[plain]);
        }
        let bytes = sum_over_ranks(group, &mut self.message)?;
        let mut sums = self.message.as_slice();
        let mut take = |length| {
            let (taken, rest) = sums.split_at(length);
            sums = rest;
            taken
        };
        for matrix in matrices.iter_mut() {
            matrix.left = take(self.rank * matrix.memory.shape().rows).to_vec();
        }
        for plain in plain_places(matrices, values.len()) {
            let sums = take(plain.len());
            values[plain].copy_from_slice(sums);
        }
        Ok(bytes)
    }

    /// Steps 3 and 4: sums the right factors into the message, keeping this rank's own.
    fn all_reduce_right(
        &mut self,
        matrices: &mut [Matrix],
        values: &[f32],
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        self.message.clear();
        for Matrix {
            memory,
            place,
            left,
            ..
        } in matrices.iter_mut()
        {
            let Shape { rows, columns } = memory.shape();
            // Something that is not finite stays so, and is found in the right factor.
            orthonormalise(left, rows);
            let start = self.message.len();
            self.message.resize(start + self.rank * columns, 0.0);
            let right = &mut self.message[start..];
            products::right_factor(&values[place.clone()], left, self.rank, right);
        }
        self.own_rights.clone_from(&self.message);
        sum_over_ranks(group, &mut self.message)
    }

    /// Step 5: puts the sums of the matrices into the bucket, and remembers what was not sent.
    fn decompress(&mut self, matrices: Vec<Matrix>, values: &mut [f32]) {
        let mut start = 0;
        for matrix in matrices {
            let Matrix {
                path,
                mut memory,
                place,
                left,
            } = matrix;
            let factor = start..start + self.rank * memory.shape().columns;
            start = factor.end;
            let (right, own_right) = (&self.message[factor.clone()], &self.own_rights[factor]);
            let values = &mut values[place];
            if right.iter().all(|x| x.is_finite()) {
                memory.keep_error(values, &left, own_right);
                products::product(&left, right, self.rank, values);
                memory.keep_right(&path, right, self.rank);
            } else {
                values.fill(f32::NAN);
            }
            self.memories.insert(path, memory);
        }
    }
}

impl CommunicationHook for PowerSgd {
    fn name(&self) -> String {
        format!("power-sgd({})", self.rank)
    }

    fn reduce(
        &mut self,
        bucket: GradientBucket<'_>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        let GradientBucket { slots, values, .. } = bucket;
        let mut matrices = self
            .take_matrices(slots, values.len())
            .map_err(|reason| invalid(self.name(), reason, group))?;
        if matrices.is_empty() {
            return sum_over_ranks(group, values);
        }
        let left_bytes = self.all_reduce_left(&mut matrices, values, group)?;
        let right_bytes = self.all_reduce_right(&mut matrices, values, group)?;
        self.decompress(matrices, values);
        Ok(left_bytes + right_bytes)
    }
}

/// The elements of `slot` in a bucket of `length` elements.
fn place_of(slot: &ParameterSlot, length: usize) -> Result<Range<usize>, String> {
    let elements = slot
        .shape
        .iter()
        .try_fold(1usize, |product, size| product.checked_mul(*size));
    elements
        .and_then(|elements| slot.offset.checked_add(elements))
        .filter(|end| *end <= length)
        .map(|end| slot.offset..end)
        .ok_or_else(|| {
            let ParameterSlot {
                path,
                shape,
                offset,
            } = slot;
            format!(
                "`{path}` of shape {shape:?} at {offset} does not fit a bucket of {length} elements"
            )
        })
}

/// What is between the matrices, which are in the order of the bucket.
fn plain_places(matrices: &[Matrix], length: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = std::iter::once(0).chain(matrices.iter().map(|matrix| matrix.place.end));
    let ends = matrices.iter().map(|matrix| matrix.place.start);
    starts
        .zip(ends.chain(std::iter::once(length)))
        .map(|(start, end)| start..end)
}

fn invalid(operation: String, reason: String, group: &ProcessGroup) -> CollectiveError {
    CollectiveError::Invalid {
        rank: group.job_ranks()[group.rank()],
        operation,
        reason,
    }
}
