//! How many floating point operations are computed, and how many a second this machine can.
//!
//! Counted are products of matrices and convolutions, forward and backward, as everybody counts them: a multiplication
//! and an addition for each pair of numbers that meet, also where one is a zero of the padding. So `[m, k]` by `[k, n]`
//! is `2 m n k`. Causal attention multiplies the pairs of a token and one that it sees. What is done number by number
//! (activations, norms, sums of biases) is not counted: it moves memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::conv::Conv2dShape;
use crate::matmul::{Matrix, matmul};

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// Whether operations are counted from now on, in this process. At first they are not, and then a kernel reads one
/// number more than without.
pub fn count_operations(wanted: bool) {
    COUNTING.store(wanted, Ordering::Relaxed);
}

/// How many operations have been counted in this process. The number only grows.
///
/// A kernel adds its own before it computes, on the thread that calls it: who reads the number there before and after a
/// call, while no other thread computes, knows what the call has computed.
///
/// ```
/// use everburn_kernels::{Matrix, count_operations, matmul, operations_counted};
///
/// count_operations(true);
/// let before = operations_counted();
/// let [left, right] = [Matrix::new(&[1.0; 6], [2, 3]), Matrix::new(&[1.0; 12], [3, 4])];
/// matmul(left, right, None, &mut [0.0; 8])?;
/// assert_eq!(operations_counted() - before, 2 * 2 * 3 * 4);
/// # Ok::<(), everburn_kernels::KernelError>(())
/// ```
pub fn operations_counted() -> u64 {
    COUNTED.load(Ordering::Relaxed)
}

/// Counts `sums` numbers, each the sum of `terms` products, that are computed elsewhere than by a kernel of this crate.
pub fn add_operations(sums: usize, terms: usize) {
    if COUNTING.load(Ordering::Relaxed) {
        let operations = (sums as u64).saturating_mul(terms as u64).saturating_mul(2);
        COUNTED.fetch_add(operations, Ordering::Relaxed);
    }
}

/// Counts a convolution, or one of its gradients, of which the `output` has this many values: each of the three
/// multiplies the same pairs of numbers.
pub(crate) fn add_convolution(shape: &Conv2dShape, output: usize) {
    add_operations(output, shape.group_channels()[0] * shape.taps());
}

/// Rows, columns and inner extent of the products by which the peak is measured. The rows are many because they are
/// what is shared out to tasks, each of which packs the right factor; that one stays in the second-level cache.
const PEAK: [usize; 3] = [2048, 256, 256];

/// How long a part of the measurement takes at least: longer than the slices of time that a scheduler gives, so that a
/// part in which another process rested is not taken for the machine's peak.
const PART: Duration = Duration::from_millis(25);

/// How many parts there are, of which the best counts.
const PARTS: u32 = 5;

/// How many operations per second this machine computes at most, with the threads of the present rayon pool: what a large
/// product of matrices of `f32` reaches, the best of some parts. Takes about 0.13 seconds.
///
/// Processes that share the machine call it at the same time: then it is what each of them can have.
pub fn peak_operations() -> f64 {
    let [rows, columns, inner] = PEAK;
    let [left, right] = [vec![0.5_f32; rows * inner], vec![0.25; inner * columns]];
    let mut output = vec![0.0; rows * columns];
    let each = 2.0 * (rows * columns * inner) as f64;
    let (began, mut best) = (Instant::now(), 0.0_f64);
    for _ in 0..PARTS {
        let (part, mut products) = (Instant::now(), 0.0);
        while part.elapsed() < PART {
            let left = Matrix::new(&left, [rows, inner]);
            let right = Matrix::new(&right, [inner, columns]);
            if matmul(left, right, None, &mut output).is_err() {
                return 0.0;
            }
            products += 1.0;
        }
        best = best.max(products * each / part.elapsed().as_secs_f64());
        // Where a single product takes longer than a part.
        if began.elapsed() >= PARTS * PART {
            break;
        }
    }
    std::hint::black_box(&output);
    best
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_has_a_peak() {
        let peak = super::peak_operations();
        // From a simulated processor to the largest.
        assert!(peak > 1e6 && peak < 1e15, "{peak}");
    }
}
