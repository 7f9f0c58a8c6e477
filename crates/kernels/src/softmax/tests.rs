use proptest::prelude::*;

use super::*;
use crate::sample::{assert_close, assert_same_on_threads, doubles, quotients, values};

/// By definition; `None` in the place of what is not looked at.
fn define(rows: Rows, input: &[f64]) -> Vec<Option<f64>> {
    let mut output = Vec::new();
    for (row, values) in input.chunks(rows.columns.max(1)).enumerate() {
        let visible = rows.visible(row);
        let scaled = values[..visible]
            .iter()
            .map(|value| value * f64::from(rows.scale));
        let total: f64 = scaled.clone().map(f64::exp).sum();
        output.extend(scaled.map(|value| Some(value.exp() / total)));
        output.extend((visible..rows.columns).map(|_| None));
    }
    output
}

fn run(set: InstructionSet, rows: Rows, input: &[f32], gradient: &[f32]) -> [Vec<f32>; 2] {
    let [mut output, mut input_grad] = [(); 2].map(|()| vec![7.0; input.len()]);
    forward(set, rows, input, &mut output);
    backward(set, rows, [&output, gradient], &mut input_grad);
    [output, input_grad]
}

fn check(rows: Rows, count: usize) {
    let input: Vec<_> = values(count, 1).iter().map(|value| 9.0 * value).collect();
    let gradient = values(count, 2);
    let (exact, slopes) = (doubles(&input), doubles(&gradient));
    let expected = define(rows, &exact);
    let expected: Vec<_> = expected
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect();
    let loss = |input: &[f64]| {
        let output = define(rows, input).into_iter().zip(&slopes);
        output.map(|(y, g)| y.unwrap_or_default() * g).sum::<f64>()
    };
    let expected_grad = quotients(&exact, loss);
    for set in InstructionSet::available() {
        let [output, input_grad] = run(set, rows, &input, &gradient);
        assert_close(&output, &expected);
        assert_close(&input_grad, &expected_grad);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn equals_the_definition_and_its_difference_quotients(
        matrices in 0_usize..3, length in 0_usize..20, scale in 0.1_f32..1.5,
    ) {
        check(Rows::new(length, scale), matrices * length * length);
    }
}

#[test]
fn long_rows_are_as_good_as_short_ones() {
    let length = 2_003;
    let (input, rows) = (values(length * length, 3), Rows::new(length, 1.0));
    let expected = define(rows, &doubles(&input));
    for set in InstructionSet::available() {
        let mut output = vec![7.0; input.len()];
        forward(set, rows, &input, &mut output);
        let last = (length - 1) * length;
        for (actual, expected) in output.iter().zip(&expected).skip(last) {
            let expected = expected.unwrap();
            let error = (f64::from(*actual) - expected).abs();
            assert!(
                error <= 1e-6 * expected.abs(),
                "{actual} in place of {expected}"
            );
        }
    }
}

#[test]
fn infinity_and_not_a_number() {
    const LOW: f32 = f32::NEG_INFINITY;
    // What is ahead is not read.
    let first_rows = [0.0, f32::NAN, f32::NAN, 1.0, 1.0, f32::NAN];
    for (scale, last_row, expected) in [
        (1.0, [LOW, 3e38, LOW], Some([0.0, 1.0, 0.0])),
        (2.0, [LOW, 5.0, LOW], Some([0.0, 1.0, 0.0])),
        (1.0, [LOW, LOW, LOW], None),
        (1.0, [f32::NAN, 1.0, 2.0], None),
    ] {
        let scores = [&first_rows[..], &last_row].concat();
        for set in InstructionSet::available() {
            let mut output = [7.0; 9];
            forward(set, Rows::new(3, scale), &scores, &mut output);
            assert_eq!(output[..6], [1.0, 0.0, 0.0, 0.5, 0.5, 0.0]);
            match expected {
                Some(expected) => assert_eq!(output[6..], expected),
                None => assert!(output[6..].iter().all(|value| value.is_nan())),
            }
        }
    }
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let count = 5 * 131 * 131;
    let (input, gradient) = (values(count, 1), values(count, 2));
    let set = InstructionSet::best();
    assert_same_on_threads(|| run(set, Rows::new(131, 0.3), &input, &gradient));
}

#[test]
fn other_lengths_are_refused() {
    let given = [1.0; 4];
    for lengths in [[3, 4], [4, 5]] {
        let mut output = vec![0.0; lengths[1]];
        assert!(causal_softmax([1, 2], 1.0, &given[..lengths[0]], &mut output).is_err());
    }
    for [y, gradient, target] in [[3, 4, 4], [4, 3, 4], [4, 4, 3]] {
        let [y, gradient] = [y, gradient].map(|length| &given[..length]);
        let target = &mut vec![0.0; target];
        assert!(causal_softmax_backward([1, 2], 1.0, y, gradient, target).is_err());
    }
    assert!(causal_softmax([usize::MAX, 2], 1.0, &[], &mut []).is_err());
}
