//! A short measurement of each block.

use std::time::Instant;

use crate::devices;
use burn::prelude::*;
use burn::tensor::{DType, TensorData};
use everburn_nn::{ActivationError, AnyActivation};
use everburn_record::proc;
use everburn_train::{ConfiguredTask, TrainError};

use super::figures::{BlockFigures, Figures};
use crate::config::RunConfig;
use crate::error::CliError;

/// How often each pass is timed: the least of three is rarely disturbed by other work.
const TIMED_RUNS: usize = 3;

/// How many forward passes are kept at once to see what one keeps.
const KEPT_RUNS: u64 = 4;

/// Measures each block of the configured model on this many samples, on rank 0's device. Each block is
/// drawn by itself and dropped again: the whole model is never in memory.
pub(super) fn measure(config: &RunConfig, samples: usize) -> Result<Figures, CliError> {
    let device = devices::of_rank(&config.ranks.devices, 0)?;
    let measure = Measure { samples, device };
    Ok(Figures::measured(
        measure.blocks(&*config.task()?)?,
        samples,
    ))
}

struct Measure {
    samples: usize,
    device: Device,
}

impl Measure {
    fn blocks(&self, task: &dyn ConfiguredTask) -> Result<Vec<BlockFigures>, CliError> {
        let device = self.device.clone().autodiff();
        // An input of the model has no gradient; what passes between blocks has.
        let mut input = task.block_input(self.samples, &device)?;
        let names = task.blocks()?.names;
        let count = names.len();
        let mut figures = Vec::with_capacity(count);
        for (block, name) in names.into_iter().enumerate() {
            let drawn = task.draw_blocks(&device)?;
            let run = || drawn.run(block, input.boxed_clone());
            // Draws the parameters.
            let output = run().values().map_err(|error| refuse(&error))?;
            figures.push(self.block(name, run, &output)?);
            if block + 1 < count {
                input = drawn
                    .input_of(block + 1, output, &device)
                    .map_err(|error| refuse(&error))?;
            }
        }
        Ok(figures)
    }

    fn block(
        &self,
        name: String,
        run: impl Fn() -> Box<dyn AnyActivation>,
        output: &[TensorData],
    ) -> Result<BlockFigures, CliError> {
        let seconds = |since: Instant| -> Result<f64, CliError> {
            self.device
                .sync()
                .map_err(|error| TrainError::Device(error.to_string()))?;
            Ok(since.elapsed().as_secs_f64())
        };
        let (mut forward, mut backward) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..TIMED_RUNS {
            let start = Instant::now();
            let result = run();
            forward = forward.min(seconds(start)?);
            let ones = output.iter().map(ones_like).collect();
            let start = Instant::now();
            if let Some(loss) = result.seed(ones).map_err(|error| refuse(&error))? {
                drop(loss.backward());
            }
            backward = backward.min(seconds(start)?);
        }
        let samples = self.samples as f64;
        let output_bytes: u64 = output.iter().map(bytes_of).sum();
        let kept = self.kept_by(&run).unwrap_or(0).max(output_bytes);
        let a_sample = |bytes: u64| bytes.div_ceil(self.samples as u64);
        Ok(BlockFigures {
            name,
            forward: forward / samples,
            backward: Some(backward / samples),
            activation_bytes: a_sample(kept),
            output_bytes: a_sample(output_bytes),
        })
    }

    /// How many bytes a forward pass keeps: by how much the memory grows with each.
    fn kept_by(&self, run: &impl Fn() -> Box<dyn AnyActivation>) -> Option<u64> {
        let pool = || self.device.memory_pool_usage();
        let memory = || {
            pool()
                .map(|pool| pool.bytes_in_use)
                .or_else(proc::counted_resident_memory)
        };
        let ballast = match pool() {
            None => fill_free_memory()?,
            Some(_) => Vec::new(),
        };
        // Its workspace serves the others.
        let mut kept = vec![run()];
        let before = memory()?;
        kept.extend((0..KEPT_RUNS).map(|_| run()));
        self.device.sync().ok()?;
        let grown = memory()?.saturating_sub(before);
        drop((kept, ballast));
        Some(grown / KEPT_RUNS)
    }
}

/// Takes all the memory that this process has used before and keeps for later, so that whatever it uses
/// from now on shows in its resident set: pieces of each size, from the largest on, until one is new.
fn fill_free_memory() -> Option<Vec<Vec<u8>>> {
    /// 16 MiB down to a page.
    const SIZES: std::ops::RangeInclusive<u32> = 12..=24;
    /// Enough for more than any block leaves behind.
    const PIECES: usize = 256;
    let mut ballast = Vec::new();
    for size in SIZES.rev().map(|bits| 1_usize << bits) {
        for _ in 0..PIECES {
            let mut piece = Vec::with_capacity(size);
            if proc::resident_bytes_of(piece.spare_capacity_mut())? < size / 2 {
                break; // the system's, not what was there already
            }
            ballast.push(piece);
        }
    }
    Some(ballast)
}

fn refuse(error: &ActivationError) -> CliError {
    TrainError::Device(error.to_string()).into()
}

fn bytes_of(data: &TensorData) -> u64 {
    (data.num_elements() * data.dtype().size()) as u64
}

/// The gradient with which a backward pass begins; whole numbers have none.
fn ones_like(output: &TensorData) -> Option<TensorData> {
    let is_float = matches!(
        output.dtype(),
        DType::F64 | DType::F32 | DType::F16 | DType::BF16
    );
    is_float.then(|| {
        let shape = output.shape().clone();
        TensorData::ones::<f32, _>(shape).convert_dtype(output.dtype())
    })
}
