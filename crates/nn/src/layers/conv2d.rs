//! The two-dimensional convolution.

use burn::backend::Dispatch;
use burn::config::Config;
use burn::module::Param;
use burn::nn::conv as burns;
use burn::nn::{Initializer, PaddingConfig2d};
use burn::prelude::*;
use burn::tensor::assert_shape;
use burn::tensor::ops::ConvOptions;

use super::drop_in::drop_in;
use super::operations::LayerOps;
use super::padding::{assert_fits, padding_of};
use crate::precision::CastMatmul;

/// Configuration of [`Conv2d`]: the same as [`burn::nn::conv::Conv2dConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let config = everburn::nn::conv::Conv2dConfig::new([1, 4], [3, 3]).with_stride([2, 2]);
/// let conv = config.init(&burn::prelude::Device::flex());
/// assert_eq!(conv.weight.dims(), [4, 1, 3, 3]);
/// ```
#[derive(Config, Debug)]
pub struct Conv2dConfig {
    /// Input and output channels.
    pub channels: [usize; 2],
    /// Height and width of the kernel.
    pub kernel_size: [usize; 2],
    /// Steps down and right between two windows.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// Steps between two taps of a kernel; 1 is dense.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// In how many independent parts the channels are split.
    #[config(default = "1")]
    pub groups: usize,
    /// Zeros around the image.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
    /// How the parameters are drawn.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0),fan_out_only:false}")]
    pub initializer: Initializer,
}

impl Conv2dConfig {
    /// Initialises the module on `device`.
    ///
    /// # Panics
    /// Panics if the groups do not divide the channels.
    pub fn init(&self, device: &Device) -> Conv2d {
        burns::Conv2dConfig::new(self.channels, self.kernel_size)
            .with_stride(self.stride)
            .with_dilation(self.dilation)
            .with_groups(self.groups)
            .with_padding(self.padding.clone())
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .init(device)
            .into()
    }
}

/// Burn's [`burn::nn::conv::Conv2d`], with the kernels of `everburn-kernels` on CPUs.
///
/// It wraps Burn's module and shows its fields. Parameters, their paths and records are Burn's, so a
/// checkpoint loads either way. On flex its results are those of Burn's module but for rounding, the
/// same bits for any number of threads; on other back ends it *is* Burn's module.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::conv::{Conv2d, Conv2dConfig};
///
/// let device = Device::flex();
/// let conv = Conv2dConfig::new([3, 8], [5, 5]).init(&device);
/// assert_eq!(conv.forward(Tensor::zeros([2, 3, 28, 28], &device)).dims(), [2, 8, 24, 24]);
///
/// let burns_own: burn::nn::conv::Conv2d = conv.into();
/// let _ours = Conv2d::from(burns_own);
/// ```
#[derive(Debug, Clone)]
pub struct Conv2d {
    conv: burns::Conv2d,
}

drop_in!(Conv2d, conv: burns::Conv2d);

impl Conv2d {
    /// Convolves images.
    ///
    /// # Shapes
    /// - input: `[B, C_in, H_in, W_in]`
    /// - output: `[B, C_out, H_out, W_out]`
    ///
    /// # Panics
    /// Panics if the input has another number of channels than the configuration, or is smaller than the kernel.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let Self { conv } = self;
        let padding = padding_of(&input, &conv.padding, conv.kernel_size, conv.stride);
        let options =
            ConvOptions::new_with_padding(conv.stride, padding, conv.dilation, conv.groups);
        let bias = conv.bias.as_ref().map(Param::val);
        conv2d(input, conv.weight.val(), bias, options)
    }
}

/// Convolves `input` with `weight`, as [`Conv2d`] does: [`burn::tensor::module::conv2d`] but for rounding, with the
/// kernels of `everburn-kernels` on CPUs.
///
/// # Shapes
/// - input: `[B, C_in, H_in, W_in]`
/// - weight: `[C_out, C_in / groups, K_h, K_w]`
/// - bias: `[C_out]`
/// - output: `[B, C_out, H_out, W_out]`
///
/// # Panics
/// Panics if the shapes do not fit together, or the kernel is larger than the input and its padding.
pub fn conv2d(
    input: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<Tensor<1>>,
    options: impl Into<ConvOptions<2>>,
) -> Tensor<4> {
    let options = options.into();
    let [features, in_group, rows, columns] = weight.dims();
    let channels = in_group * options.groups;
    assert_shape!(input, [_, channels, _, _]);
    assert!(
        features % options.groups == 0,
        "{} groups do not divide {features} channels",
        options.groups
    );
    let (padding, dilation) = (options.padding, options.dilation);
    assert_fits("conv2d", &input, [rows, columns], padding, dilation, [0, 0]);
    let bias = bias.inspect(|bias| {
        assert_shape!(bias, [features]);
    });
    let cast = CastMatmul::of(&input);
    let bias = bias.map(|bias| cast.operand(bias).into_dispatch());
    let [input, weight] = [input, weight].map(|operand| cast.operand(operand).into_dispatch());
    let output = match bias {
        Some(bias) => <Dispatch as LayerOps>::convolve_with_bias(input, weight, bias, options),
        None => <Dispatch as LayerOps>::convolve(input, weight, options),
    };
    cast.result(Tensor::from_dispatch(output))
}
