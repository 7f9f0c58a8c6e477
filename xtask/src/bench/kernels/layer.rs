//! A layer and what is done with it, as both sides are told.

use std::fmt;

use serde_json::{Value, json};

/// A layer of some network with the sizes that it has there; images and kernels are square.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Layer {
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
    /// On `[B, features]`, or on `[B, tokens, features]`.
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

impl Layer {
    /// The layer for both sides; `crates/cli/src/bench_kernels/order.rs` and
    /// `xtask/peers/pytorch_layers.py` read it.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Conv2d {
                channels,
                kernel,
                stride,
                padding,
                side,
                bias,
            } => json!({
                "kind": "conv2d", "channels": channels, "kernel": kernel, "stride": stride,
                "padding": padding, "side": side, "bias": bias,
            }),
            Self::MaxPool2d {
                channels,
                kernel,
                stride,
                padding,
                side,
            } => json!({
                "kind": "max-pool2d", "channels": channels, "kernel": kernel, "stride": stride,
                "padding": padding, "side": side,
            }),
            Self::MeanOverPixels { channels, side } => {
                json!({ "kind": "mean-over-pixels", "channels": channels, "side": side })
            }
            Self::BatchNorm {
                channels,
                side,
                epsilon,
                scales,
            } => json!({
                "kind": "batch-norm", "channels": channels, "side": side, "epsilon": epsilon,
                "scales": scales,
            }),
            Self::Relu { shape } => json!({ "kind": "relu", "shape": shape }),
            Self::Add { shape } => json!({ "kind": "add", "shape": shape }),
            Self::Gelu { shape } => json!({ "kind": "gelu", "shape": shape }),
            Self::Dropout { shape, share } => {
                json!({ "kind": "dropout", "shape": shape, "share": share })
            }
            Self::Linear { features, tokens } => {
                json!({ "kind": "linear", "features": features, "tokens": tokens })
            }
            Self::TiedScores {
                tokens,
                width,
                vocabulary,
            } => json!({
                "kind": "tied-scores", "tokens": tokens, "width": width, "vocabulary": vocabulary,
            }),
            Self::LayerNorm { tokens, width } => {
                json!({ "kind": "layer-norm", "tokens": tokens, "width": width })
            }
            Self::Embedding {
                tokens,
                width,
                vocabulary,
            } => json!({
                "kind": "embedding", "tokens": tokens, "width": width, "vocabulary": vocabulary,
            }),
            Self::Softmax { heads, tokens } => {
                json!({ "kind": "softmax", "heads": heads, "tokens": tokens })
            }
            Self::Matmul {
                heads,
                rows,
                inner,
                columns,
            } => json!({
                "kind": "matmul", "heads": heads, "rows": rows, "inner": inner, "columns": columns,
            }),
            Self::Rotary {
                heads,
                tokens,
                width,
            } => json!({ "kind": "rotary", "heads": heads, "tokens": tokens, "width": width }),
            Self::Attention {
                heads,
                tokens,
                width,
            } => json!({ "kind": "attention", "heads": heads, "tokens": tokens, "width": width }),
            Self::CrossEntropy { classes, tokens } => {
                json!({ "kind": "cross-entropy", "classes": classes, "tokens": tokens })
            }
        }
    }

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
        match self {
            Self::Conv2d {
                channels: [inputs, outputs],
                kernel,
                stride,
                padding,
                side,
                ..
            } => {
                write!(f, "conv {inputs}->{outputs} k{kernel}")?;
                window(f, [*stride, 1], *padding)?;
                write!(f, " on {side}x{side}")
            }
            Self::MaxPool2d {
                channels,
                kernel,
                stride,
                padding,
                side,
            } => {
                write!(f, "max pool {kernel}x{kernel}")?;
                window(f, [*stride, *kernel], *padding)?;
                write!(f, " on {channels}x{side}x{side}")
            }
            Self::MeanOverPixels { channels, side } => {
                write!(f, "mean over pixels of {channels}x{side}x{side}")
            }
            Self::BatchNorm { channels, side, .. } => {
                write!(f, "batch norm on {channels}x{side}x{side}")
            }
            Self::Relu { shape } => write!(f, "relu on {}", sizes(shape)),
            Self::Add { shape } => write!(f, "add on {}", sizes(shape)),
            Self::Gelu { shape } => write!(f, "gelu on {}", sizes(shape)),
            Self::Dropout { shape, share } => write!(f, "dropout {share} on {}", sizes(shape)),
            Self::Linear {
                features: [inputs, outputs],
                tokens,
            } => {
                write!(f, "linear {inputs}->{outputs}")?;
                tokens.map_or(Ok(()), |tokens| write!(f, " on {tokens} tokens"))
            }
            Self::TiedScores {
                tokens,
                width,
                vocabulary,
            } => write!(f, "tied scores {width}->{vocabulary} on {tokens} tokens"),
            Self::LayerNorm { tokens, width } => write!(f, "layer norm on {tokens}x{width}"),
            Self::Embedding {
                tokens,
                width,
                vocabulary,
            } => write!(f, "embedding {vocabulary}->{width} of {tokens} tokens"),
            Self::Softmax { heads, tokens } => write!(f, "softmax on {heads}x{tokens}x{tokens}"),
            Self::Matmul {
                heads,
                rows,
                inner,
                columns,
            } => {
                write!(f, "matmul {rows}x{inner} by {inner}x{columns}")?;
                heads.map_or(Ok(()), |heads| write!(f, " of {heads} heads"))
            }
            Self::Rotary {
                heads,
                tokens,
                width,
            } => write!(f, "rotary on {heads}x{tokens}x{width}"),
            Self::Attention {
                heads,
                tokens,
                width,
            } => write!(f, "attention on {heads}x{tokens}x{width}"),
            Self::CrossEntropy { classes, tokens: 1 } => write!(f, "cross entropy of {classes}"),
            Self::CrossEntropy { classes, tokens } => {
                write!(f, "cross entropy of {tokens}x{classes}")
            }
        }
    }
}

/// What of a window's steps is not the usual.
fn window(f: &mut fmt::Formatter<'_>, [stride, usual]: [usize; 2], padding: usize) -> fmt::Result {
    if stride != usual {
        write!(f, " s{stride}")?;
    }
    if padding != 0 {
        write!(f, " p{padding}")?;
    }
    Ok(())
}

fn sizes(shape: &[usize]) -> String {
    let sizes: Vec<_> = shape.iter().map(usize::to_string).collect();
    sizes.join("x")
}

/// What is done with a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Without autodiff.
    Forward,
    /// With the gradients of parameters, of inputs too.
    Backward,
    /// With the gradients of parameters alone: nothing comes before the layer.
    WeightGradient,
}

impl Pass {
    /// As both sides are told.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::WeightGradient => "weight-gradient",
        }
    }
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
    }

    #[test]
    fn what_is_absent_is_null() {
        let linear = |tokens| Layer::Linear {
            features: [320, 50],
            tokens,
        };
        assert_eq!(linear(None).to_json()["tokens"], Value::Null);
        assert_eq!(linear(Some(64)).to_json()["tokens"], 64);
        assert_eq!(linear(Some(64)).to_string(), "linear 320->50 on 64 tokens");
    }
}
