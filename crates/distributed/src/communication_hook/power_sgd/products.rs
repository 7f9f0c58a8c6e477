//! Matrix products with one long and one narrow side.
//!
//! Matrices are stored row by row; factors are stored column by column, so that all inner loops run over
//! neighbours. What is computed from sums over all ranks must have the same bits on each of them:
//! nothing here depends on the processor.

/// How many products are combined in one pass, so that the target is read and written once for
/// all of them.
const TERMS: usize = 4;

/// How many sums a dot product is split into: four dot products at a time then fill half of the
/// sixteen vector registers of x86-64.
const LANES: usize = 8;

/// How many columns of a matrix are worked on at a time: [`TERMS`] rows of them and the target are
/// 20 KiB, which stay in the L1 cache.
const BLOCK: usize = 1024;

/// `left = matrix right`: each element is the dot product of a row and a column.
pub(super) fn left_factor(matrix: &[f32], right: &[f32], rank: usize, left: &mut [f32]) {
    let (rows, columns) = (left.len() / rank, right.len() / rank);
    for (row, values) in matrix.chunks_exact(columns).enumerate() {
        let mut groups = right.chunks_exact(TERMS * columns);
        let mut place = row;
        for group in groups.by_ref() {
            let (first, second) = group.split_at(2 * columns);
            let ((a, b), (c, d)) = (first.split_at(columns), second.split_at(columns));
            for dot in dots(values, [a, b, c, d]) {
                left[place] = dot;
                place += rows;
            }
        }
        for column in groups.remainder().chunks_exact(columns) {
            left[place] = dots(values, [column])[0];
            place += rows;
        }
    }
}

/// `right = matrix^T left`: each column is a combination of the matrix's rows.
pub(super) fn right_factor(matrix: &[f32], left: &[f32], rank: usize, right: &mut [f32]) {
    let (rows, columns) = (left.len() / rank, right.len() / rank);
    right.fill(0.0);
    for start in (0..columns).step_by(BLOCK) {
        let block = start..columns.min(start + BLOCK);
        for first in (0..rows).step_by(TERMS) {
            let group = first..rows.min(first + TERMS);
            for (left, right) in left.chunks_exact(rows).zip(right.chunks_exact_mut(columns)) {
                let terms = group.clone().map(|row| {
                    let values = &matrix[row * columns..(row + 1) * columns];
                    (left[row], &values[block.clone()])
                });
                add_combination(&mut right[block.clone()], terms);
            }
        }
    }
}

/// `matrix = left right^T`.
pub(super) fn product(left: &[f32], right: &[f32], rank: usize, matrix: &mut [f32]) {
    let (rows, columns) = (left.len() / rank, right.len() / rank);
    for (row, values) in matrix.chunks_exact_mut(columns).enumerate() {
        values.fill(0.0);
        let coefficients = left.iter().skip(row).step_by(rows).copied();
        add_combination(values, coefficients.zip(right.chunks_exact(columns)));
    }
}

/// `residual = matrix - left right^T`.
pub(super) fn residual(
    matrix: &[f32],
    left: &[f32],
    right: &[f32],
    rank: usize,
    residual: &mut [f32],
) {
    let (rows, columns) = (left.len() / rank, right.len() / rank);
    residual.copy_from_slice(matrix);
    for (row, values) in residual.chunks_exact_mut(columns).enumerate() {
        let coefficients = left.iter().skip(row).step_by(rows).map(|x| -x);
        add_combination(values, coefficients.zip(right.chunks_exact(columns)));
    }
}

/// Adds each of `terms`, a coefficient and a vector, to `target`.
fn add_combination<'a>(target: &mut [f32], terms: impl Iterator<Item = (f32, &'a [f32])>) {
    let mut terms = terms.fuse();
    while let Some((a, x)) = terms.next() {
        match (terms.next(), terms.next(), terms.next()) {
            (Some((b, y)), Some((c, z)), Some((d, w))) => {
                let others = x.iter().zip(y).zip(z).zip(w);
                for (target, (((x, y), z), w)) in target.iter_mut().zip(others) {
                    *target += (a * x + b * y) + (c * z + d * w);
                }
            }
            (second, third, _) => {
                for (a, x) in [Some((a, x)), second, third].into_iter().flatten() {
                    for (target, x) in target.iter_mut().zip(x) {
                        *target += a * x;
                    }
                }
            }
        }
    }
}

/// The dot products of `values` with vectors of the same length.
fn dots<const N: usize>(values: &[f32], vectors: [&[f32]; N]) -> [f32; N] {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let split = vectors.map(|vector| vector.as_chunks::<LANES>());
    // Says once that the lengths are equal, so that the loop checks no bounds.
    let vector_chunks = split.map(|(vector, _)| &vector[..chunks.len()]);
    let mut sums = [[0.0; LANES]; N];
    for (place, values) in chunks.iter().enumerate() {
        for (sums, vector) in sums.iter_mut().zip(&vector_chunks) {
            let vector = &vector[place];
            for lane in 0..LANES {
                sums[lane] += values[lane] * vector[lane];
            }
        }
    }
    std::array::from_fn(|n| {
        let rest: f32 = rest.iter().zip(split[n].1).map(|(x, y)| x * y).sum();
        sums[n].iter().sum::<f32>() + rest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers, so that sums in any order are exact.
    fn whole_numbers(length: usize, salt: u32) -> Vec<f32> {
        let number = |i: u32| (i.wrapping_add(salt).wrapping_mul(2_654_435_761) >> 29) as f32 - 4.0;
        (0..length as u32).map(number).collect()
    }

    /// `[rows, inner]` times `[inner, columns]`, given by their elements.
    fn plain_product(
        [rows, inner, columns]: [usize; 3],
        left: impl Fn(usize, usize) -> f32,
        right: impl Fn(usize, usize) -> f32,
    ) -> Vec<f32> {
        let element = |i: usize| -> f32 {
            let (row, column) = (i / columns, i % columns);
            (0..inner).map(|k| left(row, k) * right(k, column)).sum()
        };
        (0..rows * columns).map(element).collect()
    }

    fn check(rows: usize, columns: usize, rank: usize) {
        let matrix = whole_numbers(rows * columns, 1);
        let right = whole_numbers(rank * columns, 2);
        let left = whole_numbers(rank * rows, 3);
        let of_matrix = |row: usize, column: usize| matrix[row * columns + column];
        let of_right = |column: usize, k: usize| right[k * columns + column];
        let of_left = |row: usize, k: usize| left[k * rows + row];

        // A factor is column by column, so it is the transpose of what `plain_product` gives.
        let mut found = vec![f32::NAN; rank * rows];
        left_factor(&matrix, &right, rank, &mut found);
        let transposed = |k, column| of_right(column, k);
        let expected = plain_product([rank, columns, rows], transposed, |c, r| of_matrix(r, c));
        assert_eq!(found, expected);

        let mut found = vec![f32::NAN; rank * columns];
        right_factor(&matrix, &left, rank, &mut found);
        let expected = plain_product([rank, rows, columns], |k, row| of_left(row, k), of_matrix);
        assert_eq!(found, expected);

        let mut found = vec![f32::NAN; rows * columns];
        product(&left, &right, rank, &mut found);
        let expected = plain_product([rows, rank, columns], of_left, |k, c| of_right(c, k));
        assert_eq!(found, expected);

        residual(&matrix, &left, &right, rank, &mut found);
        let differences = matrix.iter().zip(&expected).map(|(x, y)| x - y);
        assert_eq!(found, differences.collect::<Vec<_>>());
    }

    #[test]
    fn matrices_that_are_wider_than_a_block_are_multiplied_whole() {
        check(9, 2 * BLOCK + 3, 5);
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for rank in 1..10 {
            for (rows, columns) in [(1, 1), (1, 9), (3, 8), (4, 7), (5, 33), (19, 16), (20, 2)] {
                check(rows, columns, rank);
            }
        }
    }
}
