//! The shape of a convolution.

use crate::error::{KernelError, product};

const CONV: &str = "conv2d";

/// The shape of a two-dimensional convolution. Tensors are contiguous: images `[B, C, H, W]`,
/// weights `[C_out, C_in / groups, K_h, K_w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dShape {
    /// Images.
    pub batch: usize,
    /// Input and output channels.
    pub channels: [usize; 2],
    /// Height and width of the input.
    pub input: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Steps down and right between two windows.
    pub stride: [usize; 2],
    /// Zeros before and after, of rows and of columns.
    pub padding: [(usize, usize); 2],
    /// Steps between two taps of a kernel; 1 is dense.
    pub dilation: [usize; 2],
    /// In how many independent parts the channels are split.
    pub groups: usize,
}

impl Conv2dShape {
    /// A dense convolution: stride and dilation 1, no padding, one group.
    pub fn new(batch: usize, channels: [usize; 2], input: [usize; 2], kernel: [usize; 2]) -> Self {
        Self {
            batch,
            channels,
            input,
            kernel,
            stride: [1, 1],
            padding: [(0, 0), (0, 0)],
            dilation: [1, 1],
            groups: 1,
        }
    }

    /// Height and width of the output. An input that is smaller than the kernel has an output
    /// without rows or columns.
    ///
    /// # Errors
    /// Stride, dilation, kernel or groups that are zero, channels that the groups do not divide,
    /// and extents that do not fit the machine.
    pub fn output(&self) -> Result<[usize; 2], KernelError> {
        self.check()?;
        Ok([self.extent(0), self.extent(1)])
    }

    /// How many values the input has.
    ///
    /// # Errors
    /// As [`Conv2dShape::output`].
    pub fn input_len(&self) -> Result<usize, KernelError> {
        self.check()?;
        product(
            CONV,
            &[self.batch, self.channels[0], self.input[0], self.input[1]],
        )
    }

    /// How many values the weights have.
    ///
    /// # Errors
    /// As [`Conv2dShape::output`].
    pub fn weight_len(&self) -> Result<usize, KernelError> {
        self.check()?;
        let [c_in, c_out] = self.channels;
        product(
            CONV,
            &[c_out, c_in / self.groups, self.kernel[0], self.kernel[1]],
        )
    }

    /// How many values the output has.
    ///
    /// # Errors
    /// As [`Conv2dShape::output`].
    pub fn output_len(&self) -> Result<usize, KernelError> {
        let [height, width] = self.output()?;
        product(CONV, &[self.batch, self.channels[1], height, width])
    }

    fn check(&self) -> Result<(), KernelError> {
        let zero = |what| KernelError::Zero {
            operation: CONV,
            what,
        };
        let overflow = KernelError::Overflow { operation: CONV };
        for (what, pair) in [
            ("stride", self.stride),
            ("dilation", self.dilation),
            ("kernel", self.kernel),
        ] {
            if pair.contains(&0) {
                return Err(zero(what));
            }
        }
        if self.groups == 0 {
            return Err(zero("groups"));
        }
        for channels in self.channels {
            if !channels.is_multiple_of(self.groups) {
                return Err(KernelError::Groups {
                    operation: CONV,
                    channels,
                    groups: self.groups,
                });
            }
        }
        for axis in 0..2 {
            let (before, after) = self.padding[axis];
            let padded = self.input[axis]
                .checked_add(before)
                .and_then(|sum| sum.checked_add(after));
            let window = (self.kernel[axis] - 1).checked_mul(self.dilation[axis]);
            // What is looked up by 32-bit offsets must be counted by them.
            let fits = |extent: Option<usize>| extent.is_some_and(|extent| extent < 1 << 24);
            if !fits(padded) || !fits(window) || self.stride[axis] >= 1 << 24 {
                return Err(overflow);
            }
        }
        Ok(())
    }

    /// Height and width of the padded input.
    pub(crate) fn padded(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.input[axis] + self.padding[axis].0 + self.padding[axis].1)
    }

    fn extent(&self, axis: usize) -> usize {
        let window = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
        match self.padded()[axis].checked_sub(window) {
            Some(room) => room / self.stride[axis] + 1,
            None => 0,
        }
    }

    /// Input and output channels of one group.
    pub(crate) fn group_channels(&self) -> [usize; 2] {
        self.channels.map(|channels| channels / self.groups)
    }

    /// Taps of one kernel.
    pub(crate) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }
}
