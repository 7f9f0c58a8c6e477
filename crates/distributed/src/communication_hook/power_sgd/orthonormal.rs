//! Orthonormal columns.

/// A column of which less than this part is left when its projections on the earlier columns are
/// taken away depends on them: `f32` sums of a few hundred terms are no more exact.
const DEPENDENT: f64 = 1e-6;

/// How many sums a dot product is split into, so that the compiler vectorises it.
const LANES: usize = 8;

/// Makes `columns`, each of `length` elements and one after the other, orthonormal; they span what
/// they spanned before. Columns that depend on earlier ones, and those that are zero, become zero.
/// If something is not finite, everything becomes NaN.
///
/// Modified Gram-Schmidt (Bjorck 1967, "Solving linear least squares problems by Gram-Schmidt
/// orthogonalization") in `f64`. That the columns come out perpendicular matters: if two columns of
/// `P` were nearly the same, `P P^T M` would count their direction twice, and error feedback would
/// swing instead of settling. What rounding leaves of a column in the direction of an earlier one
/// is some `1e-16` of the column; what is kept of it is at least [`DEPENDENT`] of it; so the cosine
/// of the two is about `1e-10` at most, below what `f32` holds, and one pass is enough. The same
/// input gives the same bits on every rank: no step depends on the processor.
pub(super) fn orthonormalise(columns: &mut [f32], length: usize) {
    if columns.iter().any(|x| !x.is_finite()) {
        columns.fill(f32::NAN);
        return;
    }
    // The squares of all f32 are normal numbers in f64: nothing overflows or vanishes.
    let mut wide: Vec<f64> = columns.iter().map(|x| f64::from(*x)).collect();
    for start in (0..wide.len()).step_by(length) {
        let (earlier, rest) = wide.split_at_mut(start);
        let column = &mut rest[..length];
        let before = norm(column);
        for direction in earlier.chunks_exact(length) {
            let amount = dot(column, direction);
            take_away(column, direction, amount);
        }
        let left = norm(column);
        if left > DEPENDENT * before {
            column.iter_mut().for_each(|x| *x /= left);
        } else {
            column.fill(0.0);
        }
    }
    for (column, wide) in columns.iter_mut().zip(&wide) {
        *column = *wide as f32;
    }
}

fn norm(column: &[f64]) -> f64 {
    dot(column, column).sqrt()
}

fn take_away(column: &mut [f64], direction: &[f64], amount: f64) {
    for (x, direction) in column.iter_mut().zip(direction) {
        *x -= amount * direction;
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    let (left_chunks, left_rest) = left.as_chunks::<LANES>();
    let (right_chunks, right_rest) = right.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (left, right) in left_chunks.iter().zip(right_chunks) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f64 = left_rest.iter().zip(right_rest).map(|(l, r)| l * r).sum();
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    fn dots(columns: &[f32], length: usize) -> Vec<Vec<f64>> {
        let wide: Vec<f64> = columns.iter().map(|x| f64::from(*x)).collect();
        let columns: Vec<&[f64]> = wide.chunks_exact(length).collect();
        let products = |left: &&[f64]| columns.iter().map(|right| dot(left, right)).collect();
        columns.iter().map(products).collect()
    }

    /// Each column has length 1 or is zero, and is perpendicular to all others.
    fn assert_orthonormal(columns: &[f32], length: usize) -> usize {
        let dots = dots(columns, length);
        let is_kept = |i: usize| dots[i][i] != 0.0;
        for (i, row) in dots.iter().enumerate() {
            for (j, dot) in row.iter().enumerate() {
                let expected = if i == j && is_kept(i) { 1.0 } else { 0.0 };
                assert!((dot - expected).abs() < 1e-6, "({i}, {j}): {dot}");
            }
        }
        (0..dots.len()).filter(|i| is_kept(*i)).count()
    }

    #[test]
    fn nearly_parallel_columns_become_orthonormal() {
        // Lauchli's example: in f32 alone the second and third column would come out parallel.
        let e = 1e-4;
        let mut columns = [[1.0, e, 0.0, 0.0], [1.0, 0.0, e, 0.0], [1.0, 0.0, 0.0, e]].concat();
        orthonormalise(&mut columns, 4);
        assert_eq!(assert_orthonormal(&columns, 4), 3);
    }

    #[test]
    fn dependent_columns_and_zero_columns_become_zero() {
        let first = [3.0, 0.0, 4.0];
        let mut columns = [first, [0.0; 3], first.map(|x| -2.0 * x), [0.0, 5.0, 0.0]].concat();
        orthonormalise(&mut columns, 3);
        assert_eq!(columns[..3], [0.6, 0.0, 0.8]);
        assert_eq!(columns[3..9], [0.0; 6]);
        assert_eq!(columns[9..], [0.0, 1.0, 0.0]);
    }

    #[test]
    fn the_greatest_and_the_least_numbers_are_no_trouble() {
        for scale in [f32::MAX, f32::from_bits(4)] {
            let mut columns = [[scale, scale, 0.0], [scale, -scale, scale]].concat();
            orthonormalise(&mut columns, 3);
            assert_eq!(assert_orthonormal(&columns, 3), 2);
        }
    }

    #[test]
    fn what_is_not_finite_makes_everything_nan() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut columns = vec![1.0, 0.0, 0.0, bad];
            orthonormalise(&mut columns, 2);
            assert!(columns.iter().all(|x| x.is_nan()));
        }
    }

    /// Columns of all magnitudes; one in five is a combination of the two before, one in ten zero.
    fn random_columns(random: &mut ChaCha8Rng, length: usize, count: usize) -> Vec<Vec<f32>> {
        let mut columns: Vec<Vec<f32>> = Vec::new();
        for _ in 0..count {
            let mut uniform = || random.next_u32() as f32 / u32::MAX as f32 - 0.5;
            let kind = uniform() + 0.5;
            let scale = 10f32.powf(12.0 * uniform());
            let column = match columns.as_slice() {
                _ if kind < 0.1 => vec![0.0; length],
                [.., x, y] if kind < 0.3 => x.iter().zip(y).map(|(x, y)| x - 2.0 * y).collect(),
                _ => (0..length).map(|_| scale * uniform()).collect(),
            };
            columns.push(column);
        }
        columns
    }

    /// What is left of `column` without its projections on `directions`.
    fn unexplained(column: &[f32], directions: &[f32]) -> f64 {
        let mut rest: Vec<f64> = column.iter().map(|x| f64::from(*x)).collect();
        for direction in directions.chunks_exact(column.len()) {
            let direction: Vec<f64> = direction.iter().map(|x| f64::from(*x)).collect();
            let amount = dot(&rest, &direction);
            take_away(&mut rest, &direction, amount);
        }
        norm(&rest)
    }

    #[test]
    fn any_columns_become_orthonormal_and_span_the_same() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        for case in 0..500 {
            let (length, count) = (1 + case % 37, 1 + case % 6);
            let columns = random_columns(&mut random, length, count);
            let mut orthonormal = columns.concat();
            orthonormalise(&mut orthonormal, length);
            assert!(assert_orthonormal(&orthonormal, length) <= length);
            for column in &columns {
                let before = unexplained(column, &[]);
                let left = unexplained(column, &orthonormal);
                assert!(left <= 2e-6 * before, "case {case}: {left} of {before}");
            }
        }
    }
}
