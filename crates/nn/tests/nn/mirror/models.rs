//! Models as a user of Burn writes them. `nn` and `tensor` are Burn's in one place and this crate's in another; nothing
//! else differs.

use burn::module::Module;
use burn::prelude::{Bool, Config, Device, Int};

use super::{nn, tensor};

use nn::attention::generate_padding_mask;
use nn::conv::{Conv2d, Conv2dConfig};
use nn::loss::CrossEntropyLossConfig;
use nn::pool::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
    MaxPool2dConfig,
};
use nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear,
    LinearConfig, Lstm, LstmConfig, PaddingConfig2d, Relu,
};
use tensor::Tensor;
use tensor::activation::{gelu, relu};

use crate::mirror::{Trains, images, labels, words};

/// The net of the Burn book's guide.
#[derive(Module, Debug)]
pub struct Guide {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    dropout: Dropout,
    linear1: Linear,
    linear2: Linear,
    activation: Relu,
}

#[derive(Config, Debug)]
pub struct GuideConfig {
    num_classes: usize,
    hidden_size: usize,
    #[config(default = "0.5")]
    dropout: f64,
}

impl GuideConfig {
    pub fn init(&self, device: &Device) -> Guide {
        Guide {
            conv1: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            conv2: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
            activation: Relu::new(),
            linear1: LinearConfig::new(16 * 8 * 8, self.hidden_size).init(device),
            linear2: LinearConfig::new(self.hidden_size, self.num_classes).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
        }
    }
}

impl Guide {
    pub fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let [batch_size, height, width] = images.dims();
        let x = images.reshape([batch_size, 1, height, width]);
        let x = self.conv1.forward(x);
        let x = self.dropout.forward(x);
        let x = self.conv2.forward(x);
        let x = self.dropout.forward(x);
        let x = self.activation.forward(x);
        let x = self.pool.forward(x);
        let x = x.reshape([batch_size, 16 * 8 * 8]);
        let x = self.linear1.forward(x);
        let x = self.dropout.forward(x);
        let x = self.activation.forward(x);
        self.linear2.forward(x)
    }
}

impl Trains for Guide {
    fn new(device: &Device) -> Self {
        GuideConfig::new(10, 32).with_dropout(0.0).init(device)
    }

    fn loss(&self, device: &Device) -> Tensor<1> {
        let output = self.forward(images::<4>([6, 1, 28, 28], device).squeeze_dim(1));
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        loss.forward(output, labels(6, 10, device))
    }
}

/// The text classifier of Burn's examples.
#[derive(Module, Debug)]
pub struct TextClassifier {
    transformer: TransformerEncoder,
    embedding_token: Embedding,
    embedding_pos: Embedding,
    output: Linear,
    n_classes: usize,
    seq_length: usize,
}

#[derive(Config, Debug)]
pub struct TextClassifierConfig {
    transformer: TransformerEncoderConfig,
    n_classes: usize,
    vocab_size: usize,
    seq_length: usize,
}

impl TextClassifierConfig {
    pub fn init(&self, device: &Device) -> TextClassifier {
        let d_model = self.transformer.d_model;
        TextClassifier {
            transformer: self.transformer.init(device),
            embedding_token: EmbeddingConfig::new(self.vocab_size, d_model).init(device),
            embedding_pos: EmbeddingConfig::new(self.seq_length, d_model).init(device),
            output: LinearConfig::new(d_model, self.n_classes).init(device),
            n_classes: self.n_classes,
            seq_length: self.seq_length,
        }
    }
}

impl TextClassifier {
    pub fn forward(&self, tokens: Tensor<2, Int>, mask_pad: Tensor<2, Bool>) -> Tensor<2> {
        let [batch_size, seq_length] = tokens.dims();
        let positions = Tensor::arange(0..seq_length as i64, &tokens.device());
        let positions = positions.reshape([1, seq_length]).repeat_dim(0, batch_size);
        let embedding_positions = self.embedding_pos.forward(positions);
        let embedding_tokens = self.embedding_token.forward(tokens);
        let embedding = (embedding_positions + embedding_tokens) / 2;
        let encoded = self
            .transformer
            .forward(TransformerEncoderInput::new(embedding).mask_pad(mask_pad));
        let output = self.output.forward(encoded);
        output
            .slice([0..batch_size, 0..1])
            .reshape([batch_size, self.n_classes])
    }
}

impl Trains for TextClassifier {
    fn new(device: &Device) -> Self {
        let transformer = TransformerEncoderConfig::new(16, 32, 4, 2)
            .with_dropout(0.0)
            .with_norm_first(true);
        TextClassifierConfig::new(transformer, 4, 50, 12).init(device)
    }

    fn loss(&self, device: &Device) -> Tensor<1> {
        let mask = generate_padding_mask(0, words(), Some(12), device);
        let output = self.forward(mask.tensor, mask.mask);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        loss.forward(output, labels(3, 4, device))
    }
}

/// A block of two convolutions beside a shortcut, with batch norms.
#[derive(Module, Debug)]
pub struct ResidualBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    downsample: Option<(Conv2d, BatchNorm)>,
    relu: Relu,
}

impl ResidualBlock {
    fn new(channels: [usize; 2], stride: usize, device: &Device) -> Self {
        let [_, outputs] = channels;
        let conv = |channels, kernel: usize, stride| {
            let half = kernel / 2;
            Conv2dConfig::new(channels, [kernel, kernel])
                .with_stride([stride, stride])
                .with_padding(PaddingConfig2d::Explicit(half, half, half, half))
                .with_bias(false)
                .init(device)
        };
        let bn = || {
            BatchNormConfig::new(outputs)
                .with_momentum(0.05)
                .init(device)
        };
        Self {
            conv1: conv(channels, 3, stride),
            bn1: bn(),
            conv2: conv([outputs, outputs], 3, 1),
            bn2: bn(),
            downsample: (stride != 1).then(|| (conv(channels, 1, stride), bn())),
            relu: Relu::new(),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let identity = input.clone();
        let out = self
            .relu
            .forward(self.bn1.forward(self.conv1.forward(input)));
        let out = self.bn2.forward(self.conv2.forward(out));
        let shortcut = match &self.downsample {
            Some((conv, bn)) => bn.forward(conv.forward(identity)),
            None => identity,
        };
        self.relu.forward(out + shortcut)
    }
}

/// A small residual net.
#[derive(Module, Debug)]
pub struct ResNet {
    stem: Conv2d,
    pool: MaxPool2d,
    blocks: Vec<ResidualBlock>,
    norm: nn::norm::Normalization,
    grouped: Conv2d,
    smooth: AvgPool2d,
    mean: AdaptiveAvgPool2d,
    head: Linear,
}

impl Trains for ResNet {
    fn new(device: &Device) -> Self {
        Self {
            stem: Conv2dConfig::new([3, 6], [5, 5])
                .with_padding(PaddingConfig2d::Same)
                .init(device),
            pool: MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(),
            blocks: vec![
                ResidualBlock::new([6, 6], 1, device),
                ResidualBlock::new([6, 8], 2, device),
            ],
            norm: nn::norm::NormalizationConfig::from(BatchNormConfig::new(0))
                .with_num_features(8)
                .init(device),
            grouped: Conv2dConfig::new([8, 8], [2, 2])
                .with_groups(4)
                .with_padding(PaddingConfig2d::Same)
                .init(device),
            smooth: AvgPool2dConfig::new([2, 2]).with_strides([1, 1]).init(),
            mean: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            head: LinearConfig::new(8, 5).init(device),
        }
    }

    fn loss(&self, device: &Device) -> Tensor<1> {
        let mut x = self
            .pool
            .forward(self.stem.forward(images([8, 3, 16, 16], device)));
        for block in &self.blocks {
            x = block.forward(x);
        }
        let x = self.grouped.forward(relu(self.norm.forward(x)));
        let x = self.mean.forward(self.smooth.forward(x));
        let output = self.head.forward(x.flatten::<2>(1, 3));
        nn::loss::CrossEntropyLoss::new(None, device).forward(output, labels(8, 5, device))
    }
}

/// A recurrent net with norms between, and a loss of numbers.
#[derive(Module, Debug)]
pub struct Recurrent {
    embedding: Embedding,
    norm: nn::LayerNorm,
    lstm: Lstm,
    gelu: nn::Gelu,
    activation: nn::activation::Activation,
    head: Linear,
}

impl Trains for Recurrent {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(50, 10).init(device),
            norm: nn::LayerNormConfig::new(10).init(device),
            lstm: LstmConfig::new(10, 7, true).init(device),
            gelu: nn::Gelu::new(),
            activation: Relu::new().into(),
            head: LinearConfig::new(7, 1).init(device),
        }
    }

    fn loss(&self, device: &Device) -> Tensor<1> {
        let words = generate_padding_mask(0, words(), Some(12), device).tensor;
        let embedded = self.norm.forward(self.embedding.forward(words));
        let (hidden, _) = self.lstm.forward(self.gelu.forward(embedded), None);
        let output = self.head.forward(gelu(self.activation.forward(hidden)));
        let target = output.zeros_like() + 0.5;
        nn::loss::MseLoss::new().forward(output, target, nn::loss::Reduction::Mean)
    }
}
