//! The kernel that copies the gradients of a bucket into one flat buffer.
//!
//! One thread writes one number of the buffer: it searches for the gradient that covers its position, and writes zero
//! if there is none. Gradients are read once and the buffer is written once, with the weight multiplied in: `2 n`
//! numbers of traffic for `n` of them, in one launch. (Burn's `cat` is one kernel too if its fuser takes it, which
//! depends on the operations around it; otherwise it is one launch per gradient, as copies into the buffer would be.)
//!
//! The search is unrolled, and its ranges are the same for all threads of a warp except at a border: it costs
//! a few integer comparisons per number, which the memory's latency hides.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::untile;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::FlatBuffer;

/// The most gradients of one launch: each is a pointer, a length and a start among the kernel's
/// parameters, of which drivers before CUDA 12.1 take 4 KiB. Graphics APIs bind fewer buffers.
const MOST_PARTS: usize = 64;

/// The fewest: their number is a compile-time constant of the kernel, and each one is another kernel to compile.
const FEWEST_PARTS: usize = 8;

/// Writes the numbers `begin..begin + count` of a flat buffer: each of `parts` from its index in `starts` on, times
/// `weight`, and zeros between. Half types are multiplied in f32.
#[cube(launch, address_type = "dynamic")]
fn gather<F: Float>(
    parts: &Sequence<LinearView<'static, F>>,
    starts: &Sequence<usize>,
    mut flat: LinearViewMut<'_, F>,
    begin: usize,
    count: usize,
    weight: f32,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let at = begin + ABSOLUTE_POS;
    let mut number = f32::new(0.0);

    #[unroll]
    for part in 0..parts.len().comptime() {
        let start = *starts.index(part);
        let numbers = parts.index(part);
        if at >= start && at - start < numbers.shape() {
            number = f32::cast_from(numbers.read(at - start)) * weight;
        }
    }
    flat.write(at, F::cast_from(number));
}

/// The flat buffer of `parts`, which begin at `buffer.starts`, each times `buffer.weight`.
pub(super) fn flatten(parts: Vec<CubeTensor>, buffer: &FlatBuffer) -> CubeTensor {
    let (client, device) = (parts[0].client.clone(), parts[0].device.clone());
    let dtype = parts[0].dtype;
    let flat = empty_device_contiguous_dtype(client, device, [buffer.length].into(), dtype);
    let mut rest = parts.into_iter();
    let most = most_parts(flat.client.properties().hardware.max_bindings as usize);
    // The padding before a launch's first gradient is filled by the launch before it, or by the first one.
    let mut begin = 0;
    for starts in buffer.starts.chunks(most) {
        let own: Vec<_> = rest.by_ref().take(starts.len()).map(untile).collect();
        let next = begin_of_next(buffer, starts);
        if begin < next {
            launch(own, starts, &flat, begin..next, (buffer.weight, most));
        }
        begin = next;
    }
    flat
}

/// The most gradients of one launch on a device whose kernels have this many buffers: a power of two, so that there
/// are few different kernels. One buffer is the flat one, and one has the lengths.
fn most_parts(bindings: usize) -> usize {
    let left = bindings.saturating_sub(2).clamp(1, MOST_PARTS);
    1 << left.ilog2()
}

/// Where the launch after that of `starts` begins.
fn begin_of_next(buffer: &FlatBuffer, starts: &[usize]) -> usize {
    let last = starts.last().copied().unwrap_or(0);
    let next = buffer.starts.iter().find(|start| **start > last);
    next.copied().unwrap_or(buffer.length)
}

fn launch(
    mut parts: Vec<CubeTensor>,
    starts: &[usize],
    flat: &CubeTensor,
    range: std::ops::Range<usize>,
    (weight, most): (f32, usize),
) {
    let count = range.len();
    // Padded with parts that begin after the end of the buffer, so that there are few different kernels.
    let mut starts = starts.to_vec();
    let length = flat.meta.num_elements();
    let full = parts.len().next_power_of_two();
    for _ in parts.len()..full.clamp(FEWEST_PARTS.min(most), most) {
        parts.push(parts[0].clone());
        starts.push(length);
    }
    let cube_dim = CubeDim::new(&flat.client, count);
    let cube_count = calculate_cube_count_elemwise(&flat.client, count, cube_dim);
    let widest = parts.iter().map(CubeTensor::required_address_type).max();
    let address = widest.unwrap_or_default().max(flat.required_address_type());
    gather::launch(
        &flat.client,
        cube_count,
        cube_dim,
        address,
        parts
            .into_iter()
            .map(CubeTensor::into_linear_view)
            .collect(),
        starts.into_iter().collect(),
        flat.clone().into_linear_view(),
        range.start,
        count,
        weight,
        dtype_to_storage_type(flat.dtype),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_takes_as_many_gradients_as_there_are_buffers_for() {
        assert_eq!(most_parts(1024), MOST_PARTS);
        assert_eq!(most_parts(66), 64);
        assert_eq!(most_parts(31), 16);
        assert_eq!(most_parts(8), 4);
        assert_eq!(most_parts(2), 1);
    }
}
