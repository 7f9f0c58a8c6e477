use proptest::prelude::*;

use super::*;
use crate::sample::{assert_close, assert_same_on_threads, doubles, quotients, values};

const EPSILON: f64 = 1e-3;

fn define(columns: usize, input: &[f64], gamma: &[f64], beta: &[f64]) -> Vec<f64> {
    let mut output = Vec::new();
    for row in input.chunks(columns.max(1)) {
        let mean = row.iter().sum::<f64>() / columns as f64;
        let squares = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        let deviation = (squares / columns as f64 + EPSILON).sqrt();
        let affine = gamma.iter().zip(beta);
        output.extend(
            row.iter()
                .zip(affine)
                .map(|(x, (g, b))| (x - mean) / deviation * g + b),
        );
    }
    output
}

/// Output and the gradients of input, gamma and beta, far from zero.
fn run(shape: &LayerNormShape) -> [Vec<f32>; 4] {
    let [input, gamma, beta, gradient] = given(shape);
    let LayerNormShape { rows, columns } = *shape;
    let [mut output, mut input_grad] = [(); 2].map(|()| vec![7.0; input.len()]);
    let [mut mean, mut inverse] = [(); 2].map(|()| vec![7.0; rows]);
    let [mut gamma_grad, mut beta_grad] = [(); 2].map(|()| vec![7.0; columns]);
    let (affine, statistics) = ([&gamma[..], &beta], [&mut mean[..], &mut inverse]);
    layer_norm(shape, &input, affine, EPSILON, &mut output, statistics).unwrap();
    let (from, statistics) = ([&input[..], &gradient], [&mean[..], &inverse]);
    let sums = [&mut gamma_grad[..], &mut beta_grad];
    layer_norm_backward(shape, from, &gamma, statistics, &mut input_grad, sums).unwrap();
    [output, input_grad, gamma_grad, beta_grad]
}

fn given(shape: &LayerNormShape) -> [Vec<f32>; 4] {
    let count = shape.rows * shape.columns;
    let input = values(count, 1).iter().map(|value| value + 3.0).collect();
    let [gamma, beta] = [2, 3].map(|seed| values(shape.columns, seed));
    [input, gamma, beta, values(count, 4)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn equals_the_definition_and_its_difference_quotients(
        rows in 0_usize..20, columns in 0_usize..80,
    ) {
        let shape = LayerNormShape { rows, columns };
        let [input, gamma, beta, gradient] = given(&shape).map(|values| doubles(&values));
        let loss = |input: &[f64], gamma: &[f64], beta: &[f64]| {
            let output = define(columns, input, gamma, beta);
            output.iter().zip(&gradient).map(|(y, g)| y * g).sum::<f64>()
        };
        let expected = [
            define(columns, &input, &gamma, &beta),
            quotients(&input, |input| loss(input, &gamma, &beta)),
            quotients(&gamma, |gamma| loss(&input, gamma, &beta)),
            quotients(&beta, |beta| loss(&input, &gamma, beta)),
        ];
        for set in InstructionSet::available() {
            set.choose();
            for (actual, expected) in run(&shape).iter().zip(&expected) {
                assert_close(actual, expected);
            }
        }
    }
}

#[test]
fn not_a_number_stays_in_its_row() {
    let shape = LayerNormShape {
        rows: 2,
        columns: 2,
    };
    let (mut output, mut mean, mut inverse) = ([7.0; 4], [7.0; 2], [7.0; 2]);
    let input = [f32::NAN, 1.0, 1.0, 3.0];
    let [gamma, beta] = [[1.0; 2], [0.0; 2]];
    let (affine, statistics) = ([&gamma[..], &beta], [&mut mean[..], &mut inverse]);
    layer_norm(&shape, &input, affine, 0.0, &mut output, statistics).unwrap();
    assert!(output[..2].iter().all(|value| value.is_nan()));
    assert_eq!(output[2..], [-1.0, 1.0]);
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let shape = LayerNormShape {
        rows: 531,
        columns: 133,
    };
    assert_same_on_threads(|| run(&shape));
}

#[test]
fn other_lengths_are_refused() {
    let shape = LayerNormShape {
        rows: 1,
        columns: 2,
    };
    for wrong in 0..6 {
        let length = |of: usize, right: usize| vec![1.0_f32; right + usize::from(of == wrong)];
        let [input, gamma, beta] = [0, 1, 2].map(|of| length(of, 2));
        let (mut output, mut mean, mut inverse) = (length(3, 2), length(4, 1), length(5, 1));
        let (affine, statistics) = ([&gamma[..], &beta], [&mut mean[..], &mut inverse]);
        assert!(layer_norm(&shape, &input, affine, 0.1, &mut output, statistics).is_err());
        let (from, statistics) = ([&input[..], &output], [&mean[..], &inverse]);
        let (mut input_grad, mut gamma_grad, mut beta_grad) =
            (vec![0.0; 2], vec![0.0; 2], beta.clone());
        let sums = [&mut gamma_grad[..], &mut beta_grad];
        let target = &mut input_grad;
        assert!(layer_norm_backward(&shape, from, &gamma, statistics, target, sums).is_err());
    }
}
