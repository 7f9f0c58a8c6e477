//! What a process of a check does: one part, whose result is a line of JSON.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use everburn::devices;
use serde::{Deserialize, Serialize};

use super::losses::{Losses, batch_size};
use super::models::CheckedModel;
use super::nccl_cost;
use super::numbers::Compare;
use super::replay;
use super::throughput::{self, Benchmarked};
use crate::failure::Failure;

/// A part of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// A forward and a backward pass, against the processor.
    Numbers,
    /// The losses of some steps.
    Losses,
    /// How fast it trains.
    Throughput,
    /// What NCCL takes of a step on one rank.
    NcclCost,
    /// A pass that is recorded and replayed.
    Replay,
}

/// Something that is made wrong on purpose, so that it is seen whether the check finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
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
    /// A process that does not end.
    Hang,
}

/// Which part, and of what.
#[derive(Debug, Clone, Args)]
pub(super) struct PartArguments {
    #[arg(long, hide = true, value_enum)]
    pub(super) part: Option<Part>,

    #[arg(long, hide = true, value_enum, requires = "part")]
    model: Option<CheckedModel>,

    #[arg(long, hide = true, value_enum, requires = "part")]
    benchmark: Option<Benchmarked>,

    #[arg(long, hide = true, default_value_t = 64)]
    batch: usize,

    #[arg(long, hide = true, default_value_t = 50)]
    steps: usize,

    /// Begin with weights that are off by this part of themselves.
    #[arg(long, hide = true, requires = "part")]
    rounding: Option<f64>,

    /// Make something wrong, to see whether it is found.
    #[arg(long, hide = true, value_enum)]
    pub(super) plant: Option<Plant>,
}

/// The losses that a part prints.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PrintedLosses {
    pub(super) losses: Vec<f64>,
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

/// Does a part on `device`, and prints what it yields.
pub(super) fn run(
    part: Part,
    arguments: &PartArguments,
    device: &str,
    quick: bool,
) -> Result<ExitCode, Failure> {
    match arguments.plant {
        Some(Plant::Crash) => panic!("planted: this part crashes"),
        Some(Plant::Hang) => loop {
            std::thread::park();
        },
        _ => {}
    }
    let names = [device.to_string()];
    devices::check(&names, 1)?;
    let name = &names[0];
    let device = devices::of_rank(&names, 0)?;
    let model = || {
        let model = arguments.model;
        model.ok_or_else(|| Failure::usage("this part needs --model"))
    };
    let json = match part {
        Part::Numbers => {
            let plant = arguments.plant;
            let model = model()?;
            // The shapes of a training have the same kernels.
            let samples = batch_size(model);
            let compare = Compare {
                device,
                samples,
                rounding: rounding(name),
                plant,
            };
            let found = model.visit(samples, compare)?;
            serde_json::json!(found)
        }
        Part::Losses => {
            let (model, steps) = (model()?, arguments.steps);
            let visitor = Losses {
                model,
                device,
                steps,
                rounding: arguments.rounding,
            };
            let mut losses = model.visit(steps * batch_size(model), visitor)?;
            if let (Some(Plant::Losses), Some(last)) = (arguments.plant, losses.last_mut()) {
                *last *= 1.01;
            }
            serde_json::json!(PrintedLosses { losses })
        }
        Part::NcclCost => serde_json::json!(nccl_cost::run(&device, name, quick)?),
        Part::Replay => serde_json::json!(replay::run(&device)?),
        Part::Throughput => {
            let what = arguments.benchmark;
            let what = what.ok_or_else(|| Failure::usage("this part needs --benchmark"))?;
            serde_json::json!(throughput::run(what, &device, arguments.batch, quick)?)
        }
    };
    say!("{json}");
    Ok(ExitCode::SUCCESS)
}
