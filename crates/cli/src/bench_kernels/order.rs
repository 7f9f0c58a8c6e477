//! What is to be measured, as `xtask/src/bench/kernels/layer.rs` writes it.

use serde::Deserialize;

use crate::error::CliError;

/// A layer, what is done with it, and for how long.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    pub(super) layer: Layer,
    /// Samples.
    pub(super) batch: usize,
    pub(super) pass: Pass,
    pub(super) milliseconds: u64,
    /// Whether to tell what came out.
    pub(super) check: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pass {
    /// Without autodiff.
    Forward,
    /// With the gradients of parameters and of inputs.
    Backward,
    /// With the gradients of parameters alone.
    WeightGradient,
}

/// Images and kernels are square; a shape is that of one sample.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
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
    MeanOverPixels {
        channels: usize,
        side: usize,
    },
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
    Linear {
        features: [usize; 2],
        /// The input is `[B, inputs]` without them, else `[B, tokens, inputs]`.
        tokens: Option<usize>,
    },
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
    Embedding {
        tokens: usize,
        width: usize,
        vocabulary: usize,
    },
    Softmax {
        heads: usize,
        tokens: usize,
    },
    Matmul {
        /// One product of matrices without them, else one for each sample and head.
        heads: Option<usize>,
        rows: usize,
        inner: usize,
        columns: usize,
    },
    Rotary {
        heads: usize,
        tokens: usize,
        width: usize,
    },
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

impl Order {
    pub(super) fn parse(line: &str) -> Result<Self, CliError> {
        serde_json::from_str(line)
            .map_err(|error| CliError::usage(format!("{} is no order: {error}", line.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"layer": {"kind": "max-pool2d", "channels": 10, "kernel": 2, "stride": 2,
        "padding": 0, "side": 24}, "batch": 64, "pass": "weight-gradient", "milliseconds": 80,
        "check": true}"#;

    #[test]
    fn an_order_is_read_and_anything_else_is_refused() {
        let order = Order::parse(LINE).unwrap();
        assert_eq!((order.batch, order.pass), (64, Pass::WeightGradient));
        let pool = Layer::MaxPool2d {
            channels: 10,
            kernel: 2,
            stride: 2,
            padding: 0,
            side: 24,
        };
        assert_eq!(order.layer, pool);
        for (right, wrong) in [
            ("max-pool2d", "lunch"),
            ("\"side\"", "\"size\""),
            ("weight-gradient", "sideways"),
            ("\"batch\"", "\"batches\""),
        ] {
            let line = LINE.replace(right, wrong);
            let error = Order::parse(&line).unwrap_err().to_string();
            assert!(error.contains("is no order"), "{error}");
        }
    }

    #[test]
    fn tokens_and_heads_may_be_absent() {
        let layer = |text: &str| serde_json::from_str::<Layer>(text).unwrap();
        let linear = layer(r#"{"kind": "linear", "features": [3, 2], "tokens": null}"#);
        let expected = Layer::Linear {
            features: [3, 2],
            tokens: None,
        };
        assert_eq!(linear, expected);
    }
}
