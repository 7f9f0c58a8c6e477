//! A layer and what is done with it. Both sides read it as JSON: ours in `worker`, the peer's in
//! `crates/bench/peers/pytorch_layers.py`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A layer of some network with the sizes that it has there; images and kernels are square, a shape is that of one
/// sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Layer {
    Conv2d {
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
        padding: usize,
        side: usize,
        bias: bool,
    },
    MaxPool2d {
        channels: usize,
        kernel: usize,
        stride: usize,
        padding: usize,
        side: usize,
    },
    /// Global average pooling.
    MeanOverPixels {
        channels: usize,
        side: usize,
    },
    /// With the statistics of the batch where gradients are asked for, else with the running ones.
    BatchNorm {
        channels: usize,
        side: usize,
        epsilon: f64,
        /// Whether gamma is trained too.
        scales: bool,
    },
    Relu {
        shape: Vec<usize>,
    },
    /// Of two tensors, as at the end of a residual block.
    Add {
        shape: Vec<usize>,
    },
    Gelu {
        shape: Vec<usize>,
    },
    Dropout {
        shape: Vec<usize>,
        share: f64,
    },
    /// On `[B, inputs]`, or on `[B, tokens, inputs]`.
    Linear {
        features: [usize; 2],
        tokens: Option<usize>,
    },
    /// Scores of all tokens by the weights `[V, E]` of an embedding.
    TiedScores {
        tokens: usize,
        width: usize,
        vocabulary: usize,
    },
    #[expect(clippy::enum_variant_names, reason = "it is called so")]
    LayerNorm {
        tokens: usize,
        width: usize,
    },
    /// Of tokens to vectors.
    Embedding {
        tokens: usize,
        width: usize,
        vocabulary: usize,
    },
    /// Over the last dimension of `[B, heads, tokens, tokens]`.
    Softmax {
        heads: usize,
        tokens: usize,
    },
    /// `[rows, inner]` by `[inner, columns]`: once, or for each sample and head.
    Matmul {
        heads: Option<usize>,
        rows: usize,
        inner: usize,
        columns: usize,
    },
    /// Pairs of numbers turned by angles that grow with the position.
    Rotary {
        heads: usize,
        tokens: usize,
        width: usize,
    },
    /// Causal, from queries, keys and values to what was looked up.
    Attention {
        heads: usize,
        tokens: usize,
        width: usize,
    },
    CrossEntropy {
        classes: usize,
        /// Predictions of a sample.
        tokens: usize,
    },
}

/// What is done with a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pass {
    /// Without autodiff.
    Forward,
    /// With the gradients of parameters, of inputs too.
    Backward,
    /// With the gradients of parameters alone: nothing comes before the layer.
    WeightGradient,
}

/// What a side is to measure: a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    pub(crate) layer: Layer,
    /// Samples.
    pub(crate) batch: usize,
    pub(crate) pass: Pass,
    /// For how long the layer is called again and again.
    pub(crate) milliseconds: u64,
    /// Whether to tell what came out.
    pub(crate) check: bool,
}

/// What a side tells of a layer: a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Of the median call.
    pub(crate) microseconds: f64,
    /// How many it has computed with.
    pub(crate) threads: usize,
    /// The mean size of the numbers of the output and of each gradient, where they were asked for.
    pub(crate) check: Option<Vec<f64>>,
}

impl Layer {
    /// How far both sides' results may be apart, relative to their size: rounding, in sums of
    /// millions; for dropout, chance.
    pub(super) fn tolerance(&self) -> f64 {
        match self {
            Self::Dropout { .. } => 0.1,
            _ => 1e-3,
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Conv2d {
                channels: [inputs, outputs],
                kernel,
                stride,
                padding,
                side,
                ..
            } => {
                let window = window([*stride, 1], *padding);
                format!("conv {inputs}->{outputs} k{kernel}{window} on {side}x{side}")
            }
            Self::MaxPool2d {
                channels,
                kernel,
                stride,
                padding,
                side,
            } => {
                let window = window([*stride, *kernel], *padding);
                format!("max pool {kernel}x{kernel}{window} on {channels}x{side}x{side}")
            }
            Self::MeanOverPixels { channels, side } => {
                format!("mean over pixels of {channels}x{side}x{side}")
            }
            Self::BatchNorm { channels, side, .. } => {
                format!("batch norm on {channels}x{side}x{side}")
            }
            Self::Relu { shape } => format!("relu on {}", sizes(shape)),
            Self::Add { shape } => format!("add on {}", sizes(shape)),
            Self::Gelu { shape } => format!("gelu on {}", sizes(shape)),
            Self::Dropout { shape, share } => format!("dropout {share} on {}", sizes(shape)),
            Self::Linear {
                features: [inputs, outputs],
                tokens,
            } => {
                let tokens = tokens.map(|tokens| format!(" on {tokens} tokens"));
                format!("linear {inputs}->{outputs}{}", tokens.unwrap_or_default())
            }
            Self::TiedScores {
                tokens,
                width,
                vocabulary,
            } => format!("tied scores {width}->{vocabulary} on {tokens} tokens"),
            Self::LayerNorm { tokens, width } => format!("layer norm on {tokens}x{width}"),
            Self::Embedding {
                tokens,
                width,
                vocabulary,
            } => format!("embedding {vocabulary}->{width} of {tokens} tokens"),
            Self::Softmax { heads, tokens } => format!("softmax on {heads}x{tokens}x{tokens}"),
            Self::Matmul {
                heads,
                rows,
                inner,
                columns,
            } => {
                let heads = heads.map(|heads| format!(" of {heads} heads"));
                let heads = heads.unwrap_or_default();
                format!("matmul {rows}x{inner} by {inner}x{columns}{heads}")
            }
            Self::Rotary {
                heads,
                tokens,
                width,
            } => format!("rotary on {heads}x{tokens}x{width}"),
            Self::Attention {
                heads,
                tokens,
                width,
            } => format!("attention on {heads}x{tokens}x{width}"),
            Self::CrossEntropy { classes, tokens: 1 } => format!("cross entropy of {classes}"),
            Self::CrossEntropy { classes, tokens } => {
                format!("cross entropy of {tokens}x{classes}")
            }
        };
        f.write_str(&text)
    }
}

/// What of a window's steps is not the usual.
fn window([stride, usual]: [usize; 2], padding: usize) -> String {
    let stride = (stride != usual).then(|| format!(" s{stride}"));
    let padding = (padding != 0).then(|| format!(" p{padding}"));
    stride.into_iter().chain(padding).collect()
}

fn sizes(shape: &[usize]) -> String {
    let sizes: Vec<_> = shape.iter().map(usize::to_string).collect();
    sizes.join("x")
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Backward => "forward + backward",
            Self::WeightGradient => "forward + weight gradient",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_not_usual() {
        let conv = |stride, padding| Layer::Conv2d {
            channels: [3, 64],
            kernel: 7,
            stride,
            padding,
            side: 224,
            bias: false,
        };
        assert_eq!(conv(1, 0).to_string(), "conv 3->64 k7 on 224x224");
        assert_eq!(conv(2, 3).to_string(), "conv 3->64 k7 s2 p3 on 224x224");
        let pool = |stride| Layer::MaxPool2d {
            channels: 10,
            kernel: 2,
            stride,
            padding: 0,
            side: 24,
        };
        assert_eq!(pool(2).to_string(), "max pool 2x2 on 10x24x24");
        assert_eq!(pool(1).to_string(), "max pool 2x2 s1 on 10x24x24");
        let linear = |tokens| Layer::Linear {
            features: [320, 50],
            tokens,
        };
        assert_eq!(linear(Some(64)).to_string(), "linear 320->50 on 64 tokens");
    }

    const LINE: &str = r#"{"layer":{"kind":"max-pool2d","channels":10,"kernel":2,"stride":2,"padding":0,"side":24},"batch":64,"pass":"weight-gradient","milliseconds":80,"check":true}"#;

    #[test]
    fn an_order_is_written_as_the_peer_reads_it_and_anything_else_is_refused() {
        let order: Order = serde_json::from_str(LINE).unwrap();
        assert_eq!(order.pass, Pass::WeightGradient);
        assert_eq!(serde_json::to_string(&order).unwrap(), LINE);
        for (right, wrong) in [
            ("max-pool2d", "lunch"),
            ("\"side\"", "\"size\""),
            ("weight-gradient", "sideways"),
            ("\"batch\"", "\"batches\""),
        ] {
            let line = LINE.replace(right, wrong);
            assert!(serde_json::from_str::<Order>(&line).is_err(), "{line}");
        }
    }
}
