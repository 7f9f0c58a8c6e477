//! The kernel that puts the gradients of a bucket in one row.
//!
//! One thread writes one number of the row: it looks through the gradients for the one that its place
//! belongs to, and writes zero where there is none. Gradients and row are read and written once, and the
//! weight is multiplied in on the way: `2 n` numbers of traffic for `n` of them, in one launch. (Burn's
//! `cat` is one kernel as well where its fuser takes it, which is a matter of what stands around it;
//! otherwise it is one launch a gradient, and so is a copy into each one's place.)
//!
//! The search is unrolled, and its ranges are the same for all threads of a warp but at a border: it costs
//! a few integer comparisons a number, which the memory's latency hides.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::untile;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::Row;

/// The most gradients of one launch: each is a pointer, a length and a place among the kernel's
/// parameters, of which drivers before CUDA 12.1 take 4 KiB.
const MOST_PARTS: usize = 64;

/// The fewest: how many there are is a constant of the kernel, and each number of them is another kernel to
/// compile.
const FEWEST_PARTS: usize = 8;

/// Writes the numbers `begin..begin + count` of a row: those of `parts`, times `weight`, each from its
/// place in `places` on, and zeros between. Half types are multiplied in f32.
#[cube(launch, address_type = "dynamic")]
fn gather<F: Float>(
    parts: &Sequence<LinearView<'static, F>>,
    places: &Sequence<usize>,
    mut row: LinearViewMut<'_, F>,
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
        let place = *places.index(part);
        let numbers = parts.index(part);
        if at >= place && at - place < numbers.shape() {
            number = f32::cast_from(numbers.read(at - place)) * weight;
        }
    }
    row.write(at, F::cast_from(number));
}

/// The row of `parts`, which begin at `row.places`, each times `row.weight`.
pub(super) fn flatten(parts: Vec<CubeTensor>, row: &Row) -> CubeTensor {
    let (client, device) = (parts[0].client.clone(), parts[0].device.clone());
    let dtype = parts[0].dtype;
    let flat = empty_device_contiguous_dtype(client, device, [row.length].into(), dtype);
    let mut rest = parts.into_iter();
    // What lies before a launch's first gradient is the launch's before it to fill, or the first's.
    let mut begin = 0;
    for places in row.places.chunks(MOST_PARTS) {
        let own: Vec<_> = rest.by_ref().take(places.len()).map(untile).collect();
        let next = begin_of_next(row, places);
        if begin < next {
            launch(own, places, &flat, begin..next, row.weight);
        }
        begin = next;
    }
    flat
}

/// Where the launch behind that of `places` begins.
fn begin_of_next(row: &Row, places: &[usize]) -> usize {
    let last = places.last().copied().unwrap_or(0);
    let next = row.places.iter().find(|place| **place > last);
    next.copied().unwrap_or(row.length)
}

fn launch(
    mut parts: Vec<CubeTensor>,
    places: &[usize],
    row: &CubeTensor,
    range: std::ops::Range<usize>,
    weight: f32,
) {
    let count = range.len();
    // Filled up with parts that begin behind the row, so that there are few different kernels.
    let mut places = places.to_vec();
    let length = row.meta.num_elements();
    let full = parts.len().next_power_of_two();
    for _ in parts.len()..full.clamp(FEWEST_PARTS, MOST_PARTS) {
        parts.push(parts[0].clone());
        places.push(length);
    }
    let cube_dim = CubeDim::new(&row.client, count);
    let cube_count = calculate_cube_count_elemwise(&row.client, count, cube_dim);
    let widest = parts.iter().map(CubeTensor::required_address_type).max();
    let address = widest.unwrap_or_default().max(row.required_address_type());
    gather::launch(
        &row.client,
        cube_count,
        cube_dim,
        address,
        parts
            .into_iter()
            .map(CubeTensor::into_linear_view)
            .collect(),
        places.into_iter().collect(),
        row.clone().into_linear_view(),
        range.start,
        count,
        weight,
        dtype_to_storage_type(row.dtype),
    );
}
