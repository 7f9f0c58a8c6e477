//! One side of `cargo xtask bench recompute`: what a step of a decoder costs in time and memory.

use std::time::Instant;

use clap::Args;
use everburn::burn::module::Module;
use everburn::burn::optim::{AdamConfig, GradientsParams};
use everburn::burn::prelude::*;
use everburn::burn::tensor::Int;
use everburn::nn::{InBlocks, Randomness, checkpointed_forward};
use everburn::train::{ActivationCheckpointing, NextToken, Objective, PeakMemory, draw_parameters};
use everburn_models::gpt::{Gpt, GptConfig};
use everburn_record::statistics::median;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Steps that are not measured: the optimizer makes its state in the first.
const WARM_UP: usize = 1;

const VOCABULARY: usize = 65;

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchRecomputeArguments {
    #[arg(long)]
    activation_checkpointing: ActivationCheckpointing,

    #[arg(long)]
    layers: usize,

    #[arg(long)]
    width: usize,

    #[arg(long)]
    heads: usize,

    /// The length of a text, in tokens.
    #[arg(long)]
    context: usize,

    /// Texts a step.
    #[arg(long)]
    batch: usize,

    /// Steps that are measured.
    #[arg(long)]
    steps: usize,
}

/// What is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(super) milliseconds: f64,
    /// The most that a measured step has used.
    pub(super) peak_bytes: u64,
    pub(super) parameters: usize,
    /// Of the last step: equal on all sides.
    pub(super) loss: f64,
}

pub(crate) fn run(arguments: &BenchRecomputeArguments) -> Result<(), Failure> {
    let config = GptConfig::new(VOCABULARY)
        .with_context(arguments.context)
        .with_width(arguments.width)
        .with_layers(arguments.layers)
        .with_heads(arguments.heads);
    config.check()?;
    let plain = Device::flex();
    let how = arguments.activation_checkpointing;
    let device = how.autodiff(plain.clone());
    device.seed(1);
    let mut model = config.init(&device);
    // All sides have the same.
    draw_parameters(&model);
    let mut optimizer = AdamConfig::new().init();
    let memory = PeakMemory::of(&plain);
    let (texts, next) = texts(arguments, &device);
    let mut milliseconds = Vec::with_capacity(arguments.steps);
    let mut loss = f64::NAN;
    for step in 0..WARM_UP + arguments.steps {
        if step == WARM_UP {
            memory.restart();
        }
        let start = Instant::now();
        let output = forward(&model, texts.clone(), how);
        let mean = NextToken::loss(output, next.clone()).mean;
        let gradients = GradientsParams::from_grads(mean.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        // Reading it waits for the device.
        loss = mean.into_scalar::<f64>();
        if step >= WARM_UP {
            milliseconds.push(1e3 * start.elapsed().as_secs_f64());
        }
    }
    let measured = Side {
        milliseconds: median(&milliseconds).unwrap_or(f64::NAN),
        peak_bytes: memory
            .bytes()
            .ok_or_else(|| Failure::new("this system does not report a process's peak memory"))?,
        parameters: model.num_params(),
        loss,
    };
    say!("{}", serde_json::json!(measured));
    Ok(())
}

fn forward(model: &Gpt, texts: Tensor<2, Int>, how: ActivationCheckpointing) -> Tensor<3> {
    match how.blocks_a_segment() {
        None => model.blocks().forward(model, texts),
        Some(every) => checkpointed_forward(model, texts, every, Randomness::Replayed),
    }
}

/// Texts that can be learned, and what follows each of their tokens.
fn texts(arguments: &BenchRecomputeArguments, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let length = arguments.context as i64;
    let rows = |shift: i64| {
        let tokens = (0..arguments.batch as i64).flat_map(|row| {
            (0..length).map(move |at| ((at + shift) * (row + 2)) % VOCABULARY as i64)
        });
        let tokens = tokens.collect::<Vec<_>>();
        Tensor::<1, Int>::from_ints(tokens.as_slice(), device)
            .reshape([arguments.batch, arguments.context])
    };
    (rows(0), rows(1))
}
