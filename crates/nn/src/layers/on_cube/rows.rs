//! Rows of tensors, each worked on by the threads of one cube.

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::{into_contiguous, untile};
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, empty_device_dtype};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::zspace::metadata::Metadata;
use cubecl::zspace::striding::has_pitched_row_major_strides;

/// The most threads that share a row. Every GPU has as many.
const MOST_THREADS: usize = 256;

/// The fewest: a warp.
const FEWEST_THREADS: usize = 32;

/// Below all numbers that rows have. WGSL has no infinity.
pub(super) const LOWEST: f32 = -3.0e38;

/// A tensor as rows of its last dimension.
pub(super) struct Rows {
    pub(super) tensor: CubeTensor,
    /// How many there are.
    pub(super) count: usize,
    /// The length of one.
    pub(super) columns: usize,
}

impl Rows {
    /// Those of a tensor, which is copied if its rows are not in order.
    pub(super) fn of(tensor: CubeTensor) -> Self {
        let tensor = untile(tensor);
        let in_order = has_pitched_row_major_strides(tensor.meta.shape(), tensor.meta.strides());
        match in_order {
            true => Self::in_order(tensor),
            false => Self::in_order(into_contiguous(tensor)),
        }
    }

    /// Memory for a result of this shape and type, beside `self`.
    pub(super) fn empty(&self, shape: Shape, dtype: DType) -> Self {
        let (client, device) = (self.tensor.client.clone(), self.tensor.device.clone());
        Self::in_order(empty_device_dtype(client, device, shape, dtype))
    }

    /// The same as `self` in shape and type.
    pub(super) fn like(&self) -> Self {
        self.empty(self.tensor.shape(), self.tensor.dtype)
    }

    /// Memory for an `f32` of each row, `shape`.
    pub(super) fn numbers(&self, shape: Shape) -> CubeTensor {
        self.numbers_of(shape, DType::F32)
    }

    /// Memory for a number of each row, `shape`, without gaps.
    pub(super) fn numbers_of(&self, shape: Shape, dtype: DType) -> CubeTensor {
        let (client, device) = (self.tensor.client.clone(), self.tensor.device.clone());
        empty_device_contiguous_dtype(client, device, shape, dtype)
    }

    fn in_order(tensor: CubeTensor) -> Self {
        let shape = tensor.meta.shape();
        let rank = shape.num_dims();
        let columns = shape[rank - 1];
        let count = shape[..rank - 1].iter().product();
        Self {
            tensor,
            count,
            columns,
        }
    }

    /// As a matrix, for a kernel. A row of it may begin later than the one before ends.
    pub(super) fn matrix(&self) -> TensorArg {
        let mut matrix = self.tensor.clone();
        let strides = matrix.meta.strides();
        let stride = match strides.len() {
            1 => self.columns,
            rank => strides[rank - 2],
        };
        *matrix.meta = Metadata::new([self.count, self.columns], [stride, 1]);
        matrix.into_tensor_arg()
    }

    /// Whether there is nothing to compute.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 || self.columns == 0
    }

    /// How many threads share a row.
    pub(super) fn threads(&self) -> usize {
        self.columns
            .next_power_of_two()
            .clamp(FEWEST_THREADS, MOST_THREADS)
    }

    /// A cube for each row.
    pub(super) fn cubes(&self) -> (CubeCount, CubeDim) {
        let dim = CubeDim::new_1d(self.threads() as u32);
        let numbers = self.count * self.threads();
        let count = calculate_cube_count_elemwise(&self.tensor.client, numbers, dim);
        (count, dim)
    }
}

/// How wide the numbers must be that count the elements of these.
pub(super) fn address<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> AddressType {
    let types = tensors.into_iter().map(CubeTensor::required_address_type);
    types.max().unwrap_or_default()
}

/// The sum of the numbers of a cube's threads, which all of them receive.
#[cube]
pub(super) fn sum_of_cube(number: f32, #[comptime] threads: usize) -> f32 {
    let mut shared = Shared::<[f32]>::new_slice(threads);
    let unit = UNIT_POS as usize;
    shared[unit] = number;
    sync_cube();
    // Not `threads`, which is a constant where this is compiled.
    let mut half = CUBE_DIM as usize / 2;
    while half > 0 {
        if unit < half {
            let other = shared[unit + half];
            shared[unit] += other;
        }
        sync_cube();
        half /= 2;
    }
    shared[0]
}

/// The largest of the numbers of a cube's threads, which all of them receive.
#[cube]
pub(super) fn largest_of_cube(number: f32, #[comptime] threads: usize) -> f32 {
    let mut shared = Shared::<[f32]>::new_slice(threads);
    let unit = UNIT_POS as usize;
    shared[unit] = number;
    sync_cube();
    // Not `threads`, which is a constant where this is compiled.
    let mut half = CUBE_DIM as usize / 2;
    while half > 0 {
        if unit < half {
            let other = shared[unit + half];
            if other > shared[unit] {
                shared[unit] = other;
            }
        }
        sync_cube();
        half /= 2;
    }
    shared[0]
}
