//! One side of `cargo xtask bench recompute`: what a step of a decoder costs in time and memory.

use std::time::Instant;

use everburn::burn::module::Module;
use everburn::burn::optim::{AdamConfig, GradientsParams};
use everburn::burn::prelude::*;
use everburn::burn::tensor::Int;
use everburn::nn::{InBlocks, Randomness, checkpointed_forward};
use everburn::train::{ActivationCheckpointing, NextToken, Objective, PeakMemory, draw_parameters};
use everburn_models::gpt::{Gpt, GptConfig};
use everburn_record::statistics::median;

use super::order::{Order, Side};
use crate::failure::Failure;

/// Steps that are not measured: the optimizer makes its state in the first.
const WARM_UP: usize = 1;

const VOCABULARY: usize = 65;

pub(crate) fn run(order: &Order) -> Result<(), Failure> {
    let config = GptConfig::new(VOCABULARY)
        .with_context(order.context)
        .with_width(order.width)
        .with_layers(order.layers)
        .with_heads(order.heads);
    config.check()?;
    let plain = Device::flex();
    let how = order
        .activation_checkpointing
        .parse::<ActivationCheckpointing>();
    let how = how.map_err(Failure::Usage)?;
    let device = how.autodiff(plain.clone());
    device.seed(1);
    let mut model = config.init(&device);
    // All sides have the same.
    draw_parameters(&model);
    let mut optimizer = AdamConfig::new().init();
    let memory = PeakMemory::of(&plain);
    let (texts, next) = texts(order, &device);
    let mut milliseconds = Vec::with_capacity(order.steps);
    let mut loss = f64::NAN;
    for step in 0..WARM_UP + order.steps {
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
fn texts(order: &Order, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let length = order.context as i64;
    let rows = |shift: i64| {
        let tokens = (0..order.batch as i64).flat_map(|row| {
            (0..length).map(move |at| ((at + shift) * (row + 2)) % VOCABULARY as i64)
        });
        let tokens = tokens.collect::<Vec<_>>();
        Tensor::<1, Int>::from_ints(tokens.as_slice(), device).reshape([order.batch, order.context])
    };
    (rows(0), rows(1))
}
