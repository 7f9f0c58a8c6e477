use super::*;
use crate::sample::{assert_same_on_threads, values};

#[test]
fn a_product_over_nothing_is_the_bias() {
    let (left, right) = (Matrix::new(&[], [2, 0]), Matrix::new(&[], [0, 3]));
    for bias in [None, Some(&[1.0, 2.0, 3.0][..])] {
        let mut output = [f32::NAN; 6];
        matmul(left, right, bias, &mut output).unwrap();
        assert_eq!(output, [bias.unwrap_or(&[0.0; 3]); 2].concat()[..]);
    }
}

#[test]
fn a_product_without_rows_or_columns_is_empty() {
    let six = [1.0; 6];
    let no_rows = (Matrix::new(&[], [0, 3]), Matrix::new(&six, [3, 2]));
    let no_columns = (Matrix::new(&six, [2, 3]), Matrix::new(&[], [3, 0]));
    for (left, right) in [no_rows, no_columns] {
        let bias = &[1.0, 2.0][..right.extent()[1]];
        for bias in [None, Some(bias)] {
            matmul(left, right, bias, &mut []).unwrap();
        }
        assert!(matmul(left, right, None, &mut [0.0]).is_err());
    }
}

#[test]
fn products_of_matrices_that_lie_anywhere() {
    // Rows of three heads of two texts side by side, as an attention has them.
    let (texts, tokens, heads, width) = (2, 5, 3, 4);
    let [queries, keys] = [1, 2].map(|seed| values(texts * tokens * heads * width, seed));
    let of = |values, strides, extent| {
        let batch_strides = [tokens * heads * width, width];
        Matrices::new(values, [texts, heads], batch_strides, extent, strides).unwrap()
    };
    let left = of(&queries, [heads * width, 1], [tokens, width]);
    let right = of(&keys, [1, heads * width], [width, tokens]);
    let mut output = vec![f32::NAN; texts * heads * tokens * tokens];
    matmul_each(left, right, &mut output).unwrap();
    for (index, value) in output.iter().enumerate() {
        let (row, column) = (index / tokens % tokens, index % tokens);
        let matrix = index / (tokens * tokens);
        let at = |values: &[f32], token: usize, number: usize| {
            let text = matrix / heads * tokens + token;
            f64::from(values[text * heads * width + matrix % heads * width + number])
        };
        let products = (0..width).map(|k| at(&queries, row, k) * at(&keys, column, k));
        assert!((f64::from(*value) - products.sum::<f64>()).abs() < 1e-5);
    }
    assert!(
        Matrices::new(
            &queries,
            [texts, heads],
            [60, 4],
            [tokens + 1, width],
            [12, 1]
        )
        .is_err()
    );
    assert!(Matrices::new(&[], [usize::MAX, 2], [usize::MAX, 1], [1, 1], [1, 1]).is_err());
    assert!(matmul_each(left, left, &mut output).is_err());
    assert!(matmul_each(left, right, &mut output[1..]).is_err());
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    for [rows, inner, columns] in [[300, 200, 100], [1, 3000, 70], [512, 64, 384]] {
        let [left, right] = [values(rows * inner, 1), values(inner * columns, 2)];
        assert_same_on_threads(|| {
            let mut output = vec![0.0; rows * columns];
            let left = Matrix::new(&left, [rows, inner]);
            let right = Matrix::new(&right, [columns, inner]).transposed();
            matmul(left, right, None, &mut output).unwrap();
            [output]
        });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (six, eight) = ([0.0; 6], [0.0; 8]);
    let left = Matrix::new(&six, [2, 3]);
    let error = |right, bias: Option<&[f32]>, output: &mut [f32]| {
        matmul(left, right, bias, output).unwrap_err().to_string()
    };
    let fitting = Matrix::new(&six, [3, 2]);
    assert!(error(Matrix::new(&eight, [4, 2]), None, &mut [0.0; 4]).contains("right"));
    assert!(error(Matrix::new(&eight, [3, 2]), None, &mut [0.0; 4]).contains("right"));
    assert!(error(fitting, None, &mut [0.0; 5]).contains("output"));
    assert!(error(fitting, Some(&[0.0; 3]), &mut [0.0; 4]).contains("bias"));
    let endless = Matrix::new(&six, [usize::MAX, 2]);
    assert!(matmul(endless, fitting, None, &mut [0.0; 4]).is_err());
}
