//! What a layer yields, and its gradients, beside those of another.

use burn::prelude::*;

/// Numbers without a pattern, from -1 to 1.
pub fn tensor<const D: usize>(shape: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let values = (0..shape.iter().product()).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), device)
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// What a layer yields, and the gradients of all that went in, of a loss that looks at each value in a
/// way of its own.
pub type Everything = Vec<Vec<f64>>;

pub fn everything<const D: usize>(
    inputs: Vec<Tensor<D>>,
    parameters: Vec<Tensor<1>>,
    layer: impl Fn(&[Tensor<D>], &[Tensor<1>]) -> Tensor<D>,
) -> Everything {
    let inputs: Vec<_> = inputs.into_iter().map(Tensor::require_grad).collect();
    let parameters: Vec<_> = parameters.into_iter().map(Tensor::require_grad).collect();
    let output = layer(&inputs, &parameters);
    let device = output.device();
    let weights = tensor(output.dims(), 99, &device).cast(output.dtype());
    let gradients = (output.clone() * weights).sum().backward();
    let mut all = vec![values(output)];
    all.extend(
        inputs
            .iter()
            .map(|input| values(input.grad(&gradients).unwrap())),
    );
    let parameters = parameters.iter();
    all.extend(parameters.map(|parameter| values(parameter.grad(&gradients).unwrap())));
    all
}

/// Below this, the largest number of an array is what is left of larger ones, in sums of numbers around 1 that cancel
/// each other, and a tolerance by its size would ask for more digits than these have.
const SMALLEST_SCALE: f64 = 1.0;

/// Equal within 1e-5 of the largest number of an array.
#[track_caller]
pub fn assert_close(ours: &Everything, theirs: &Everything) {
    assert_eq!(ours.len(), theirs.len());
    for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours.len(), theirs.len(), "array {index}");
        let finite = theirs.iter().filter(|value| value.is_finite());
        let scale = finite.fold(SMALLEST_SCALE, |largest: f64, value| {
            largest.max(value.abs())
        });
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!(
                // A window of nothing but padding has no maximum.
                ours == theirs || (ours - theirs).abs() <= 1e-5 * scale,
                "array {index}: {ours} {theirs} of {scale}"
            );
        }
    }
}

pub fn training() -> Device {
    Device::flex().autodiff()
}
