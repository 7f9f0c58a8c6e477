//! The sums of the columns of a matrix: the gradient of a bias.

use pulp::{Simd, WithSimd};

use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::lanes::change_by;
use crate::parallel::each_piece;

const COLUMN_SUMS: &str = "column_sums";

/// About how many values a task adds up.
const PIECE: usize = 1 << 16;

/// The fewest and the most rows of a task: they are added up in `f32`, and the tasks' sums in `f64`.
const ROWS: [usize; 2] = [32, 512];

/// Writes the sum of each column of `input`, `[rows, columns]`, to `output`.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn column_sums(
    [rows, columns]: [usize; 2],
    input: &[f32],
    output: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    let length = product(COLUMN_SUMS, &[rows, columns])?;
    check_length(COLUMN_SUMS, "input", length, input.len())?;
    check_length(COLUMN_SUMS, "output", columns, output.len())?;
    if columns == 0 {
        return Ok(());
    }
    let per_task = (PIECE / columns).clamp(ROWS[0], ROWS[1]);
    let mut sums = vec![0.0; rows.div_ceil(per_task) * columns];
    each_piece(&mut sums, columns, length, |index, sums| {
        let first = index * per_task;
        let count = per_task.min(rows - first);
        set.run(Task {
            input: &input[first * columns..][..count * columns],
            sums,
        });
    });
    let mut totals = vec![0.0; columns];
    for sums in sums.chunks(columns) {
        for (total, &sum) in totals.iter_mut().zip(sums) {
            *total += f64::from(sum);
        }
    }
    for (output, total) in output.iter_mut().zip(totals) {
        *output = total as f32;
    }
    Ok(())
}

struct Task<'a> {
    input: &'a [f32],
    sums: &'a mut [f32],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for row in self.input.chunks(self.sums.len()) {
            change_by(
                simd,
                row,
                self.sums,
                #[inline(always)]
                |value, sum| simd.add_f32s(sum, value),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{assert_close, on_threads, values};

    #[test]
    fn sums_are_those_of_f64_on_any_number_of_threads() {
        for [rows, columns] in [[0, 3], [1, 1], [700, 1], [2048, 65], [333, 512], [40, 5000]] {
            let input = values(rows * columns, 1);
            let mut expected = vec![0.0; columns];
            for (index, &value) in input.iter().enumerate() {
                expected[index % columns] += f64::from(value);
            }
            for set in InstructionSet::available() {
                let on = |threads| {
                    on_threads(threads, || {
                        set.choose();
                        let mut output = vec![f32::NAN; columns];
                        column_sums([rows, columns], &input, &mut output).unwrap();
                        output
                    })
                };
                let alone = on(1);
                assert_close(&alone, &expected);
                assert_eq!(alone, on(3), "{set:?} {rows} {columns}");
            }
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        assert!(column_sums([2, 2], &[0.0; 3], &mut [0.0; 2]).is_err());
        assert!(column_sums([2, 2], &[0.0; 4], &mut [0.0; 3]).is_err());
        assert!(column_sums([usize::MAX, 2], &[0.0; 4], &mut [0.0; 2]).is_err());
    }
}
