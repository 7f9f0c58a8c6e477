//! `vit`: the vision transformer (Dosovitskiy et al. 2021, "An image is worth 16x16 words").
//!
//! A convolution turns each patch of an image into a vector. A vector of the class comes before them, and learned
//! positions are added. Layers of attention and a feed-forward net, each on normalised inputs beside a residual path,
//! work on all of them, and the head reads the vector of the class.

mod layer;

use burn::module::{Module, Param};
use burn::prelude::*;
use everburn_nn::conv::{Conv2d, Conv2dConfig};
use everburn_nn::{
    Blocks, Dropout, DropoutConfig, InBlocks, Initializer, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, TensorParallel, TensorRule, cast_for_matmul,
};

use crate::error::{ModelError, check_sizes};
use crate::gpt::Activation;
use crate::image_model::image_model_config;
use layer::Layer;

/// The most pixels of an image along a side, many times as many as any model has.
const MOST_PIXELS: usize = 1 << 14;

/// Configuration of [`ViT`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::vit::ViTConfig;
///
/// let device = Device::flex();
/// let config = ViTConfig::new().with_image_size(32).with_width(16).with_heads(2).with_layers(1);
/// let model = config.with_classes(3).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 3, 32, 32], &device)).dims(), [2, 3]);
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct ViTConfig {
    /// The height and width of an image, in pixels.
    #[config(default = 224)]
    pub image_size: usize,
    /// The height and width of a patch, in pixels.
    #[config(default = 16)]
    pub patch_size: usize,
    /// The channels of an image (`C`).
    #[config(default = 3)]
    pub channels: usize,
    /// The length of a patch's vector (`E`).
    #[config(default = 768)]
    pub width: usize,
    /// The number of layers.
    #[config(default = 12)]
    pub layers: usize,
    /// The number of heads of an attention.
    #[config(default = 12)]
    pub heads: usize,
    /// The width between the products of a feed-forward net.
    #[config(default = 3072)]
    pub feed_forward: usize,
    /// The number of classes (`K`).
    #[config(default = 1000)]
    pub classes: usize,
    /// The function between the two products of a feed-forward net.
    #[config(default = "Activation::Gelu")]
    pub activation: Activation,
    /// The number that norms add to the variance.
    #[config(default = 1e-12)]
    pub epsilon: f64,
    /// Whether queries, keys and values have biases.
    #[config(default = true)]
    pub biases: bool,
    /// The share of activations that dropout sets to zero while training.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// The same of the weights of attentions.
    #[config(default = 0.0)]
    pub attention_dropout: f64,
    /// The standard deviation of the initial weights.
    #[config(default = 0.02)]
    pub deviation: f64,
}

/// A vision transformer with the parameter names of Hugging Face's `ViTForImageClassification`, so that its weights load:
/// `vit.embeddings.cls_token`, `vit.encoder.layer.0.attention.attention.query`, `classifier`. Pipelines divide it into
/// `embeddings`, the layers, and `head`.
///
/// ```
/// # mod everburn { pub use everburn_models as models; pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::models::vit::ViTConfig;
/// use everburn::nn::InBlocks;
///
/// let device = Device::flex();
/// let config = ViTConfig::new().with_image_size(32).with_width(16).with_heads(2).with_layers(2);
/// let model = config.init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 3, 32, 32], &device)).dims(), [2, 1000]);
/// let names = ["embeddings", "vit.encoder.layer.0", "vit.encoder.layer.1", "head"];
/// assert_eq!(model.blocks().names(), names);
/// ```
#[derive(Module, Debug)]
pub struct ViT {
    vit: Trunk,
    classifier: Linear,
}

/// All but the head.
#[derive(Module, Debug)]
struct Trunk {
    embeddings: Embeddings,
    encoder: Encoder,
    layernorm: LayerNorm,
}

#[derive(Module, Debug)]
struct Encoder {
    layer: Vec<Layer>,
}

#[derive(Module, Debug)]
struct Embeddings {
    /// `[1, 1, E]`
    cls_token: Param<Tensor<3>>,
    /// `[1, 1 + patches, E]`
    position_embeddings: Param<Tensor<3>>,
    patch_embeddings: Patches,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Patches {
    projection: Conv2d,
}

impl ViTConfig {
    /// Checks that the model can be built.
    ///
    /// # Errors
    /// [`ModelError`] naming the first number that does not fit.
    pub fn check(&self) -> Result<(), ModelError> {
        let refuse = |message: String| Err(ModelError(message));
        check_sizes(
            self.layers,
            &[
                ("image size", self.image_size),
                ("patch size", self.patch_size),
                ("number of channels", self.channels),
                ("width", self.width),
                ("number of heads", self.heads),
                ("width of the feed-forward net", self.feed_forward),
                ("number of classes", self.classes),
            ],
        )?;
        if self.image_size > MOST_PIXELS {
            let (size, most) = (self.image_size, MOST_PIXELS);
            return refuse(format!("the image size is {size}, and at most {most}"));
        }
        if self.patch_size > self.image_size {
            return refuse(format!(
                "a patch of {0} x {0} pixels is larger than an image of {1} x {1}: image_size must be at least patch_size",
                self.patch_size, self.image_size
            ));
        }
        if !self.width.is_multiple_of(self.heads) {
            return refuse(format!(
                "{} heads cannot share a width of {}: it must be a multiple",
                self.heads, self.width
            ));
        }
        let is_share = |share: f64| (0.0..1.0).contains(&share);
        if !(is_share(self.dropout) && is_share(self.attention_dropout)) {
            return refuse("dropout must be at least 0 and below 1".to_string());
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return refuse("epsilon must be a number above 0".to_string());
        }
        if !(self.deviation.is_finite() && self.deviation >= 0.0) {
            return refuse("the deviation must be a number from 0 on".to_string());
        }
        Ok(())
    }

    /// Initialises the model on `device`: weights from a normal distribution with the deviation, biases of 0.
    ///
    /// # Panics
    /// Panics if [`check`](Self::check) refuses the configuration.
    pub fn init(&self, device: &Device) -> ViT {
        if let Err(error) = self.check() {
            panic!("{error}");
        }
        let layers = (0..self.layers).map(|_| Layer::new(self, device));
        ViT {
            vit: Trunk {
                embeddings: self.embeddings(device),
                encoder: Encoder {
                    layer: layers.collect(),
                },
                layernorm: self.norm(device),
            },
            classifier: self.linear(self.width, self.classes, true, device),
        }
    }

    /// The patches of an image.
    fn patches(&self) -> usize {
        (self.image_size / self.patch_size).pow(2)
    }

    fn embeddings(&self, device: &Device) -> Embeddings {
        let side = [self.patch_size, self.patch_size];
        let mut projection = Conv2dConfig::new([self.channels, self.width], side)
            .with_stride(side)
            .with_initializer(self.normal())
            .init(device);
        projection.bias = Some(Initializer::Zeros.init([self.width], device));
        Embeddings {
            cls_token: self.normal().init([1, 1, self.width], device),
            position_embeddings: self
                .normal()
                .init([1, 1 + self.patches(), self.width], device),
            patch_embeddings: Patches { projection },
            dropout: DropoutConfig::new(self.dropout).init(),
        }
    }

    fn normal(&self) -> Initializer {
        Initializer::Normal {
            mean: 0.0,
            std: self.deviation,
        }
    }

    fn norm(&self, device: &Device) -> LayerNorm {
        LayerNormConfig::new(self.width)
            .with_epsilon(self.epsilon)
            .init(device)
    }

    fn linear(&self, inputs: usize, outputs: usize, bias: bool, device: &Device) -> Linear {
        let mut linear = LinearConfig::new(inputs, outputs)
            .with_bias(false)
            .with_initializer(self.normal())
            .init(device);
        linear.bias = bias.then(|| Initializer::Zeros.init([outputs], device));
        linear
    }
}

impl ViT {
    /// Class scores of a batch of images.
    ///
    /// # Shapes
    /// - images: `[B, C, H, W]` with the configured channels and size
    /// - output: logits `[B, K]`
    ///
    /// # Panics
    /// Panics if the images have another size or number of channels.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.blocks().forward(self, images)
    }

    /// The vectors of the class and of the patches.
    ///
    /// # Shapes
    /// - images: `[B, C, H, W]`
    /// - output: `[B, 1 + patches, E]`
    fn embed(&self, images: Tensor<4>) -> Tensor<3> {
        let own = &self.vit.embeddings;
        let [batch, ..] = images.dims();
        let patches = own.patch_embeddings.projection.forward(images);
        let patches = patches.flatten::<3>(2, 3).swap_dims(1, 2); // [B, patches, E]
        let [_, count, width] = patches.dims();
        let positions = own.position_embeddings.val();
        assert_eq!(
            count + 1,
            positions.dims()[1],
            "the model has positions for images of another size"
        );
        let class = own.cls_token.val().expand([batch, 1, width]);
        let vectors = Tensor::cat(vec![class, patches], 1) + positions;
        own.dropout.forward(cast_for_matmul(vectors))
    }

    /// Class scores from the vector of the class.
    ///
    /// # Shapes
    /// - x: `[B, 1 + patches, E]`
    /// - output: `[B, K]`
    fn score(&self, x: Tensor<3>) -> Tensor<2> {
        // Norms work on each vector alone.
        let class = self.vit.layernorm.forward(x.slice_dim(1, 0..1));
        self.classifier.forward(class.squeeze_dim::<2>(1))
    }
}

image_model_config!(ViTConfig, ViT, "vit", {
    fn check(&self) -> Result<(), ModelError> {
        self.check()
    }

    fn channels(&self) -> Option<usize> {
        Some(self.channels)
    }

    fn image_size(&self) -> Option<usize> {
        Some(self.image_size)
    }

    fn dropout(&self) -> f64 {
        self.dropout.max(self.attention_dropout)
    }
});

/// Each rank has some heads of each attention, and a part of each feed-forward net's width (Shoeybi et al. 2019,
/// section 3). Embeddings and the head are whole on all ranks.
impl TensorParallel for ViT {
    fn tensor_rules(&self) -> Vec<TensorRule> {
        let head = self.vit.encoder.layer.first().map_or(1, Layer::head_width);
        let path = |name: &str| format!("vit.encoder.layer.*.{name}");
        let attention = ["query", "key", "value"].map(|name| {
            TensorRule::column(path(&format!("attention.attention.{name}"))).in_units_of(head)
        });
        let mut rules = attention.to_vec();
        rules.extend([
            TensorRule::row(path("attention.output.dense")).in_units_of(head),
            TensorRule::column(path("intermediate.dense")),
            TensorRule::row(path("output.dense")),
        ]);
        rules
    }
}

impl InBlocks for ViT {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<4>, Tensor<2>> {
        Blocks::first("embeddings", ["vit.embeddings"], Self::embed)
            .each(
                "vit.encoder.layer",
                self.vit.encoder.layer.len(),
                |model, i, x| model.vit.encoder.layer[i].forward(x),
            )
            .then("head", ["vit.layernorm", "classifier"], Self::score)
    }
}
