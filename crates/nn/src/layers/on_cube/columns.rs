//! Sums of columns: gradients of what is the same for all rows.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::rows::{Rows, address};

/// How few rows one thread adds up: a matrix of many rows and few columns still has work for a whole GPU.
const FEWEST_ROWS: usize = 64;

/// The most cubes along one dimension of a launch on any device.
const MOST_PARTS: usize = 65_535;

/// How many columns a cube has, each with a thread.
const THREADS: usize = 256;

/// The sums of each `rows_of_a_thread` rows of `[rows, columns]`.
#[cube(launch, address_type = "dynamic")]
fn partial_sums<F: Float, O: Float>(
    input: &Tensor<F>,
    sums: &mut Tensor<O>,
    rows_of_a_thread: usize,
    #[define(F, O)] _dtypes: [ElemType; 2],
) {
    let columns = input.shape(1);
    let column = CUBE_POS_X as usize * CUBE_DIM_X as usize + UNIT_POS_X as usize;
    let part = CUBE_POS_Y as usize;
    let out = part * sums.stride(0) + column;
    if column >= columns {
        terminate!();
    }
    let mut row = part * rows_of_a_thread;
    let end = min(row + rows_of_a_thread, input.shape(0));
    let mut sum = f32::new(0.0);
    while row < end {
        sum += f32::cast_from(input[row * input.stride(0) + column]);
        row += 1;
    }
    sums[out] = O::cast_from(sum);
}

/// The sums of the columns of `[rows, columns]`, `[columns]`, in their type.
pub(super) fn sums(input: CubeTensor) -> CubeTensor {
    let dtype = input.dtype;
    let mut input = Rows::of(input);
    let columns = input.columns;
    loop {
        let rows_of_a_thread = input.count.div_ceil(MOST_PARTS).max(FEWEST_ROWS);
        let parts = input.count.div_ceil(rows_of_a_thread).max(1);
        let (shape, dtype) = match parts {
            1 => (Shape::new([columns]), dtype),
            _ => (Shape::new([parts, columns]), DType::F32),
        };
        let sums = input.empty(shape, dtype);
        if columns > 0 {
            add(&input, &sums, (parts, rows_of_a_thread));
        }
        if parts == 1 {
            return sums.tensor;
        }
        input = sums;
    }
}

fn add(input: &Rows, sums: &Rows, (parts, rows_of_a_thread): (usize, usize)) {
    let cubes = input.columns.div_ceil(THREADS);
    partial_sums::launch(
        &input.tensor.client,
        CubeCount::Static(cubes as u32, parts as u32, 1),
        CubeDim::new_1d(THREADS as u32),
        address([&input.tensor]),
        input.matrix(),
        sums.matrix(),
        rows_of_a_thread,
        [&input.tensor, &sums.tensor].map(|tensor| dtype_to_storage_type(tensor.dtype)),
    );
}
