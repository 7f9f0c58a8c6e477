//! What a process of a check is to do, one part or more, and what it answers: a line of JSON per part.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The seed of everything: both devices start from the weights that the processor draws.
pub(super) const SEED: u64 = 7;

/// Parts on a device, one after the other.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(super) parts: Vec<Part>,
    pub(super) device: String,
    /// Smaller models and fewer steps.
    pub(super) quick: bool,
    pub(super) plant: Option<Plant>,
}

/// A part of a check.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Part {
    /// A forward and a backward pass, against the processor.
    Numbers(CheckedModel),
    /// The losses of some steps.
    Losses {
        model: CheckedModel,
        steps: usize,
        /// By how much of themselves the first weights are off.
        rounding: Option<f64>,
    },
    /// How fast it trains.
    Throughput { what: Benchmarked, batch: usize },
    /// What NCCL takes of a step on one rank.
    NcclCost,
    /// A pass that is recorded and replayed.
    Replay,
}

impl Part {
    /// Its name, and that of what it trains: both name the folder of its kernels.
    pub(super) fn names(self) -> (&'static str, String) {
        match self {
            Self::Numbers(model) => ("numbers", model.name().to_string()),
            Self::Losses { model, .. } => ("losses", model.name().to_string()),
            Self::Throughput { what, batch } => ("throughput", format!("{}-{batch}", what.name())),
            Self::NcclCost => ("nccl-cost", String::new()),
            Self::Replay => ("replay", String::new()),
        }
    }
}

/// A model of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CheckedModel {
    Mnist,
    MnistBn,
    GptNano,
}

impl CheckedModel {
    pub(super) const ALL: [Self; 3] = [Self::Mnist, Self::MnistBn, Self::GptNano];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mnist => "mnist",
            Self::MnistBn => "mnist-bn",
            Self::GptNano => "gpt-nano",
        }
    }
}

/// What is trained for its speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Benchmarked {
    Mnist,
    Resnet50,
    Gpt2,
    /// With products in bf16.
    Gpt2Bf16,
}

impl Benchmarked {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mnist => "mnist",
            Self::Resnet50 => "resnet50",
            Self::Gpt2 => "gpt2-124m",
            Self::Gpt2Bf16 => "gpt2-124m-bf16",
        }
    }
}

/// Something that is made wrong on purpose, so that it is seen whether the check finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum Plant {
    /// A wrong output.
    Forward,
    /// A wrong gradient.
    Backward,
    /// A wrong loss.
    Losses,
    /// Gradients of several ranks that are too large by a hundredth.
    Ranks,
    /// A process that panics.
    Crash,
    /// The same, when it comes to a training.
    CrashInTraining,
    /// A process that does not end.
    Hang,
}

/// Whether a device of this name may compute products of f32 by tensor cores, which round factors to TF32.
pub(super) fn rounds_factors(device: &str) -> bool {
    ["cuda", "rocm"].iter().any(|api| device.starts_with(api))
}

/// By how much of itself a factor is off, at most, that tensor cores have rounded to TF32, of 11 significant binary digits;
/// twice, because a product has two.
const TF32_ROUNDING: f64 = 1.0 / 1024.0;

/// The same of a factor of `f32` whose products are added in another order: 16 units in the last place.
const F32_ROUNDING: f64 = 16.0 / (1 << 24) as f64;

/// By how much of itself a factor is off, at most, on a device of this name.
pub(super) fn rounding(device: &str) -> f64 {
    match rounds_factors(device) {
        true => TF32_ROUNDING,
        false => F32_ROUNDING,
    }
}

/// The line that a process prints after each part.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer<T> {
    pub(super) found: T,
}

/// How far the device is from the processor: the largest difference of a tensor's numbers, as a part of its
/// largest number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Numbers {
    pub(super) forward: f64,
    /// Of the gradient that differs most.
    pub(super) backward: f64,
    /// The path of that parameter.
    pub(super) parameter: String,
    /// How far the processor's own gradients move when weights are off by as much as the device rounds: a maximum over a
    /// window, or a negative number, may be another one then.
    pub(super) spread: f64,
}

/// What a run of a benchmark yields.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Rate {
    /// Samples, or tokens of a text model.
    pub(super) per_second: f64,
    pub(super) steps: usize,
}

/// What the communication of gradients costs of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct CommunicationCost {
    /// By what part a step takes longer with the communication: the median of the turns.
    pub(super) share: f64,
    /// The median step without it, in milliseconds.
    pub(super) step_ms: f64,
    /// How many steps a turn had.
    pub(super) steps: usize,
}

/// What a replayed pass is to a launched one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Replayed {
    /// How far a replay is from the same pass, unrecorded: relatively, of loss and gradients.
    pub(super) apart: f64,
    /// The same after other images were written in place of those that were recorded.
    pub(super) apart_with_others: f64,
    /// How long a pass takes, unrecorded and replayed, in microseconds.
    pub(super) launched_us: f64,
    pub(super) replayed_us: f64,
}
