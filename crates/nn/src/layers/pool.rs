//! Pooling.

use burn::backend::Dispatch;
use burn::config::Config;
use burn::nn::PaddingConfig2d;
use burn::nn::pool as burns;
use burn::prelude::*;

use super::drop_in::drop_in;
use super::operations::LayerOps;
use super::padding::{assert_fits, padding_of};
use super::window::Window;

/// Configuration of [`MaxPool2d`]: the same as [`burn::nn::pool::MaxPool2dConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let pool = everburn::nn::pool::MaxPool2dConfig::new([2, 2]).with_strides([1, 1]).init();
/// assert_eq!(pool.stride, [1, 1]);
/// ```
#[derive(Config, Debug)]
pub struct MaxPool2dConfig {
    /// Height and width of a window.
    pub kernel_size: [usize; 2],
    /// Steps down and right between two windows.
    #[config(default = "kernel_size")]
    pub strides: [usize; 2],
    /// Rows and columns added around the image, none of which is a maximum.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Steps between two taps of a window.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// Whether a last window that does not fit counts.
    #[config(default = "false")]
    pub ceil_mode: bool,
}

impl MaxPool2dConfig {
    /// Initialises the module.
    pub fn init(&self) -> MaxPool2d {
        burns::MaxPool2dConfig::new(self.kernel_size)
            .with_strides(self.strides)
            .with_padding(self.padding.clone())
            .with_dilation(self.dilation)
            .with_ceil_mode(self.ceil_mode)
            .init()
            .into()
    }
}

/// Burn's [`burn::nn::pool::MaxPool2d`], with the kernels of `everburn-kernels` on CPUs: the same
/// results to the bit.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::pool::MaxPool2dConfig;
///
/// let pool = MaxPool2dConfig::new([2, 2]).init();
/// let device = Device::flex();
/// assert_eq!(pool.forward(Tensor::zeros([2, 3, 8, 6], &device)).dims(), [2, 3, 4, 3]);
/// ```
#[derive(Debug, Clone)]
pub struct MaxPool2d {
    pool: burns::MaxPool2d,
}

drop_in!(MaxPool2d, pool: burns::MaxPool2d);

impl MaxPool2d {
    /// The largest value of each window.
    ///
    /// # Shapes
    /// - input: `[B, C, H_in, W_in]`
    /// - output: `[B, C, H_out, W_out]`
    ///
    /// # Panics
    /// Panics if a window has more padding than Burn allows, or is larger than the input.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let Self { pool } = self;
        let window = Window {
            kernel: pool.kernel_size,
            stride: pool.stride,
            padding: [0, 0],
            dilation: pool.dilation,
            ceil: pool.ceil_mode,
        };
        let Some(window) = padded("max_pool2d", &input, &pool.padding, window) else {
            return pool.forward(input);
        };
        let input = input.into_dispatch();
        Tensor::from_dispatch(<Dispatch as LayerOps>::max_pool(input, window))
    }
}

/// Configuration of [`AvgPool2d`]: the same as [`burn::nn::pool::AvgPool2dConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let pool = everburn::nn::pool::AvgPool2dConfig::new([2, 2]).with_strides([1, 1]).init();
/// assert_eq!(pool.stride, [1, 1]);
/// ```
#[derive(Config, Debug)]
pub struct AvgPool2dConfig {
    /// Height and width of a window.
    pub kernel_size: [usize; 2],
    /// Steps down and right between two windows.
    #[config(default = "kernel_size")]
    pub strides: [usize; 2],
    /// Zeros around the image.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether those zeros count in a mean.
    #[config(default = "true")]
    pub count_include_pad: bool,
    /// Whether a last window that does not fit counts.
    #[config(default = "false")]
    pub ceil_mode: bool,
}

impl AvgPool2dConfig {
    /// Initialises the module.
    pub fn init(&self) -> AvgPool2d {
        burns::AvgPool2dConfig::new(self.kernel_size)
            .with_strides(self.strides)
            .with_padding(self.padding.clone())
            .with_count_include_pad(self.count_include_pad)
            .with_ceil_mode(self.ceil_mode)
            .init()
            .into()
    }
}

/// Burn's [`burn::nn::pool::AvgPool2d`], with the kernels of `everburn-kernels` on CPUs.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::pool::AvgPool2dConfig;
///
/// let pool = AvgPool2dConfig::new([3, 3]).with_strides([2, 2]).init();
/// let device = Device::flex();
/// assert_eq!(pool.forward(Tensor::zeros([2, 3, 9, 7], &device)).dims(), [2, 3, 4, 3]);
/// ```
#[derive(Debug, Clone)]
pub struct AvgPool2d {
    pool: burns::AvgPool2d,
}

drop_in!(AvgPool2d, pool: burns::AvgPool2d);

impl AvgPool2d {
    /// The mean of each window.
    ///
    /// # Shapes
    /// - input: `[B, C, H_in, W_in]`
    /// - output: `[B, C, H_out, W_out]`
    ///
    /// # Panics
    /// Panics if a window has more padding than Burn allows, or is larger than the input.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let Self { pool } = self;
        let window = Window {
            kernel: pool.kernel_size,
            stride: pool.stride,
            padding: [0, 0],
            dilation: [1, 1],
            ceil: pool.ceil_mode,
        };
        let Some(window) = padded("avg_pool2d", &input, &pool.padding, window) else {
            return pool.forward(input);
        };
        Tensor::from_dispatch(<Dispatch as LayerOps>::avg_pool(
            input.into_dispatch(),
            window,
            pool.count_include_pad,
        ))
    }
}

/// Configuration of [`AdaptiveAvgPool2d`]: the same as
/// [`burn::nn::pool::AdaptiveAvgPool2dConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let pool = everburn::nn::pool::AdaptiveAvgPool2dConfig::new([1, 1]).init();
/// assert_eq!(pool.output_size, [1, 1]);
/// ```
#[derive(Config, Debug)]
pub struct AdaptiveAvgPool2dConfig {
    /// Height and width of the output.
    pub output_size: [usize; 2],
}

impl AdaptiveAvgPool2dConfig {
    /// Initialises the module.
    pub fn init(&self) -> AdaptiveAvgPool2d {
        burns::AdaptiveAvgPool2dConfig::new(self.output_size)
            .init()
            .into()
    }
}

/// Burn's [`burn::nn::pool::AdaptiveAvgPool2d`], with the kernels of `everburn-kernels` on CPUs.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::pool::AdaptiveAvgPool2dConfig;
///
/// let pool = AdaptiveAvgPool2dConfig::new([1, 1]).init();
/// let device = Device::flex();
/// assert_eq!(pool.forward(Tensor::zeros([2, 3, 7, 7], &device)).dims(), [2, 3, 1, 1]);
/// ```
#[derive(Debug, Clone)]
pub struct AdaptiveAvgPool2d {
    pool: burns::AdaptiveAvgPool2d,
}

drop_in!(AdaptiveAvgPool2d, pool: burns::AdaptiveAvgPool2d);

impl AdaptiveAvgPool2d {
    /// The means of windows that share each plane evenly.
    ///
    /// # Shapes
    /// - input: `[B, C, H_in, W_in]`
    /// - output: `[B, C, H_out, W_out]`
    ///
    /// # Panics
    /// Panics if the input has no pixels, which have no mean.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let [_, _, height, width] = input.dims();
        assert!(
            height > 0 && width > 0,
            "adaptive_avg_pool2d: an input of {height}x{width} has no pixels: take larger images, or fewer layers before it"
        );
        Tensor::from_dispatch(<Dispatch as LayerOps>::adaptive_avg_pool2d(
            input.into_dispatch(),
            self.pool.output_size,
        ))
    }
}

/// The `window` of `layer` with its padding on `input`, where either side has the same; Burn copies the image for others.
///
/// # Panics
/// Panics if the window is larger than the padded image.
fn padded(
    layer: &str,
    input: &Tensor<4>,
    padding: &PaddingConfig2d,
    window: Window,
) -> Option<Window> {
    let Window {
        kernel,
        stride,
        dilation,
        ceil,
        ..
    } = window;
    let padding = padding_of(input, padding, kernel, stride);
    // A last window that does not fit counts with `ceil`.
    let beyond = stride.map(|step| if ceil { step.saturating_sub(1) } else { 0 });
    assert_fits(layer, input, kernel, padding, dilation, beyond);
    let [(top, bottom), (left, right)] = padding;
    (top == bottom && left == right).then_some(Window {
        padding: [top, left],
        ..window
    })
}
