use proptest::prelude::*;

use super::{
    Conv2dShape, conv2d, conv2d_bias_grad, conv2d_input_grad, conv2d_weight_grad, definition,
};
use crate::KernelError;
use crate::isa::InstructionSet;
use crate::sample::{assert_close, assert_same_on_threads, doubles, values};

struct All {
    output: Vec<f32>,
    input_grad: Vec<f32>,
    weight_grad: Vec<f32>,
    bias_grad: Vec<f32>,
}

fn all(shape: &Conv2dShape) -> All {
    let input = values(shape.input_len().unwrap(), 1);
    let weight = values(shape.weight_len().unwrap(), 2);
    let bias = values(shape.channels[1], 3);
    let gradient = values(shape.output_len().unwrap(), 4);
    let garbage = |length| vec![f32::NAN; length];
    let mut all = All {
        output: garbage(gradient.len()),
        input_grad: garbage(input.len()),
        weight_grad: garbage(weight.len()),
        bias_grad: garbage(bias.len()),
    };
    conv2d(shape, &input, &weight, Some(&bias), &mut all.output).unwrap();
    conv2d_input_grad(shape, &gradient, &weight, &mut all.input_grad).unwrap();
    conv2d_weight_grad(shape, &input, &gradient, &mut all.weight_grad).unwrap();
    conv2d_bias_grad(shape, &gradient, &mut all.bias_grad).unwrap();
    all
}

fn check(shape: &Conv2dShape) {
    let input = doubles(&values(shape.input_len().unwrap(), 1));
    let weight = doubles(&values(shape.weight_len().unwrap(), 2));
    let bias = doubles(&values(shape.channels[1], 3));
    let gradient = doubles(&values(shape.output_len().unwrap(), 4));
    let output = definition::conv2d(shape, &input, &weight, &bias);
    let [input_grad, weight_grad, bias_grad] =
        definition::gradients(shape, &input, &weight, &gradient);
    for set in InstructionSet::available() {
        set.choose();
        let fast = all(shape);
        assert_close(&fast.output, &output);
        assert_close(&fast.input_grad, &input_grad);
        assert_close(&fast.weight_grad, &weight_grad);
        assert_close(&fast.bias_grad, &bias_grad);
    }
}

#[test]
fn few_images_with_many_channels() {
    let shape = Conv2dShape::new(2, [18, 40], [9, 11], [3, 3]);
    check(&shape);
    check(&Conv2dShape {
        stride: [2, 3],
        padding: [(1, 0), (2, 1)],
        dilation: [1, 2],
        groups: 2,
        ..Conv2dShape::new(3, [36, 28], [9, 11], [3, 2])
    });
    for batch in [0, 1, 3, 20] {
        check(&Conv2dShape::new(batch, [20, 70], [7, 7], [1, 1]));
    }
    check(&Conv2dShape {
        stride: [2, 2],
        ..Conv2dShape::new(3, [20, 33], [7, 8], [1, 1])
    });
    check(&Conv2dShape {
        stride: [3, 2],
        padding: [(3, 3), (4, 4)],
        ..Conv2dShape::new(1, [13, 14], [30, 31], [7, 5])
    });
}

fn shapes() -> impl Strategy<Value = Conv2dShape> {
    let axis = (
        0_usize..=13,
        1_usize..=5,
        1_usize..=4,
        0_usize..=3,
        0_usize..=3,
        1_usize..=3,
    );
    (
        0_usize..=19,
        1_usize..=3,
        0_usize..=4,
        0_usize..=14,
        axis.clone(),
        axis,
    )
        .prop_map(|(batch, groups, c_in, c_out, rows, columns)| Conv2dShape {
            batch,
            channels: [groups * c_in, groups * c_out],
            input: [rows.0, columns.0],
            kernel: [rows.1, columns.1],
            stride: [rows.2, columns.2],
            padding: [(rows.3, rows.4), (columns.3, columns.4)],
            dilation: [rows.5, columns.5],
            groups,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn equals_the_definition(shape in shapes()) {
        check(&shape);
    }
}

/// The layers of `mnist` and `mnist-bn`, one block of images and a bit.
fn layers() -> Vec<Conv2dShape> {
    let layer = |channels, input, kernel, stride, padding| Conv2dShape {
        stride: [stride; 2],
        padding: [(padding, padding); 2],
        ..Conv2dShape::new(17, channels, [input; 2], [kernel; 2])
    };
    vec![
        layer([1, 10], 28, 5, 1, 0),
        layer([10, 20], 12, 5, 1, 0),
        layer([1, 12], 28, 3, 1, 1),
        layer([12, 24], 28, 6, 2, 2),
        layer([24, 32], 14, 6, 2, 2),
    ]
}

#[test]
fn equals_the_definition_on_the_models_layers() {
    layers().iter().for_each(check);
}

#[test]
fn one_pixel_and_pointwise_shapes() {
    check(&Conv2dShape::new(3, [1, 1], [1, 1], [1, 1]));
    check(&Conv2dShape::new(33, [70, 37], [1, 1], [1, 1]));
    check(&Conv2dShape {
        stride: [2, 2],
        ..Conv2dShape::new(5, [9, 33], [7, 7], [1, 1])
    });
    check(&Conv2dShape {
        groups: 6,
        padding: [(1, 1), (1, 1)],
        ..Conv2dShape::new(18, [6, 12], [5, 6], [3, 3])
    });
}

#[test]
fn a_batch_larger_than_the_scratch_is_cut() {
    check(&Conv2dShape::new(40, [24, 3], [50, 41], [2, 3]));
    // Too large for the cache with images as lanes, and with more channels than one task takes.
    check(&Conv2dShape::new(17, [8, 110], [60, 61], [3, 3]));
}

#[test]
fn the_same_bits_for_any_number_of_threads() {
    let full = layers()
        .into_iter()
        .map(|shape| Conv2dShape { batch: 70, ..shape });
    let few = Conv2dShape {
        stride: [2, 1],
        ..Conv2dShape::new(5, [36, 140], [20, 21], [3, 3])
    };
    let pointwise = Conv2dShape::new(3, [40, 140], [20, 21], [1, 1]);
    for shape in full.chain([few, pointwise]) {
        assert_same_on_threads(|| {
            let all = all(&shape);
            [all.output, all.input_grad, all.weight_grad, all.bias_grad]
        });
    }
}

#[test]
fn what_is_wrong_is_named() {
    let shape = Conv2dShape::new(1, [1, 1], [3, 3], [2, 2]);
    let result = conv2d(&shape, &[0.0; 8], &[0.0; 4], None, &mut [0.0; 4]);
    let expected = "conv2d: input holds 8 values where the shape says 9";
    assert_eq!(result.unwrap_err().to_string(), expected);
    let uneven = Conv2dShape {
        groups: 2,
        ..Conv2dShape::new(1, [4, 3], [3, 3], [2, 2])
    };
    assert_eq!(
        uneven.output().unwrap_err().to_string(),
        "conv2d: 3 channels cannot be shared by 2 groups"
    );
    let huge = Conv2dShape::new(usize::MAX, [1, 1], [3, 3], [2, 2]);
    assert_eq!(
        huge.output_len(),
        Err(KernelError::Overflow {
            operation: "conv2d"
        })
    );
}
