//! The layers of the networks: those of `models/`, with the sizes that their configurations say.

use everburn_models::gpt::GptConfig;
use everburn_models::mnist::MnistConfig;
use everburn_models::mnist_bn::MnistBnConfig;
use everburn_models::resnet50::{EXPANSION, ResNet50Config};
use serde::Serialize;
use serde_json::json;

use super::layer::{Layer, Pass};

/// A network whose layers are measured.
#[derive(Debug)]
pub(crate) struct Network {
    pub(super) name: &'static str,
    /// Where none are asked for; none if its layers do not depend on it.
    pub(super) batches: &'static [usize],
    layers: fn(&mut Layers),
}

pub(super) const NETWORKS: [Network; 5] = [
    network("mnist", &[64], mnist),
    network("mnist-bn", &[64], mnist_bn),
    network("resnet50", &[8, 64], resnet50),
    network("gpt-nano", &[8, 64], gpt_nano),
    network("matmul", &[], matmul),
];

const fn network(
    name: &'static str,
    batches: &'static [usize],
    layers: fn(&mut Layers),
) -> Network {
    Network {
        name,
        batches,
        layers,
    }
}

/// A layer of a network.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Used {
    pub(super) layer: Layer,
    /// How often the network has it; 0 for what is a part of another layer of the list.
    pub(super) count: usize,
    /// Whether something that is trained comes before it.
    #[serde(skip)]
    has_trained_input: bool,
}

impl Used {
    /// What a network does with it, in training and in evaluation.
    pub(super) fn passes(&self) -> Vec<Pass> {
        let backward = match self.has_trained_input {
            true => Pass::Backward,
            false => Pass::WeightGradient,
        };
        match self.layer {
            // In evaluation it does nothing.
            Layer::Dropout { .. } => vec![backward],
            _ => vec![Pass::Forward, backward],
        }
    }
}

impl Network {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        NETWORKS.iter().find(|network| network.name == name)
    }

    /// Each distinct layer once, in the order of the network.
    pub(super) fn layers(&self) -> Vec<Used> {
        let mut layers = Layers(Vec::new());
        (self.layers)(&mut layers);
        layers.0
    }

    /// The layers as JSON: peers make their nets of it.
    pub(crate) fn description(&self) -> String {
        json!(self.layers()).to_string()
    }

    /// How many numbers are trained; of a text model, with this vocabulary.
    pub(crate) fn parameters(&self, vocabulary: usize) -> usize {
        let of = |used: &Used| used.count * parameters(&used.layer, vocabulary);
        self.layers().iter().map(of).sum()
    }
}

fn parameters(layer: &Layer, vocabulary: usize) -> usize {
    match layer {
        Layer::Conv2d {
            channels: [inputs, outputs],
            kernel,
            bias,
            ..
        } => outputs * (inputs * kernel * kernel + usize::from(*bias)),
        Layer::BatchNorm {
            channels, scales, ..
        } => channels * (1 + usize::from(*scales)),
        Layer::LayerNorm { width, .. } => 2 * width,
        Layer::Linear {
            features: [inputs, outputs],
            ..
        } => outputs * (inputs + 1),
        Layer::Embedding { width, .. } => width * vocabulary,
        _ => 0,
    }
}

/// The layers of a network, in the making.
struct Layers(Vec<Used>);

impl Layers {
    fn add(&mut self, layer: Layer) {
        self.add_times(1, layer);
    }

    fn add_times(&mut self, count: usize, layer: Layer) {
        self.insert(layer, count, true);
    }

    /// A layer that sees the data.
    fn add_first(&mut self, layer: Layer) {
        self.insert(layer, 1, false);
    }

    /// A part of a layer that is added too.
    fn add_part(&mut self, layer: Layer) {
        self.insert(layer, 0, true);
    }

    fn insert(&mut self, layer: Layer, count: usize, has_trained_input: bool) {
        let known = self
            .0
            .iter_mut()
            .find(|used| used.layer == layer && used.has_trained_input == has_trained_input);
        match known {
            Some(used) => used.count += count,
            None => self.0.push(Used {
                layer,
                count,
                has_trained_input,
            }),
        }
    }
}

fn relu(shape: &[usize]) -> Layer {
    Layer::Relu {
        shape: shape.to_vec(),
    }
}

/// A convolution without a bias.
fn conv(channels: [usize; 2], kernel: usize, stride: usize, padding: usize, side: usize) -> Layer {
    Layer::Conv2d {
        channels,
        kernel,
        stride,
        padding,
        side,
        bias: false,
    }
}

fn classes(classes: usize) -> Layer {
    Layer::CrossEntropy { classes, tokens: 1 }
}

fn linear(features: [usize; 2]) -> Layer {
    Layer::Linear {
        features,
        tokens: None,
    }
}

/// `models/src/mnist.rs`.
fn mnist(layers: &mut Layers) {
    let conv = |channels, side| Layer::Conv2d {
        channels,
        kernel: 5,
        stride: 1,
        padding: 0,
        side,
        bias: true,
    };
    let pool = |channels, side| Layer::MaxPool2d {
        channels,
        kernel: 2,
        stride: 2,
        padding: 0,
        side,
    };
    layers.add_first(conv([1, 10], 28));
    layers.add(pool(10, 24));
    layers.add(relu(&[10, 12, 12]));
    layers.add(conv([10, 20], 12));
    layers.add(pool(20, 8));
    layers.add(relu(&[20, 4, 4]));
    layers.add(linear([320, 50]));
    layers.add(relu(&[50]));
    let config = MnistConfig::new();
    layers.add(linear([50, config.classes]));
    layers.add(classes(config.classes));
}

/// `models/src/mnist_bn.rs`.
fn mnist_bn(layers: &mut Layers) {
    let config = MnistBnConfig::new();
    let after = |layers: &mut Layers, channels, side| {
        layers.add(Layer::BatchNorm {
            channels,
            side,
            epsilon: 1e-3,
            scales: false,
        });
        layers.add(relu(&[channels, side, side]));
    };
    layers.add_first(conv([1, 12], 3, 1, 1, 28));
    after(layers, 12, 28);
    layers.add(conv([12, 24], 6, 2, 2, 28));
    after(layers, 24, 14);
    layers.add(conv([24, 32], 6, 2, 2, 14));
    after(layers, 32, 7);
    layers.add(Layer::MeanOverPixels {
        channels: 32,
        side: 7,
    });
    layers.add(linear([32, 256]));
    layers.add(relu(&[256]));
    layers.add(Layer::Dropout {
        shape: vec![256],
        share: config.dropout,
    });
    layers.add(linear([256, config.classes]));
    layers.add(classes(config.classes));
}

/// `models/src/resnet50.rs` with its stem for 224 x 224 pixels: torchvision's "v1.5".
fn resnet50(layers: &mut Layers) {
    let config = ResNet50Config::new();
    let first = config.width;
    let conv = |channels, kernel, stride, side| conv(channels, kernel, stride, kernel / 2, side);
    let norm = |channels, side| Layer::BatchNorm {
        channels,
        side,
        epsilon: 1e-5,
        scales: true,
    };
    layers.add_first(conv([3, first], 7, 2, 224));
    layers.add(norm(first, 112));
    layers.add(relu(&[first, 112, 112]));
    layers.add(Layer::MaxPool2d {
        channels: first,
        kernel: 3,
        stride: 2,
        padding: 1,
        side: 112,
    });
    let (mut inputs, mut side) = (first, 56);
    for (stage, blocks) in config.blocks.into_iter().enumerate() {
        let width = first << stage;
        let outputs = EXPANSION * width;
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            let after = side / stride;
            layers.add(conv([inputs, width], 1, 1, side));
            layers.add(norm(width, side));
            layers.add(relu(&[width, side, side]));
            layers.add(conv([width, width], 3, stride, side));
            layers.add(norm(width, after));
            layers.add(relu(&[width, after, after]));
            layers.add(conv([width, outputs], 1, 1, after));
            layers.add(norm(outputs, after));
            if block == 0 {
                layers.add(conv([inputs, outputs], 1, stride, side));
                layers.add(norm(outputs, after));
            }
            layers.add(Layer::Add {
                shape: vec![outputs, after, after],
            });
            layers.add(relu(&[outputs, after, after]));
            (inputs, side) = (outputs, after);
        }
    }
    layers.add(Layer::MeanOverPixels {
        channels: inputs,
        side,
    });
    layers.add(linear([inputs, config.classes]));
    layers.add(classes(config.classes));
}

/// `models/src/gpt.rs` with the numbers of `gpt-nano` and the characters of tinyshakespeare.
fn gpt_nano(layers: &mut Layers) {
    let config = GptConfig::nano(65);
    let (vocabulary, tokens, width) = (config.vocabulary, config.context, config.width);
    let heads = config.heads;
    let head = width / heads;
    let linear = |inputs, outputs| Layer::Linear {
        features: [inputs, outputs],
        tokens: Some(tokens),
    };
    layers.add_first(Layer::Embedding {
        tokens,
        width,
        vocabulary,
    });
    for _ in 0..config.layers {
        layers.add(Layer::LayerNorm { tokens, width });
        // Queries, keys, values and what they become.
        layers.add_times(4, linear(width, width));
        layers.add_times(
            2,
            Layer::Rotary {
                heads,
                tokens,
                width: head,
            },
        );
        layers.add(Layer::Attention {
            heads,
            tokens,
            width: head,
        });
        layers.add_part(Layer::Matmul {
            heads: Some(heads),
            rows: tokens,
            inner: head,
            columns: tokens,
        });
        layers.add_part(Layer::Softmax { heads, tokens });
        layers.add_part(Layer::Matmul {
            heads: Some(heads),
            rows: tokens,
            inner: tokens,
            columns: head,
        });
        layers.add_times(
            2,
            Layer::Add {
                shape: vec![tokens, width],
            },
        );
        layers.add(Layer::LayerNorm { tokens, width });
        layers.add(linear(width, 4 * width));
        layers.add(Layer::Gelu {
            shape: vec![tokens, 4 * width],
        });
        layers.add(linear(4 * width, width));
    }
    layers.add(Layer::LayerNorm { tokens, width });
    layers.add(Layer::TiedScores {
        tokens,
        width,
        vocabulary,
    });
    layers.add(Layer::CrossEntropy {
        classes: vocabulary,
        tokens,
    });
}

/// What all else is measured by.
fn matmul(layers: &mut Layers) {
    layers.add(Layer::Matmul {
        heads: None,
        rows: 512,
        inner: 512,
        columns: 512,
    });
}

#[cfg(test)]
mod tests;
