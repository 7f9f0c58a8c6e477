//! Average pooling, by windows and adaptive.

use super::PIECE;
use super::shape::Pool2dShape;
use crate::error::{KernelError, check_length, product};
use crate::parallel::each_piece;

/// By what an average divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Divisor {
    /// The window's taps in the padded input: `count_include_pad`.
    #[default]
    IncludePadding,
    /// The window's taps in the input.
    ExcludePadding,
}

/// A rectangle of a plane, and what a sum over it is divided by.
#[derive(Clone, Copy)]
struct Window {
    rows: [usize; 2],
    columns: [usize; 2],
    divisor: usize,
}

impl Window {
    /// A window of a pooling without dilation.
    fn of(shape: &Pool2dShape, divisor: Divisor, at: [usize; 2]) -> Self {
        let sides = [0, 1].map(|axis| {
            let [first, end] = shape.taps(axis, at[axis]);
            let start = at[axis] * shape.stride[axis];
            // A window that is in the padding has no place in the plane.
            let place = |tap: usize| (start + tap).saturating_sub(shape.padding[axis]);
            let inside = [first, end].map(|tap| place(tap).min(shape.input[axis]));
            let padded = (shape.input[axis] + 2 * shape.padding[axis]).saturating_sub(start);
            let count = match divisor {
                Divisor::IncludePadding => padded.min(shape.kernel[axis]),
                Divisor::ExcludePadding => end - first,
            };
            (inside, count)
        });
        Self {
            rows: sides[0].0,
            columns: sides[1].0,
            divisor: (sides[0].1 * sides[1].1).max(1),
        }
    }

    /// A window of an adaptive pooling.
    fn adaptive(input: [usize; 2], output: [usize; 2], at: [usize; 2]) -> Self {
        let sides = [0, 1].map(|axis| {
            let start = at[axis] * input[axis] / output[axis];
            let end = ((at[axis] + 1) * input[axis]).div_ceil(output[axis]);
            [start, end]
        });
        let [rows, columns] = sides;
        Self {
            rows,
            columns,
            divisor: ((rows[1] - rows[0]) * (columns[1] - columns[0])).max(1),
        }
    }

    fn average(&self, plane: &[f32], width: usize) -> f32 {
        let mut sum = 0.0;
        if self.columns == [0, width] {
            sum = sum_of(&plane[self.rows[0] * width..self.rows[1] * width]);
        } else {
            for y in self.rows[0]..self.rows[1] {
                let line = y * width;
                for &value in &plane[line + self.columns[0]..line + self.columns[1]] {
                    sum += value;
                }
            }
        }
        sum / self.divisor as f32
    }

    fn spread(&self, plane: &mut [f32], width: usize, gradient: f32) {
        let share = gradient / self.divisor as f32;
        for y in self.rows[0]..self.rows[1] {
            let line = y * width;
            for value in &mut plane[line + self.columns[0]..line + self.columns[1]] {
                *value += share;
            }
        }
    }
}

/// Sixteen sums side by side, so that the compiler may vectorise.
fn sum_of(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<16>();
    let mut sums = [0.0; 16];
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += value;
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += value;
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            let other = sums[lane + half];
            sums[lane] += other;
        }
    }
    sums[0]
}

/// Planes of an input and an output, and the window of each output pixel.
struct Planes<W> {
    input: [usize; 2],
    output: [usize; 2],
    window: W,
}

impl<W: Fn([usize; 2]) -> Window + Sync> Planes<W> {
    fn average(&self, input: &[f32], output: &mut [f32]) {
        let [rows, columns] = self.output;
        let plane = self.input[0] * self.input[1];
        let per_piece = (PIECE / (plane + rows * columns).max(1)).max(1);
        let work = input.len() + output.len();
        each_piece(output, per_piece * rows * columns, work, |index, output| {
            for (at, output) in output.chunks_mut(rows * columns).enumerate() {
                let input = &input[(index * per_piece + at) * plane..][..plane];
                for (pixel, value) in output.iter_mut().enumerate() {
                    let window = (self.window)([pixel / columns, pixel % columns]);
                    *value = window.average(input, self.input[1]);
                }
            }
        });
    }

    fn spread(&self, gradient: &[f32], input_grad: &mut [f32]) {
        let [rows, columns] = self.output;
        let plane = self.input[0] * self.input[1];
        let per_piece = (PIECE / (plane + rows * columns).max(1)).max(1);
        let work = input_grad.len();
        each_piece(input_grad, per_piece * plane, work, |index, input_grad| {
            input_grad.fill(0.0);
            for (at, target) in input_grad.chunks_mut(plane).enumerate() {
                let first = (index * per_piece + at) * rows * columns;
                for (pixel, &slope) in gradient[first..first + rows * columns].iter().enumerate() {
                    let window = (self.window)([pixel / columns, pixel % columns]);
                    window.spread(target, self.input[1], slope);
                }
            }
        });
    }
}

const AVERAGE: &str = "avg_pool2d";

/// Writes the average of each window to `output`. The shape's dilation must be 1.
///
/// # Errors
/// A shape that is no pooling or dilated, and slices of other lengths than it says.
pub fn avg_pool2d(
    shape: &Pool2dShape,
    divisor: Divisor,
    input: &[f32],
    output: &mut [f32],
) -> Result<(), KernelError> {
    let planes = planes(shape, divisor)?;
    check_length(AVERAGE, "input", shape.input_len()?, input.len())?;
    check_length(AVERAGE, "output", shape.output_len()?, output.len())?;
    planes.average(input, output);
    Ok(())
}

/// Computes the gradient with respect to the input of [`avg_pool2d`].
///
/// # Errors
/// As [`avg_pool2d`].
pub fn avg_pool2d_backward(
    shape: &Pool2dShape,
    divisor: Divisor,
    gradient: &[f32],
    input_grad: &mut [f32],
) -> Result<(), KernelError> {
    let planes = planes(shape, divisor)?;
    check_length(AVERAGE, "gradient", shape.output_len()?, gradient.len())?;
    check_length(AVERAGE, "input_grad", shape.input_len()?, input_grad.len())?;
    planes.spread(gradient, input_grad);
    Ok(())
}

/// Those of a pooling, which must not be dilated.
fn planes(
    shape: &Pool2dShape,
    divisor: Divisor,
) -> Result<Planes<impl Fn([usize; 2]) -> Window + Sync>, KernelError> {
    if shape.dilation != [1, 1] {
        return Err(KernelError::Dilated { operation: AVERAGE });
    }
    Ok(Planes {
        input: shape.input,
        output: shape.output()?,
        window: move |at| Window::of(shape, divisor, at),
    })
}

const ADAPTIVE: &str = "adaptive_avg_pool2d";

/// The shape of an adaptive average pooling: windows that share the input evenly, overlapping by
/// at most one row or column. An output of one pixel is global average pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptivePool2dShape {
    /// Images and channels.
    pub planes: [usize; 2],
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
}

impl AdaptivePool2dShape {
    fn len(&self, extent: [usize; 2]) -> Result<usize, KernelError> {
        let [images, channels] = self.planes;
        product(ADAPTIVE, &[images, channels, extent[0], extent[1]])
    }

    fn planes(&self) -> Planes<impl Fn([usize; 2]) -> Window + Sync> {
        let Self { input, output, .. } = *self;
        Planes {
            input,
            output,
            window: move |at| Window::adaptive(input, output, at),
        }
    }
}

/// Writes the averages of an adaptive pooling to `output`.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn adaptive_avg_pool2d(
    shape: &AdaptivePool2dShape,
    input: &[f32],
    output: &mut [f32],
) -> Result<(), KernelError> {
    check_length(ADAPTIVE, "input", shape.len(shape.input)?, input.len())?;
    check_length(ADAPTIVE, "output", shape.len(shape.output)?, output.len())?;
    shape.planes().average(input, output);
    Ok(())
}

/// Computes the gradient with respect to the input of [`adaptive_avg_pool2d`].
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn adaptive_avg_pool2d_backward(
    shape: &AdaptivePool2dShape,
    gradient: &[f32],
    input_grad: &mut [f32],
) -> Result<(), KernelError> {
    let (input, output) = (shape.len(shape.input)?, shape.len(shape.output)?);
    check_length(ADAPTIVE, "gradient", output, gradient.len())?;
    check_length(ADAPTIVE, "input_grad", input, input_grad.len())?;
    shape.planes().spread(gradient, input_grad);
    Ok(())
}
