//! How a product is cut into tasks: by its shape alone.

/// How many multiply-adds a task has at least, if the product has as many: fewer are not worth a wake-up.
const WORK: usize = 1 << 24;

/// The most columns of a task: what is packed of the right factor stays in the second-level cache.
const COLUMNS: usize = 512;

/// Blocks are not cut below this: registers hold 64 columns at most, 6 rows each.
const SMALLEST: [usize; 2] = [96, 64];

/// In how many tasks a product is cut at most, but for those of too many columns.
const TASKS: usize = 32;

/// How many rows a register block has: other counts leave it partly empty.
const ROWS_AT_ONCE: usize = 6;

/// The blocks of a product.
pub(super) struct Blocks {
    extent: [usize; 2],
    block: [usize; 2],
}

/// Rows and columns of a product that a task computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Its first row and column.
    pub(super) first: [usize; 2],
    pub(super) extent: [usize; 2],
}

impl Blocks {
    /// Of a product of `[rows, inner]` by `[inner, columns]`.
    ///
    /// The right factor is packed for each block of rows, so that blocks are high.
    pub(super) fn of([rows, inner, columns]: [usize; 3]) -> Self {
        let work = rows.saturating_mul(columns).saturating_mul(inner);
        let wanted = (work / WORK).clamp(1, TASKS);
        let mut parts = [1, columns.div_ceil(COLUMNS).max(1)];
        let size = |parts: [usize; 2]| [rows.div_ceil(parts[0]), columns.div_ceil(parts[1])];
        while parts[0] * parts[1] < wanted {
            let [high, wide] = size(parts);
            let may = [high >= 2 * SMALLEST[0], wide >= 2 * SMALLEST[1]];
            match may {
                [true, true] if high >= 2 * wide => parts[0] += 1,
                [true, false] => parts[0] += 1,
                [_, true] => parts[1] += 1,
                [false, false] => break,
            }
        }
        let [high, wide] = size(parts);
        Self {
            extent: [rows, columns],
            block: [
                high.next_multiple_of(ROWS_AT_ONCE),
                wide.next_multiple_of(16),
            ],
        }
    }

    /// All blocks, row after row.
    pub(super) fn all(&self) -> Vec<Block> {
        let [rows, columns] = self.extent;
        let starts = |length: usize, step: usize| (0..length).step_by(step.max(1));
        let rows =
            starts(rows, self.block[0]).map(|first| (first, self.block[0].min(rows - first)));
        rows.flat_map(|(row, count)| {
            starts(columns, self.block[1]).map(move |column| Block {
                first: [row, column],
                extent: [count, self.block[1].min(columns - column)],
            })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_one_block() {
        for shape in [
            [1, 1, 1],
            [2048, 128, 65],
            [128, 2048, 512],
            [7, 9, 5000],
            [3000, 400, 3],
        ] {
            let [rows, _, columns] = shape;
            let mut times = vec![0; rows * columns];
            for Block { first, extent } in Blocks::of(shape).all() {
                for row in first[0]..first[0] + extent[0] {
                    for column in first[1]..first[1] + extent[1] {
                        times[row * columns + column] += 1;
                    }
                }
            }
            assert!(times.iter().all(|&times| times == 1), "{shape:?}");
        }
        assert!(Blocks::of([0, 3, 5]).all().is_empty());
    }

    #[test]
    fn large_products_are_shared_and_small_ones_are_not() {
        assert_eq!(Blocks::of([64, 320, 50]).all().len(), 1);
        assert!(Blocks::of([2048, 512, 512]).all().len() >= 16);
        assert!(Blocks::of([128, 2048, 512]).all().len() >= 4);
    }
}
