//! The window of a pooling, and Burn's own operations on it.

use burn::backend::ops::MaxPool2dWithIndices;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_or_init_device_settings};

/// A window that slides over the planes of an image, with as many rows of padding above as below
/// and as many columns left as right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: [usize; 2],
    /// Whether a last window that does not fit counts.
    pub(crate) ceil: bool,
}

impl Window {
    /// Kernel, stride, padding and dilation.
    fn pairs(self) -> [[usize; 2]; 4] {
        [self.kernel, self.stride, self.padding, self.dilation]
    }

    pub(crate) fn maximum_alone<B: Backend>(self, input: FloatTensor<B>) -> FloatTensor<B> {
        let [kernel, stride, padding, dilation] = self.pairs();
        B::max_pool2d(input, kernel, stride, padding, dilation, self.ceil)
    }

    pub(crate) fn maximum<B: Backend>(
        self,
        input: FloatTensor<B>,
    ) -> (FloatTensor<B>, IntTensor<B>) {
        let [kernel, stride, padding, dilation] = self.pairs();
        let dtype = get_or_init_device_settings::<B>(&input.device()).int_dtype;
        let MaxPool2dWithIndices { output, indices } =
            B::max_pool2d_with_indices(input, kernel, stride, padding, dilation, self.ceil, dtype);
        (output, indices)
    }

    pub(crate) fn maximum_gradient<B: Backend>(
        self,
        input: FloatTensor<B>,
        indices: IntTensor<B>,
        gradient: FloatTensor<B>,
    ) -> FloatTensor<B> {
        let [kernel, stride, padding, dilation] = self.pairs();
        let result = B::max_pool2d_with_indices_backward(
            input, kernel, stride, padding, dilation, self.ceil, gradient, indices,
        );
        result.x_grad
    }

    /// Of the taps in the padding too, if `padded`.
    pub(crate) fn mean<B: Backend>(self, input: FloatTensor<B>, padded: bool) -> FloatTensor<B> {
        let [kernel, stride, padding, _] = self.pairs();
        B::avg_pool2d(input, kernel, stride, padding, padded, self.ceil)
    }

    pub(crate) fn mean_gradient<B: Backend>(
        self,
        input: FloatTensor<B>,
        gradient: FloatTensor<B>,
        padded: bool,
    ) -> FloatTensor<B> {
        let [kernel, stride, padding, _] = self.pairs();
        B::avg_pool2d_backward(input, gradient, kernel, stride, padding, padded, self.ceil)
    }
}
