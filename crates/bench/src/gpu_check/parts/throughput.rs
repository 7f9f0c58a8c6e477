//! How fast a device trains.

use std::fmt::Display;
use std::time::{Duration, Instant};

use everburn::burn::module::Module;
use everburn::burn::optim::GradientsParams;
use everburn::burn::prelude::*;
use everburn::burn::tensor::{Distribution, Int};
use everburn::nn::{Activation, ComputeType, InBlocks, autocast};
use everburn::prelude::*;
use everburn::train::{
    Classification, InputConfig, NextToken, Objective, OptimizerConfig, OptimizerKind,
};
use everburn_datasets::{IMAGE_PIXELS, ImageBatcher, ImageDataset};
use everburn_models::gpt::GptConfig;
use everburn_models::mnist::MnistConfig;
use everburn_models::resnet50::ResNet50Config;

use crate::failure::Failure;
use crate::gpu_check::order::{Benchmarked, Rate, SEED};

/// How long steps are measured: long enough for clocks to settle, short enough for ten benchmarks.
const MEASURED_FOR: Duration = Duration::from_secs(3);

/// Trains `what` on `device` with batches of `batch` samples; smaller models, for a moment, where it is `quick`.
pub(super) fn run(
    what: Benchmarked,
    device: &Device,
    batch: usize,
    quick: bool,
) -> Result<Rate, Failure> {
    device.seed(SEED);
    match what {
        Benchmarked::Mnist => mnist(device, batch, quick),
        Benchmarked::Resnet50 => {
            let (config, side) = match quick {
                true => (ResNet50Config::new().with_width(8).with_blocks([1; 4]), 32),
                false => (ResNet50Config::new(), 224),
            };
            let classes = config.classes as f64;
            let images = |device: &Device| {
                let shape = [batch, 3, side, side];
                let images = Tensor::<4>::random(shape, Distribution::Default, device);
                (images, whole_numbers([batch], classes, device))
            };
            let optimizer = OptimizerConfig {
                kind: OptimizerKind::Sgd,
                learning_rate: 0.1,
                momentum: Some(0.9),
                ..OptimizerConfig::default()
            };
            let model = config.init(device);
            one_batch::<_, Classification<4>>(model, images, &optimizer, batch, quick)
        }
        Benchmarked::Gpt2Bf16 => autocast(ComputeType::Bf16, || {
            run(Benchmarked::Gpt2, device, batch, quick)
        }),
        Benchmarked::Gpt2 => {
            let config = gpt2(quick);
            let texts = |device: &Device| texts(&config, batch, device);
            let (model, counted) = (config.init(device), batch * config.context);
            one_batch::<_, NextToken>(model, texts, &gpt2_optimizer(), counted, quick)
        }
    }
}

/// GPT-2 of 124 million parameters, or a very small one where it is `quick`.
pub(super) fn gpt2(quick: bool) -> GptConfig {
    match quick {
        true => GptConfig::new(65)
            .with_context(16)
            .with_width(16)
            .with_layers(1),
        false => GptConfig::gpt2_124m(),
    }
}

/// What GPT-2 is trained with.
pub(super) fn gpt2_optimizer() -> OptimizerConfig {
    OptimizerConfig {
        kind: OptimizerKind::AdamW,
        learning_rate: 6e-4,
        beta_2: Some(0.95),
        weight_decay: 0.1,
        ..OptimizerConfig::default()
    }
}

/// Tokens at random, and the tokens to be foretold: both `[batch, context]`.
pub(super) fn texts(
    config: &GptConfig,
    batch: usize,
    device: &Device,
) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let tokens = || whole_numbers([batch, config.context], config.vocabulary as f64, device);
    (tokens(), tokens())
}

fn whole_numbers<const D: usize>(shape: [usize; D], below: f64, device: &Device) -> Tensor<D, Int> {
    let numbers = Distribution::Uniform(0.0, below - 0.5);
    Tensor::<D>::random(shape, numbers, device).int()
}

/// The whole loop of a training, with its data on the device.
fn mnist(device: &Device, batch: usize, quick: bool) -> Result<Rate, Failure> {
    let (samples, steps) = match quick {
        true => (2 * batch, 4),
        // Enough steps for a few seconds at a million samples per second, and not for minutes on a slow device.
        false => (65_536, (3_000_000 / batch).clamp(200, 4_000)),
    };
    // Pixels without meaning take as long as digits.
    let noise = (0..samples * IMAGE_PIXELS).map(|index| ((index * 2_654_435_761) >> 13) as u8);
    let labels = (0..samples).map(|index| (index % 10) as u8);
    let train = ImageDataset::new(noise.collect(), labels.collect(), 10)?;
    let test = train.first(1);
    let data = TrainingData::new("noise", train, test, ImageBatcher::unit())
        .with_origin("made for the check");
    let config = TrainingConfig {
        epochs: steps,
        steps: Some(steps),
        batch_size: batch,
        seed: SEED,
        validation_samples: Some(0),
        input: InputConfig {
            on_device: true,
            ..InputConfig::default()
        },
        ..TrainingConfig::default()
    };
    let trainer = Trainer {
        device: device.clone(),
        warm_up: Some(true),
        ..Trainer::new(config, ProcessGroup::alone(GroupOptions::default()))
    };
    let data = trainer.on_device(data, None)?;
    let model = Supervised::<_, Classification<4>>::of_blocks(MnistConfig::new().init(device));
    let (_, report) = trainer.fit(model, &data)?;
    Ok(Rate {
        per_second: report.samples_per_second,
        steps: report.steps,
    })
}

/// Steps on one batch that is on the device: forward, backward, optimizer, nothing read back.
fn one_batch<M, O>(
    model: M,
    batch: impl FnOnce(&Device) -> (O::Input, O::Targets),
    optimizer: &OptimizerConfig,
    counted: usize,
    quick: bool,
) -> Result<Rate, Failure>
where
    M: InBlocks<Input = O::Input, Output = O::Output> + Module + Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation, Targets: Clone>,
{
    let device = model.devices().into_iter().next();
    let device = device.ok_or_else(|| Failure::usage("the model has no parameters"))?;
    let device = device.inner().autodiff();
    let (inputs, targets) = batch(&device);
    let model = Supervised::<M, O>::of_blocks(model.train().fork(&device));
    let rate = optimizer.learning_rate;
    let mut optimizer = optimizer.init(&model)?;
    // Handed over to the optimizer and back: parameters that nobody else has are updated in place.
    let mut model = Some(model);
    let wait = |device: &Device| {
        let done = device.sync();
        done.map_err(|error| Failure::usage(format!("the device has failed: {error}")))
    };
    let mut last = None;
    let mut steps = |count: usize| -> Result<Duration, Failure> {
        let start = Instant::now();
        for _ in 0..count {
            let present = model.take().expect("each step puts it back");
            let loss = O::loss(present.forward(inputs.clone()), targets.clone()).mean;
            let gradients = GradientsParams::from_grads(loss.backward(), &present);
            model = Some(optimizer.step(rate, present, gradients));
            last = Some(loss.detach());
        }
        wait(&device)?;
        Ok(start.elapsed())
    };
    // Compiles, tunes and makes the optimizer's state; then how long a step takes.
    steps(2)?;
    let count = match quick {
        true => 2,
        false => {
            let each = steps(3)?.as_secs_f64() / 3.0;
            ((MEASURED_FOR.as_secs_f64() / each) as usize).clamp(3, 1_000)
        }
    };
    let taken = steps(count)?;
    // Kernels that could not be compiled are skipped, and the device says so to those alone who read what they were for.
    let loss = last.map(finite).transpose()?;
    loss.ok_or_else(|| Failure::usage("no step was measured"))?;
    Ok(Rate {
        per_second: (count * counted) as f64 / taken.as_secs_f64(),
        steps: count,
    })
}

/// The loss, if it is one.
fn finite(loss: Tensor<1>) -> Result<f32, Failure> {
    let read = loss.try_into_data();
    let data = read.map_err(|error| Failure::usage(format!("no loss can be read: {error}")))?;
    match data.iter::<f32>().next() {
        Some(loss) if loss.is_finite() => Ok(loss),
        other => Err(Failure::usage(format!("the last loss is {other:?}"))),
    }
}
