//! The shape of a pooling.

use crate::error::{KernelError, product};

/// What becomes of a last window that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rounding {
    /// It is left out.
    #[default]
    Floor,
    /// It is kept, cut at the padding's end, unless it would begin after the input: Burn's and
    /// PyTorch's `ceil_mode`.
    Ceil,
}

/// The shape of a two-dimensional pooling of `[B, C, H, W]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dShape {
    /// Images and channels.
    pub planes: [usize; 2],
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Steps down and right between two windows.
    pub stride: [usize; 2],
    /// Rows and columns added on either side.
    pub padding: [usize; 2],
    /// Steps between two taps of a window.
    pub dilation: [usize; 2],
    /// What becomes of a last window that does not fit.
    pub rounding: Rounding,
}

impl Pool2dShape {
    /// Windows of `kernel` side by side, without padding.
    pub fn new(planes: [usize; 2], input: [usize; 2], kernel: [usize; 2]) -> Self {
        Self {
            planes,
            input,
            kernel,
            stride: kernel,
            padding: [0, 0],
            dilation: [1, 1],
            rounding: Rounding::Floor,
        }
    }

    /// Height and width of the output, as burn-flex and PyTorch have them.
    ///
    /// # Errors
    /// Kernel, stride or dilation that are zero, and extents that do not fit the machine.
    pub fn output(&self) -> Result<[usize; 2], KernelError> {
        for (what, pair) in [
            ("kernel", self.kernel),
            ("stride", self.stride),
            ("dilation", self.dilation),
        ] {
            if pair.contains(&0) {
                return Err(KernelError::Zero {
                    operation: "pool2d",
                    what,
                });
            }
        }
        // Indices in a plane are 32-bit while maxima are searched.
        let fits = |extent: usize| extent < 1 << 24;
        let all = [
            self.input,
            self.kernel,
            self.stride,
            self.padding,
            self.dilation,
        ];
        let in_plane = product("pool2d", &self.input)? <= i32::MAX as usize;
        if !all.as_flattened().iter().all(|&extent| fits(extent)) || !in_plane {
            return Err(KernelError::Overflow {
                operation: "pool2d",
            });
        }
        Ok([self.extent(0), self.extent(1)])
    }

    /// How many values the input has.
    ///
    /// # Errors
    /// As [`Pool2dShape::output`].
    pub fn input_len(&self) -> Result<usize, KernelError> {
        self.output()?;
        let [height, width] = self.input;
        product("pool2d", &[self.planes[0], self.planes[1], height, width])
    }

    /// How many values the output has.
    ///
    /// # Errors
    /// As [`Pool2dShape::output`].
    pub fn output_len(&self) -> Result<usize, KernelError> {
        let [height, width] = self.output()?;
        product("pool2d", &[self.planes[0], self.planes[1], height, width])
    }

    fn extent(&self, axis: usize) -> usize {
        let window = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
        let padded = self.input[axis] + 2 * self.padding[axis];
        let stride = self.stride[axis];
        let Some(room) = padded.checked_sub(window) else {
            return usize::from(self.rounding == Rounding::Ceil);
        };
        match self.rounding {
            Rounding::Floor => room / stride + 1,
            Rounding::Ceil => {
                let windows = room.div_ceil(stride) + 1;
                let begins_behind = (windows - 1) * stride >= self.input[axis] + self.padding[axis];
                windows - usize::from(begins_behind)
            }
        }
    }

    /// The taps of window `at` that are in the input, from the first to after the last.
    pub(crate) fn taps(&self, axis: usize, at: usize) -> [usize; 2] {
        let (start, dilation) = (at * self.stride[axis], self.dilation[axis]);
        let kernel = self.kernel[axis];
        // Tap `k` reads `start + k * dilation - padding`.
        let before = self.padding[axis].saturating_sub(start);
        let inside = (self.input[axis] + self.padding[axis]).saturating_sub(start);
        let first = before.div_ceil(dilation).min(kernel);
        [first, inside.div_ceil(dilation).clamp(first, kernel)]
    }
}
