//! `everburn-bench gpu-check`: what a machine with a GPU is asked, in one command of less than ten minutes.
//!
//! The binary needs nothing beside it: no Rust, no data. Each part runs in a process with a deadline, or, where there
//! are few cores, in that of another part of its model: one that crashes or hangs costs its rows and no other. What has
//! been found is written after each row, and a table is there from the start, in which nothing has been reached.

mod apart;
mod child;
mod commands;
mod compared;
mod machine;
mod markdown;
pub(crate) mod order;
#[cfg(not(test))]
pub(crate) mod parts;
mod peers;
mod plan;
mod record;
mod rows;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use clap::{Args, ValueEnum};
use everburn::devices::{self, DeviceName};
use everburn::launch::Children;
use everburn_record::sync::lock;
use serde::{Deserialize, Serialize};

use self::machine::Machine;
use self::order::Plant;
use self::plan::Capabilities;
use self::record::{Findings, MARKDOWN, Record, Verdict};
use self::work::Check;
use crate::failure::Failure;

/// A part of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Section {
    /// Forward and backward passes against the processor.
    Numbers,
    /// The first steps of trainings against the processor.
    Training,
    /// NCCL, the host backend, model-parallel and pipeline against one rank.
    Ranks,
    /// How fast it trains.
    Throughput,
    /// How fast PyTorch does.
    Peers,
}

/// Checks a GPU: results against the processor, ranks, throughput against PyTorch. Leaves gpu-check.md,
/// gpu-check.json and gpu-check.log, whatever it came to by then.
#[derive(Debug, Clone, Args)]
pub(crate) struct GpuCheckArguments {
    /// The device to check: cuda:0, vulkan:1, ..., webgpu:cpu for kernels without a GPU, or flex to test the check itself.
    #[arg(long, default_value = "cuda:0")]
    device: String,

    /// The folder for the results.
    #[arg(long, default_value = ".", value_name = "DIR")]
    out: PathBuf,

    /// How long the whole check may take, in seconds.
    #[arg(long, default_value_t = 560, value_name = "SECONDS")]
    budget: u64,

    /// Only these: numbers, training, ranks, throughput, peers.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    sections: Vec<Section>,

    /// The Python whose PyTorch is measured on the same GPU; `none` for no comparison.
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: String,

    /// Smaller models and fewer steps, to test the check itself.
    #[arg(long, hide = true)]
    quick: bool,

    /// How long each part may take, in seconds.
    #[arg(long, hide = true, value_name = "SECONDS")]
    task_limit: Option<u64>,

    /// Make something wrong, to see whether it is found.
    #[arg(long, hide = true, value_enum)]
    plant: Option<Plant>,
}

impl GpuCheckArguments {
    /// Whether the device is made of the CPU: its kernels are checked, and its speed is of no interest.
    fn is_software(&self) -> bool {
        self.device == DeviceName::WebGpuCpu.to_string()
    }
}

pub(crate) fn run(arguments: &GpuCheckArguments) -> Result<ExitCode, Failure> {
    devices::check(std::slice::from_ref(&arguments.device), 1)?;
    let children = Children::listen()?;
    let python = (arguments.python != "none").then_some(arguments.python.as_str());
    let nccl = machine::find_nccl(&children, python);
    let has = Capabilities {
        gpus: everburn::nccl::gpus().map_or(0, |inventory| inventory.gpus.len()),
        without_nccl: nccl.as_ref().err().cloned(),
        python: python.is_some(),
    };
    let tasks = plan::tasks(arguments, &has);
    let (checks, benchmarks) = plan::rows(&tasks, python);
    let findings = Findings {
        verdict: Verdict::Incomplete,
        machine: Machine::here(),
        device: arguments.device.clone(),
        quick: arguments.quick,
        seconds: 0.0,
        budget_seconds: arguments.budget as f64,
        checks,
        benchmarks,
    };
    say!("{}", findings.machine.gpus);
    let out = std::path::absolute(&arguments.out);
    let failed = |error: std::io::Error| {
        let folder = arguments.out.display();
        Failure::usage(format!(
            "the findings cannot be written to {folder}: {error}"
        ))
    };
    let out = out.map_err(failed)?;
    let record = Record::begin(findings, &out).map_err(failed)?;
    let check = Check {
        children,
        arguments,
        python,
        program: std::env::current_exe().map_err(failed)?,
        budget: Duration::from_secs(arguments.budget),
        nccl: nccl.ok().flatten(),
        alone: Mutex::new(None),
        log: record.log(),
        record: Mutex::new(record),
    };
    let ended = check.run_all(&tasks);
    check.children.check_interrupted()?;
    ended.map_err(failed)?;
    let mut record = lock(&check.record);
    record.write().map_err(failed)?;
    let page = out.join(MARKDOWN);
    say!("{}", std::fs::read_to_string(&page).map_err(failed)?);
    say!("written to {}", page.display());
    Ok(match record.findings.verdict {
        Verdict::Passed => ExitCode::SUCCESS,
        Verdict::Failed | Verdict::Incomplete => ExitCode::FAILURE,
    })
}
