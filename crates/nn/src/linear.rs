//! The linear layer, which other parts of this crate can take apart.

use std::fmt;
use std::ops::{Deref, DerefMut};

use burn::config::Config;
use burn::module::{
    Content, Devices, DisplaySettings, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper,
    ModuleVisitor, Param,
};
use burn::nn::{self, Initializer, LinearLayout};
use burn::prelude::*;
use burn::tensor::{DType, assert_shape};

use crate::precision::CastMatmul;
use crate::split_backward;
use crate::tensor_parallel::{self, Membership, TensorShard};

/// Configuration of [`Linear`]: the same as [`burn::nn::LinearConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let config = everburn::nn::LinearConfig::new(3, 2).with_bias(false);
/// let linear = config.init(&burn::prelude::Device::flex());
/// assert_eq!(linear.weight.dims(), [3, 2]);
/// ```
#[derive(Config, Debug)]
pub struct LinearConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
    /// How the parameters are drawn.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// The layout in which the parameters are stored.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl LinearConfig {
    /// Initialises the module on `device`.
    pub fn init(&self, device: &Device) -> Linear {
        nn::LinearConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout)
            .init(device)
            .into()
    }
}

/// Burn's [`burn::nn::Linear`], which can also compute in parts: its backward pass in two halves
/// ([`crate::split_backward`]), or each rank a part of its features ([`crate::tensor_parallel`]).
///
/// It wraps Burn's module and shows its fields `weight` and `bias`. Parameters, their paths, records
/// and the settings that `freeze` and its like change are Burn's, so a checkpoint loads either way.
/// On CPUs its product is computed by `everburn-kernels`: Burn's but for rounding, and the same bits
/// for any number of threads.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::{Linear, LinearConfig};
///
/// let device = Device::flex();
/// let linear = LinearConfig::new(3, 2).with_bias(false).init(&device);
/// assert_eq!(linear.forward(Tensor::<3>::ones([5, 4, 3], &device)).dims(), [5, 4, 2]);
/// assert_eq!(linear.weight.dims(), [3, 2]);
///
/// let burns_own: burn::nn::Linear = linear.into();
/// let _ours = Linear::from(burns_own);
/// ```
#[derive(Debug, Clone)]
pub struct Linear {
    linear: nn::Linear,
    /// Which part of a layer this is, if it is one.
    part: Option<Membership>,
}

impl Linear {
    /// `input * weight + bias`.
    ///
    /// # Shapes
    /// - input: `[.., d_input]`
    /// - output: `[.., d_output]`
    ///
    /// A [row shard](TensorShard::Row) takes `d_input / T` features, a column shard yields
    /// `d_output / T`.
    ///
    /// # Panics
    /// Panics if the last dimension of the input is not that of the weight.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match &self.part {
            Some(part) if part.shard == TensorShard::Row => {
                let own = linear(input, self.linear.weight.val(), None);
                let sum = part.reduce_from_ranks(own);
                match &self.linear.bias {
                    Some(bias) => sum + bias.val().unsqueeze(),
                    None => sum,
                }
            }
            Some(part) => self.forward_alone(part.copy_to_ranks(input)),
            None => self.forward_alone(input),
        }
    }

    /// What each of `layers` makes of one input, as the queries, keys and values of an attention.
    ///
    /// The same as `forward` of each, but where all are [column shards](TensorShard::Column) the
    /// gradients of the input cross the ranks together, once.
    ///
    /// # Panics
    /// As [`Linear::forward`].
    pub fn forward_each<const N: usize, const D: usize>(
        layers: [&Self; N],
        input: Tensor<D>,
    ) -> [Tensor<D>; N] {
        match layers.first().and_then(|layer| layer.column_part()) {
            Some(first) if layers.iter().all(|layer| layer.column_part().is_some()) => {
                let input = first.copy_to_ranks(input);
                layers.map(|layer| layer.forward_alone(input.clone()))
            }
            _ => layers.map(|layer| layer.forward(input.clone())),
        }
    }

    fn column_part(&self) -> Option<&Membership> {
        let part = self.part.as_ref();
        part.filter(|part| part.shard == TensorShard::Column)
    }

    /// How many ranks hold a part of this layer.
    pub fn world_size(&self) -> usize {
        self.part.as_ref().map_or(1, Membership::world_size)
    }

    fn forward_alone<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let bias = self.linear.bias.as_ref().map(Param::val);
        linear(input, self.linear.weight.val(), bias)
    }
}

/// `input * weight + bias`, as [`Linear`] computes it ([`burn::tensor::module::linear`] but for rounding, with the
/// kernels of `everburn-kernels` on CPUs): for weights that are not a layer's own, as
/// the head of a language model that is tied to its embedding.
///
/// # Shapes
/// - input: `[.., d_input]`
/// - weight: `[d_input, d_output]`
/// - bias: `[d_output]`
/// - output: `[.., d_output]`
///
/// # Panics
/// Panics if the last dimension of the input is not the first of the weight.
pub fn linear<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let [d_input, _] = weight.dims();
    assert_shape!(input, [.., d_input]);
    if matches!(weight.dtype(), DType::QFloat(_)) {
        return split_backward::linear(input, weight, bias);
    }
    let cast = CastMatmul::of(&input);
    let (input, weight) = (cast.operand(input), cast.operand(weight));
    let bias = bias.map(|bias| cast.operand(bias));
    cast.result(split_backward::linear(input, weight, bias))
}

impl From<nn::Linear> for Linear {
    fn from(linear: nn::Linear) -> Self {
        Self { linear, part: None }
    }
}

impl From<Linear> for nn::Linear {
    fn from(linear: Linear) -> Self {
        linear.linear
    }
}

impl Deref for Linear {
    type Target = nn::Linear;

    fn deref(&self) -> &nn::Linear {
        &self.linear
    }
}

impl DerefMut for Linear {
    fn deref_mut(&mut self) -> &mut nn::Linear {
        &mut self.linear
    }
}

/// Written by hand so that visitors meet Burn's module in this one's place: the same paths, and the
/// same container type, by which `burn-store` translates names.
impl Module for Linear {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.linear.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.with(|linear| linear.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.with(|linear| linear.to_device(device))
    }

    fn train(self) -> Self {
        self.with(Module::train)
    }

    fn valid(&self) -> Self {
        Self {
            linear: self.linear.valid(),
            part: self.part.clone(),
        }
    }

    fn materialize(self) -> Self {
        self.with(Module::materialize)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        tensor_parallel::visited(&self.linear, self.part.as_ref());
        self.linear.visit(visitor);
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        let (linear, part) = tensor_parallel::mapped(self.linear, self.part);
        let linear = linear.map(mapper);
        Self { linear, part }
    }
}

impl Linear {
    fn with(self, change: impl FnOnce(nn::Linear) -> nn::Linear) -> Self {
        Self {
            linear: change(self.linear),
            part: self.part,
        }
    }

    fn described(&self, content: Content) -> Content {
        match self.world_size() {
            1 => content,
            ranks => content.add("ranks", &ranks),
        }
    }
}

impl ModuleDisplayDefault for Linear {
    fn content(&self, content: Content) -> Option<Content> {
        Some(self.described(self.linear.content(content)?))
    }

    fn num_params(&self) -> usize {
        Module::num_params(&self.linear)
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        self.linear.custom_settings()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        Some(self.described(self.linear.custom_content(content)?))
    }
}

impl fmt::Display for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format(DisplaySettings::default()))
    }
}
