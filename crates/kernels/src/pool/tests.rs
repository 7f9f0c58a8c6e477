use proptest::prelude::*;

use super::{
    AdaptivePool2dShape, Divisor, Pool2dShape, Rounding, adaptive_avg_pool2d,
    adaptive_avg_pool2d_backward, avg_pool2d, avg_pool2d_backward, max_pool2d, max_pool2d_backward,
};
use crate::isa::InstructionSet;
use crate::sample::{assert_close, assert_same_on_threads, values};

fn shapes() -> impl Strategy<Value = Pool2dShape> {
    let axis = (
        0_usize..=40,
        1_usize..=4,
        1_usize..=4,
        0_usize..=2,
        1_usize..=2,
    );
    (0_usize..=3, 0_usize..=3, any::<bool>(), axis.clone(), axis).prop_map(
        |(images, channels, ceil, rows, columns)| Pool2dShape {
            planes: [images, channels],
            input: [rows.0, columns.0],
            kernel: [rows.1, columns.1],
            stride: [rows.2, columns.2],
            padding: [rows.3, columns.3],
            dilation: [rows.4, columns.4],
            rounding: if ceil {
                Rounding::Ceil
            } else {
                Rounding::Floor
            },
        },
    )
}

/// All taps of a window, as burn-flex visits them: index in the plane, or `None` in the padding.
fn taps(shape: &Pool2dShape, at: [usize; 2]) -> Vec<Option<usize>> {
    let mut taps = Vec::new();
    for ky in 0..shape.kernel[0] {
        for kx in 0..shape.kernel[1] {
            let k = [ky, kx];
            let place = [0, 1].map(|axis| {
                (at[axis] * shape.stride[axis] + k[axis] * shape.dilation[axis])
                    .checked_sub(shape.padding[axis])
                    .filter(|&place| place < shape.input[axis])
            });
            taps.push(match place {
                [Some(y), Some(x)] => Some(y * shape.input[1] + x),
                _ => None,
            });
        }
    }
    taps
}

/// Maximum and index of a window, in the words of burn-flex's loop.
fn maximum(plane: &[f32], taps: &[Option<usize>]) -> (f32, i32) {
    let mut best = (f32::NEG_INFINITY, -1);
    for &index in taps.iter().flatten() {
        let value = plane[index];
        if best.1 < 0 || value > best.0 || value.is_nan() {
            best = (value, index as i32);
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn maxima_are_burns(shape in shapes(), special in 0_u8..3) {
        let mut input = values(shape.input_len().unwrap(), 1);
        for (index, value) in input.iter_mut().enumerate() {
            match special {
                1 if index % 3 == 0 => *value = f32::NAN,
                1 if index % 7 == 1 => *value = f32::NEG_INFINITY,
                // Ties.
                2 => *value = (*value * 2.0).round(),
                _ => {}
            }
        }
        let [rows, columns] = shape.output().unwrap();
        let plane = shape.input[0] * shape.input[1];
        let (mut expected, mut expected_at) = (Vec::new(), Vec::new());
        for p in 0..shape.planes[0] * shape.planes[1] {
            for pixel in 0..rows * columns {
                let taps = taps(&shape, [pixel / columns, pixel % columns]);
                let (value, at) = maximum(&input[p * plane..][..plane], &taps);
                expected.push(value.to_bits());
                expected_at.push(at);
            }
        }
        for set in InstructionSet::available() {
            set.choose();
            let mut output = vec![0.0; expected.len()];
            let mut indices = vec![0_i32; expected.len()];
            max_pool2d(&shape, &input, &mut output, &mut indices).unwrap();
            let bits: Vec<u32> = output.iter().map(|value| value.to_bits()).collect();
            prop_assert_eq!(&bits, &expected);
            prop_assert_eq!(&indices, &expected_at);
        }

        let gradient = values(expected.len(), 2);
        let mut input_grad = vec![f32::NAN; input.len()];
        max_pool2d_backward(&shape, &gradient, &expected_at, &mut input_grad).unwrap();
        let mut sums = vec![0.0; input.len()];
        for (window, &at) in expected_at.iter().enumerate().filter(|(_, at)| **at >= 0) {
            sums[window / (rows * columns) * plane + at as usize] += f64::from(gradient[window]);
        }
        assert_close(&input_grad, &sums);
    }
}

#[test]
fn of_no_planes_there_are_no_averages() {
    let shape = Pool2dShape::new([0, 3], [4, 4], [2, 2]);
    avg_pool2d(&shape, Divisor::default(), &[], &mut []).unwrap();
    avg_pool2d_backward(&shape, Divisor::default(), &[], &mut []).unwrap();
    let shape = AdaptivePool2dShape {
        planes: [2, 0],
        input: [3, 4],
        output: [1, 2],
    };
    adaptive_avg_pool2d(&shape, &[], &mut []).unwrap();
    adaptive_avg_pool2d_backward(&shape, &[], &mut []).unwrap();
}

#[test]
fn windows_wholly_in_the_padding_average_to_zero() {
    let shape = Pool2dShape {
        padding: [2, 2],
        ..Pool2dShape::new([1, 1], [1, 1], [1, 1])
    };
    let mut expected = [0.0; 25];
    expected[12] = 3.0;
    let gradient = values(25, 1);
    for divisor in [Divisor::IncludePadding, Divisor::ExcludePadding] {
        let mut output = [f32::NAN; 25];
        avg_pool2d(&shape, divisor, &[3.0], &mut output).unwrap();
        assert_eq!(output, expected);
        let mut input_grad = [f32::NAN];
        avg_pool2d_backward(&shape, divisor, &gradient, &mut input_grad).unwrap();
        assert_eq!(input_grad, [gradient[12]]);
    }
}

#[test]
fn planes_without_rows_or_columns_average_to_zero_or_to_nothing() {
    for input in [[0, 4], [4, 0], [0, 0]] {
        let empty = Pool2dShape::new([2, 3], input, [2, 2]);
        let padded = Pool2dShape {
            padding: [1, 1],
            ..empty
        };
        for divisor in [Divisor::IncludePadding, Divisor::ExcludePadding] {
            avg_pool2d(&empty, divisor, &[], &mut []).unwrap();
            avg_pool2d_backward(&empty, divisor, &[], &mut []).unwrap();
            let mut output = vec![f32::NAN; padded.output_len().unwrap()];
            avg_pool2d(&padded, divisor, &[], &mut output).unwrap();
            assert_eq!(output, vec![0.0; output.len()]);
            avg_pool2d_backward(&padded, divisor, &output, &mut []).unwrap();
        }
    }
    let shape = AdaptivePool2dShape {
        planes: [1, 2],
        input: [3, 4],
        output: [0, 2],
    };
    adaptive_avg_pool2d(&shape, &[1.0; 24], &mut []).unwrap();
    let mut input_grad = [f32::NAN; 24];
    adaptive_avg_pool2d_backward(&shape, &[], &mut input_grad).unwrap();
    assert_eq!(input_grad, [0.0; 24]);
}

#[test]
fn an_index_outside_its_plane_is_named() {
    let shape = Pool2dShape::new([1, 1], [2, 2], [2, 2]);
    let result = max_pool2d_backward(&shape, &[1.0], &[4_i32], &mut [0.0; 4]);
    assert_eq!(
        result.unwrap_err().to_string(),
        "max_pool2d: index 4 is outside a plane of 4 values"
    );
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let shape = Pool2dShape {
        stride: [1, 1],
        padding: [1, 1],
        ..Pool2dShape::new([9, 8], [31, 33], [3, 3])
    };
    let input = values(shape.input_len().unwrap(), 1);
    assert_same_on_threads(|| {
        let mut output = vec![0.0; shape.output_len().unwrap()];
        let mut indices = vec![0_i32; output.len()];
        max_pool2d(&shape, &input, &mut output, &mut indices).unwrap();
        let mut input_grad = vec![0.0; input.len()];
        max_pool2d_backward(&shape, &output, &indices, &mut input_grad).unwrap();
        let mut averages = vec![0.0; output.len()];
        avg_pool2d(&shape, Divisor::default(), &input, &mut averages).unwrap();
        let indices = indices.into_iter().map(|index| index as f32).collect();
        [output, input_grad, averages, indices]
    });
}

#[test]
fn maxima_of_windows_side_by_side_are_burns_however_long_a_line_is() {
    for (height, width) in [
        (2, 2),
        (9, 7),
        (24, 24),
        (4, 1024),
        (5, 1027),
        (2, 3000),
        (601, 2),
    ] {
        let shape = Pool2dShape::new([2, 3], [height, width], [2, 2]);
        let mut input = values(shape.input_len().unwrap(), 1);
        for (index, value) in input.iter_mut().enumerate() {
            // Ties and values that are none.
            *value = match index % 11 {
                0 | 1 => f32::NAN,
                _ => (*value * 2.0).round(),
            };
        }
        let [rows, columns] = shape.output().unwrap();
        for set in InstructionSet::available() {
            set.choose();
            let mut output = vec![0.0; shape.output_len().unwrap()];
            let mut indices = vec![0_i32; output.len()];
            max_pool2d(&shape, &input, &mut output, &mut indices).unwrap();
            for (window, (value, at)) in output.iter().zip(indices).enumerate() {
                let (plane, pixel) = (window / (rows * columns), window % (rows * columns));
                let taps = taps(&shape, [pixel / columns, pixel % columns]);
                let plane = &input[plane * height * width..][..height * width];
                let expected = maximum(plane, &taps);
                assert_eq!((value.to_bits(), at), (expected.0.to_bits(), expected.1));
            }
        }
    }
}
