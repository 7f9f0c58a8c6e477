//! How many floating point operations kernels say that they have computed. A process of its own: the count is one of
//! the whole process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use everburn_kernels::{
    Conv2dShape, KernelError, Matrices, Matrix, add_operations, causal_attention,
    causal_attention_backward, conv2d, conv2d_bias_grad, conv2d_input_grad, conv2d_weight_grad,
    count_operations, matmul, matmul_each, operations_counted, peak_operations, relu,
};

/// Lets one test count at a time.
static COUNTING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    COUNTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `compute` is counted for.
fn counted(compute: impl FnOnce() -> Result<(), KernelError>) -> u64 {
    count_operations(true);
    let before = operations_counted();
    compute().unwrap();
    let after = operations_counted();
    count_operations(false);
    after - before
}

/// What a convolution and its gradients with respect to input, weight and bias are counted for.
fn of_convolution(shape: &Conv2dShape) -> [u64; 4] {
    let zeros = |length: Result<usize, KernelError>| vec![0.0; length.unwrap()];
    let (mut input, mut weight) = (zeros(shape.input_len()), zeros(shape.weight_len()));
    let (mut output, mut bias) = (zeros(shape.output_len()), vec![0.0; shape.channels[1]]);
    [
        counted(|| conv2d(shape, &input, &weight, Some(&bias), &mut output)),
        counted(|| conv2d_input_grad(shape, &output, &weight, &mut input)),
        counted(|| conv2d_weight_grad(shape, &input, &output, &mut weight)),
        counted(|| conv2d_bias_grad(shape, &output, &mut bias)),
    ]
}

#[test]
fn a_convolution_is_counted_forward_and_twice_backward() {
    let _alone = alone();
    // Eight images, by a kernel of 3 x 5 of 6 channels at 10 x 8 pixels of 4 features.
    let dense = Conv2dShape::new(8, [6, 4], [12, 12], [3, 5]);
    let operations = 2 * (8 * 4 * 10 * 8) * (6 * 3 * 5);
    assert_eq!(
        of_convolution(&dense),
        [operations, operations, operations, 0]
    );
    // Each of two groups meets half of the channels; 5 x 4 pixels.
    let grouped = Conv2dShape {
        stride: [2, 3],
        padding: [(0, 1), (1, 1)],
        groups: 2,
        ..dense
    };
    let operations = 2 * (8 * 4 * 6 * 4) * (3 * 3 * 5);
    assert_eq!(grouped.output(), Ok([6, 4]));
    assert_eq!(
        of_convolution(&grouped),
        [operations, operations, operations, 0]
    );
    // By products of matrices, which are not counted on top.
    let pointwise = Conv2dShape::new(3, [20, 32], [7, 7], [1, 1]);
    let operations = 2 * (3 * 32 * 49) * 20;
    assert_eq!(
        of_convolution(&pointwise),
        [operations, operations, operations, 0]
    );
    let nothing = Conv2dShape { batch: 0, ..dense };
    assert_eq!(of_convolution(&nothing), [0; 4]);
}

#[test]
fn products_are_counted_and_their_biases_are_not() {
    let _alone = alone();
    let (left, right, bias) = ([1.0; 40 * 30], [1.0; 30 * 20], [1.0; 20]);
    let mut output = [0.0; 40 * 20];
    let [left, right] = [Matrix::new(&left, [40, 30]), Matrix::new(&right, [30, 20])];
    let product = counted(|| matmul(left, right, Some(&bias), &mut output));
    assert_eq!(product, 2 * 40 * 30 * 20);
    // The gradients of both factors, as a layer computes them.
    let gradient = [1.0; 40 * 20];
    let gradient = Matrix::new(&gradient, [40, 20]);
    let mut of_left = [0.0; 40 * 30];
    let mut of_right = [0.0; 30 * 20];
    let backward = counted(|| {
        matmul(gradient, right.transposed(), None, &mut of_left)?;
        matmul(left.transposed(), gradient, None, &mut of_right)
    });
    assert_eq!(backward, 2 * product);
    let values = [1.0; 2 * 3 * 4 * 5];
    let batch = |extent: [usize; 2]| {
        Matrices::new(&values, [2, 3], [60, 20], extent, [extent[1], 1]).unwrap()
    };
    let mut products = [0.0; 2 * 3 * 4 * 4];
    let each = counted(|| matmul_each(batch([4, 5]), batch([5, 4]), &mut products));
    assert_eq!(each, 2 * (2 * 3) * (4 * 5 * 4));
    let elsewhere = counted(|| {
        add_operations(40 * 20, 30);
        Ok(())
    });
    assert_eq!(elsewhere, product);
}

#[test]
fn causal_attention_is_counted_for_the_pairs_that_see_each_other() {
    let _alone = alone();
    // Two texts of three heads of 100 tokens, which are several tiles: the first token sees one, the last one hundred.
    let (tokens, width) = (100, 4);
    let all = vec![0.5; 2 * 3 * tokens * width];
    let of = || {
        let strides = [3 * tokens * width, tokens * width];
        Matrices::new(&all, [2, 3], strides, [tokens, width], [width, 1]).unwrap()
    };
    let mut output = vec![0.0; all.len()];
    let mut logarithms = vec![0.0; 2 * 3 * tokens];
    let product = 2 * (2 * 3) * (tokens * (tokens + 1) / 2 * width) as u64;
    let forward =
        counted(|| causal_attention([of(), of(), of()], 0.5, &mut output, &mut logarithms));
    assert_eq!(forward, 2 * product);
    let [mut q, mut k, mut v] = [(); 3].map(|()| vec![0.0; all.len()]);
    let backward = counted(|| {
        let grads = [&mut q[..], &mut k, &mut v];
        causal_attention_backward([of(), of(), of()], 0.5, [&output, &logarithms], &all, grads)
    });
    assert_eq!(
        backward,
        4 * product,
        "scores that are computed anew are not counted"
    );
}

#[test]
fn what_is_refused_or_not_asked_for_is_not_counted() {
    let _alone = alone();
    let six = [0.0; 6];
    let wide = Matrix::new(&six, [2, 3]);
    let refused = counted(|| {
        matmul(wide, wide, None, &mut [0.0; 4]).unwrap_err();
        relu(&six, &mut [0.0; 6])
    });
    assert_eq!(refused, 0);
    let before = operations_counted();
    matmul(wide, wide.transposed(), None, &mut [0.0; 4]).unwrap();
    assert_eq!(operations_counted(), before);
}

#[test]
fn a_machine_has_a_peak() {
    let _alone = alone();
    let peak = peak_operations();
    // From a simulated processor to the largest.
    assert!(peak > 1e6 && peak < 1e15, "{peak}");
}
