//! Burn's own layers on the CPU, where `everburn::nn` has faster ones under the same names.
//!
//! A recording has modules by their parameters and not by their types. So which implementation ran is seen by where
//! the training thread is found: a sample within a pass whose stack goes through one of burn-flex's layers is Burn's,
//! unless a layer of `everburn::nn` has called it, which falls back to it where no kernel fits.

use std::collections::BTreeMap;

use serde::Serialize;

use super::stacks::{self, last_word};
use crate::recording::{PhaseSpan, Recording};

/// A kind of layer that burn-flex computed.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::BurnLayer;
///
/// let layer = BurnLayer { kind: "convolution", seconds: 0.012 };
/// assert!(layer.kind == "convolution" && layer.seconds > 0.01);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BurnLayer {
    /// What it is, as `convolution`.
    pub kind: &'static str,
    /// How long it takes a step, forward and backward, in seconds.
    pub seconds: f64,
}

/// Functions of Burn's back ends, and the kinds of layers in `everburn::nn` that compute them by kernels.
const KINDS: [(&str, &str); 19] = [
    ("conv2d", "convolution"),
    ("conv2d_x_backward", "convolution"),
    ("conv2d_weight_backward", "convolution"),
    ("conv2d_bias_backward", "convolution"),
    ("max_pool2d", "pooling"),
    ("max_pool2d_with_indices", "pooling"),
    ("max_pool2d_with_indices_backward", "pooling"),
    ("avg_pool2d", "pooling"),
    ("avg_pool2d_backward", "pooling"),
    ("adaptive_avg_pool2d", "pooling"),
    ("adaptive_avg_pool2d_backward", "pooling"),
    ("batch_norm_train", "batch norm"),
    ("batch_norm_train_backward", "batch norm"),
    ("layer_norm", "layer norm"),
    ("layer_norm_backward", "layer norm"),
    ("relu", "activation"),
    ("relu_backward", "activation"),
    ("gelu", "activation"),
    ("gelu_backward", "activation"),
];

/// How functions of layers begin that `everburn::nn` has from Burn alone: some compute by those of [`KINDS`].
const BURNS_ALONE: [&str; 6] = [
    "conv_transpose",
    "conv1d",
    "conv3d",
    "max_pool1d",
    "avg_pool1d",
    "adaptive_avg_pool1d",
];

/// Our layers: what they call of Burn's they call because they must.
const OURS: [&str; 3] = [
    "everburn_nn::layers",
    "everburn_nn::batch_norm",
    "everburn_kernels::",
];

/// The layers of Burn among the samples of the training thread within `phases`, the longest first.
pub(crate) fn found(recording: &Recording, phases: &[PhaseSpan], steps: f64) -> Vec<BurnLayer> {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (_, names) in stacks::in_passes(recording, phases) {
        if let Some(kind) = layer_in(&names) {
            *counts.entry(kind).or_default() += 1;
        }
    }
    let period = recording.samples.period;
    let layer = |(kind, count): (_, u64)| BurnLayer {
        kind,
        seconds: (count * period) as f64 / 1e9 / steps,
    };
    let mut layers: Vec<BurnLayer> = counts.into_iter().map(layer).collect();
    layers.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    layers
}

/// The kind of the outermost layer of a stack, if burn-flex computes it and `everburn::nn` has it: what that calls in its
/// turn does not count, as the `conv3d_f32` of every `conv2d`.
fn layer_in(outermost_first: &[&str]) -> Option<&'static str> {
    let names = || outermost_first.iter();
    let is_ours = |name: &&str| OURS.iter().any(|ours| name.contains(ours));
    if !names().any(|name| name.contains("burn_flex::")) || names().any(is_ours) {
        return None;
    }
    names().find_map(|name| layer_of(name)).flatten()
}

/// The kind of layer that a function of Burn's computes; `Some(None)` where `everburn::nn` has none, `None` where the
/// function is no layer.
fn layer_of(name: &str) -> Option<Option<&'static str>> {
    if !name.trim_start_matches('<').starts_with("burn_") {
        return None;
    }
    let word = last_word(name);
    let known = KINDS.iter().find(|(function, _)| *function == word);
    match known {
        Some((_, kind)) => Some(Some(kind)),
        None => BURNS_ALONE
            .iter()
            .any(|begin| word.starts_with(begin))
            .then_some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_flex_computes_is_found_in_both_passes() {
        let forward = [
            "model::Net::forward",
            "<burn_nn::modules::conv::conv2d::Conv2d>::forward",
            "<burn_autodiff::backend::Autodiff<_> as burn_backend::ModuleOps<_>>::conv2d",
            "burn_flex::ops::conv::conv2d_f32",
            "burn_flex::ops::conv::conv3d_f32",
        ];
        assert_eq!(layer_in(&forward), Some("convolution"));
        let backward = [
            "burn_autodiff::graph::traversal",
            "<burn_flex::backend::Flex as burn_backend::ModuleOps<burn_flex::backend::Flex>>::max_pool2d_with_indices_backward",
            "rayon_core::join::join_context",
        ];
        assert_eq!(layer_in(&backward), Some("pooling"));
        let by_another_layer = [
            "burn_backend::backend::ops::modules::conv::conv2d_x_backward",
            "burn_flex::ops::module::<impl burn_backend::ModuleOps<_> for burn_flex::backend::Flex>::conv_transpose2d",
            "burn_flex::ops::conv_transpose::conv_transpose3d_f32",
        ];
        assert_eq!(layer_in(&by_another_layer), Some("convolution"));
    }

    #[test]
    fn layers_without_a_faster_one_are_not_found() {
        for function in ["conv_transpose2d_x_backward", "conv1d"] {
            let layer =
                format!("<burn_flex::backend::Flex as burn_backend::ModuleOps<_>>::{function}");
            let inside = "<burn_flex::backend::Flex as burn_backend::ModuleOps<_>>::conv2d";
            assert_eq!(layer_in(&[&layer, inside]), None);
        }
    }

    #[test]
    fn layers_of_ours_are_none_of_burns_also_where_they_fall_back() {
        let fallback = [
            "<everburn_nn::layers::conv2d::Conv2d>::forward",
            "<burn_flex::backend::Flex as everburn_nn::layers::operations::LayerOps>::convolve",
            "<burn_flex::backend::Flex as burn_backend::ModuleOps<_>>::conv2d",
        ];
        assert_eq!(layer_in(&fallback), None);
        let kernel = [
            "<burn_flex::backend::Flex as everburn_nn::layers::operations::LayerOps>::relu",
            "everburn_kernels::relu::relu",
        ];
        assert_eq!(layer_in(&kernel), None);
    }

    #[test]
    fn other_operations_and_other_back_ends_are_no_layers() {
        let product = [
            "<burn_nn::modules::linear::Linear>::forward",
            "burn_flex::ops::matmul::matmul",
        ];
        assert_eq!(layer_in(&product), None);
        let on_a_gpu = [
            "<burn_nn::modules::conv::conv2d::Conv2d>::forward",
            "<burn_cubecl::CubeBackend<_> as burn_backend::ModuleOps<_>>::conv2d",
        ];
        assert_eq!(layer_in(&on_a_gpu), None);
    }
}
