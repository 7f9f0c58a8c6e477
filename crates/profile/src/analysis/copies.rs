//! Copies between device and host within the passes, where a model has no need of any.
//!
//! Burn has no place where a copy could be counted: `Tensor::into_data` is the back end's own function. So it is seen
//! by where the training thread is found: a sample within a pass whose stack goes through one of Burn's functions that
//! read a tensor or make one of host memory is a copy's, and the moment says of which module. On a device that computes
//! behind the host's back the thread waits there, which is sampled as well.

use std::collections::BTreeMap;

use serde::Serialize;

use super::layers::Segment;
use super::stacks::{self, last_word};
use crate::recording::{PhaseSpan, Recording};

/// A copy that a layer makes.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{HostCopy, RankProfile};
///
/// /// The longest copy that a rank makes in its passes, in words.
/// fn longest(rank: &RankProfile) -> Option<String> {
///     let copy: &HostCopy = rank.copies.first()?;
///     Some(format!("{} calls {} for {:.3} s a step", copy.layer, copy.by, copy.seconds))
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostCopy {
    /// The module in whose time it falls; empty where that is not known.
    pub layer: String,
    /// Burn's function that copies, as `into_data`.
    pub by: String,
    /// The function of the model that calls it, if its name is known.
    pub caller: String,
    /// How long it takes a step, in seconds.
    pub seconds: f64,
}

/// Functions of `Tensor` and of back ends by which numbers leave a device, or come to one.
const COPIES: [&str; 8] = [
    "into_data",
    "try_into_data",
    "into_data_async",
    "into_data_sync",
    "to_data",
    "into_scalar",
    "from_data",
    "from_floats",
];

/// Who copies because it must, or moves numbers within its own operations: gradients into buckets, the step's sums,
/// kernels.
const NEEDED: [&str; 6] = [
    "everburn_distributed::",
    "everburn_train::metrics::step_report",
    "everburn_train::training_loop::pending_metrics",
    "everburn_kernels::",
    "everburn_nn::layers",
    "burn_flex::",
];

/// Where the search for a caller passes over.
const LIBRARIES: [&str; 12] = [
    "burn::", "burn_", "core::", "alloc::", "std::", "rayon", "<burn", "<core", "<alloc", "<std",
    "<rayon", "__",
];

/// The copies among the samples of the training thread within `phases`, the longest first.
pub(crate) fn found(
    recording: &Recording,
    phases: &[PhaseSpan],
    segments: &[Segment<'_>],
    steps: f64,
) -> Vec<HostCopy> {
    let period = recording.samples.period;
    let mut counts: BTreeMap<(String, String, String), u64> = BTreeMap::new();
    for (at, names) in stacks::in_passes(recording, phases) {
        let Some((by, caller)) = copy_in(&names) else {
            continue;
        };
        let next = segments.partition_point(|segment| segment.end <= at);
        let segment = segments.get(next).filter(|segment| segment.begin <= at);
        let layer = segment.map_or("", |segment| segment.module);
        let key = (layer.to_owned(), by.to_owned(), readable(caller));
        *counts.entry(key).or_default() += 1;
    }
    let copy = |((layer, by, caller), count): (_, u64)| HostCopy {
        layer,
        by,
        caller,
        seconds: (count * period) as f64 / 1e9 / steps,
    };
    let mut copies: Vec<HostCopy> = counts.into_iter().map(copy).collect();
    copies.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    copies
}

/// The outermost function of a stack that copies, and who calls it.
fn copy_in<'a>(outermost_first: &[&'a str]) -> Option<(&'a str, &'a str)> {
    let place = outermost_first.iter().position(|name| is_copy(name))?;
    let callers = &outermost_first[..place];
    let is_needed = |name: &&str| NEEDED.iter().any(|needed| name.contains(needed));
    if callers.iter().any(is_needed) {
        return None;
    }
    let is_library = |name: &str| LIBRARIES.iter().any(|library| name.starts_with(library));
    let caller = callers.iter().rev().copied().find(|name| !is_library(name));
    Some((
        last_word(outermost_first[place]),
        caller.unwrap_or_default(),
    ))
}

fn is_copy(name: &str) -> bool {
    let is_burns = name.trim_start_matches('<').starts_with("burn_");
    is_burns && COPIES.contains(&last_word(name))
}

/// `a::B::f` of `<a::B>::f`, as one writes it.
fn readable(name: &str) -> String {
    let method = name
        .strip_prefix('<')
        .and_then(|rest| rest.split_once(">::"));
    match method {
        Some((of, method)) if !of.contains(['<', ' ']) => format!("{of}::{method}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_copy_and_its_caller_are_found() {
        let stack = [
            "everburn_train::training_loop::gradients::timed_pass",
            "model::Smooth::forward",
            "core::ops::function::FnOnce::call_once",
            "burn_tensor::tensor::api::base::Tensor<_>::into_data",
            "<burn_flex::Flex as burn_backend::ops::FloatTensorOps>::float_into_data",
        ];
        assert_eq!(
            copy_in(&stack),
            Some(("into_data", "model::Smooth::forward"))
        );
        assert_eq!(copy_in(&stack[..3]), None);
    }

    #[test]
    fn what_we_copy_because_we_must_does_not_count() {
        let stack = [
            "burn_autodiff::backward",
            "<everburn_distributed::gradient_hook::HookBackward as burn_autodiff::Backward>::backward",
            "burn_tensor::Tensor::into_data",
        ];
        assert_eq!(copy_in(&stack), None);
    }

    #[test]
    fn callers_are_named_as_one_writes_them() {
        assert_eq!(readable("<model::Net>::forward"), "model::Net::forward");
        assert_eq!(readable("<a::B as c::D>::f"), "<a::B as c::D>::f");
    }
}
