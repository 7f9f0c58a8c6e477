//! A bucket on a device: gradients copied into one flat buffer, and views of it.

use burn::prelude::*;
use burn::tensor::DType;

use super::layout::FlatLayout;
use crate::gradient::{Gradient, times};

/// The gradients in one flat buffer, each multiplied by `weight`; missing gradients and the padding between them are
/// zero. One kernel on a GPU, Burn's own operations elsewhere.
pub(crate) fn flatten(
    parts: &[Option<Gradient>],
    layout: &FlatLayout,
    dtype: DType,
    weight: f64,
    device: &Device,
) -> Tensor<1> {
    let zeros = |length: usize| Tensor::<1>::zeros([length], (device, dtype));
    if parts.iter().all(Option::is_none) || layout.len() == 0 {
        return zeros(layout.len());
    }
    #[cfg(feature = "gpu")]
    if let Some(flat) = super::gpu::flatten(parts, layout, dtype, weight) {
        return flat;
    }
    let mut pieces = Vec::with_capacity(2 * parts.len());
    for (slot, (part, range)) in parts.iter().zip(layout.ranges()).enumerate() {
        pieces.push(match part {
            Some(part) => times(part.clone().flat(), weight),
            None => zeros(range.len()),
        });
        pieces.push(zeros(layout.gap(slot)));
    }
    pieces.retain(|part| part.dims() != [0]);
    Tensor::cat(pieces, 0)
}

/// The gradients in a flat buffer, of these shapes; without a copy on a GPU.
pub(crate) fn views(flat: &Tensor<1>, layout: &FlatLayout, shapes: &[&[usize]]) -> Vec<Gradient> {
    #[cfg(feature = "gpu")]
    if let Some(views) = super::gpu::views(flat, layout, shapes) {
        return views;
    }
    let ranges = layout.ranges().iter().zip(shapes);
    let views = ranges.map(|(range, shape)| {
        let numbers = match range.is_empty() {
            true => Tensor::zeros([0], (&flat.device(), flat.dtype())),
            false => flat.clone().slice(range.clone()),
        };
        Gradient::of_tensor(numbers).shaped(shape)
    });
    views.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Bucket;

    #[test]
    fn flattened_gradients_come_out_again() {
        let device = Device::flex();
        let shapes: [&[usize]; 4] = [&[2, 3], &[0, 4], &[130], &[1]];
        let layout = FlatLayout::of(&Bucket::of_shapes(&shapes, DType::F32));
        let first = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
        let empty = Tensor::<2>::zeros([0, 4], &device);
        let last = Tensor::<1>::from_floats([-8.0], &device);
        let parts = [
            Some(Gradient::of_tensor(first)),
            Some(Gradient::of_tensor(empty)),
            None,
            Some(Gradient::of_tensor(last)),
        ];
        let flat = flatten(&parts, &layout, DType::F32, 0.5, &device);
        assert_eq!(flat.dims(), [layout.len()]);
        let sum = flat.clone().abs().sum().into_scalar::<f32>();
        assert_eq!(sum, 0.5 * (21.0 + 8.0), "what lies between is zero");
        let views = views(&flat, &layout, &shapes);
        let numbers = |view: &Gradient| {
            let data = view.clone().read().unwrap();
            data.iter::<f32>().collect::<Vec<_>>()
        };
        assert_eq!(numbers(&views[0]), [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
        assert_eq!(views[0].shape(), [2, 3]);
        assert_eq!((numbers(&views[1]), views[1].shape()), (vec![], vec![0, 4]));
        assert_eq!(numbers(&views[2]), [0.0; 130]);
        assert_eq!(numbers(&views[3]), [-4.0]);
        let nothing = flatten(&[const { None }; 4], &layout, DType::F16, 1.0, &device);
        assert_eq!(
            (nothing.dtype(), nothing.dims()),
            (DType::F16, [layout.len()])
        );
    }
}
