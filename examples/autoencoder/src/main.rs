//! Learns to remove noise from drawings of circles: what a model yields is an image, and there are no classes.

mod data;

use std::process::ExitCode;

// `everburn::burn` is Burn itself; its derives look for it under the name `burn`.
use everburn::burn;
use everburn::burn::prelude::*;
use everburn::burn::tensor::Distribution;
use everburn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use everburn::nn::{PaddingConfig2d, Relu};
use everburn::prelude::*;
use serde::{Deserialize, Serialize};

use crate::data::{DrawingBatcher, Drawings};

// Every command of Everburn works on the tasks that are named here: `train`, `eval`, `monitor`, ...
fn main() -> ExitCode {
    App::new().task("circles", Circles).main()
}

/// What is trained.
struct Circles;

/// The settings, in `[circles]` of a configuration file; `--set circles.noise=0.5` sets one.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CirclesConfig {
    /// The width and height of a drawing in pixels, a multiple of 4.
    size: usize,
    /// The standard deviation of the noise.
    noise: f64,
    /// How many drawings there are to learn from.
    samples: usize,
}

impl Default for CirclesConfig {
    fn default() -> Self {
        Self { size: 24, noise: 0.3, samples: 2_000 }
    }
}

/// The model, an ordinary Burn module: images to images of the same size.
#[derive(Module, Debug)]
struct Autoencoder {
    encode: Conv2d,
    squeeze: Conv2d,
    expand: ConvTranspose2d,
    decode: ConvTranspose2d,
    relu: Relu,
}

impl Autoencoder {
    /// A model with random parameters.
    fn new(device: &Device) -> Self {
        let down = |from, to| {
            Conv2dConfig::new([from, to], [2, 2]).with_stride([2, 2]).with_padding(PaddingConfig2d::Valid).init(device)
        };
        let up = |from, to| ConvTranspose2dConfig::new([from, to], [2, 2]).with_stride([2, 2]).init(device);
        Self { encode: down(1, 8), squeeze: down(8, 16), expand: up(16, 8), decode: up(8, 1), relu: Relu::new() }
    }
}

impl Task for Circles {
    type Config = CirclesConfig;
    type Model = Autoencoder;
    type Item = Vec<f32>;
    type Batch = Tensor<4>;

    fn model(&self, _config: &CirclesConfig, device: &Device) -> Result<Autoencoder, TaskError> {
        Ok(Autoencoder::new(device))
    }

    // Settings that make no sense are refused before anything is read or started.
    fn check(&self, config: &CirclesConfig) -> Result<(), TaskError> {
        match config.size.is_multiple_of(4) && config.size > 0 {
            true => Ok(()),
            false => {
                Err(TaskError::new(format!("circles.size = {} is no multiple of 4", config.size))
                    .with_help("use 24 or 32"))
            }
        }
    }

    fn data(&self, config: &mut CirclesConfig) -> Result<TaskData<Vec<f32>, Tensor<4>>, TaskError> {
        let drawings = |numbers| Drawings { size: config.size, numbers };
        let train = drawings(0..config.samples);
        let test = drawings(config.samples..config.samples + 200);
        let batcher = DrawingBatcher { size: config.size };
        let data = TrainingData::new("circles", train, test, batcher);
        Ok(TaskData::from(data.with_fingerprint(config.size.to_string()).with_origin("drawn")))
    }

    fn loss(&self, config: &CirclesConfig, model: &Autoencoder, clean: Tensor<4>) -> Loss {
        let samples = clean.dims()[0];
        // Random numbers of the device are seeded for each step, so a resumed run sees the same noise.
        let noisy = clean.clone() + clean.random_like(Distribution::Normal(0.0, config.noise));
        let hidden = model.relu.forward(model.encode.forward(noisy));
        let hidden = model.relu.forward(model.squeeze.forward(hidden));
        let hidden = model.relu.forward(model.expand.forward(hidden));
        let errors = model.decode.forward(hidden) - clean;
        // A metric is a sum with a weight, so that ranks add up.
        let absolute = errors.clone().detach().abs().mean() * samples as f64;
        Loss::new(errors.powi_scalar(2).mean(), samples).with_metric("mae", absolute, samples)
    }

    fn summary(&self) -> String {
        "drawings of circles, without their noise".to_string()
    }

    // What `train --list` shows of the model.
    fn input_and_output(&self) -> [String; 2] {
        let CirclesConfig { size, .. } = CirclesConfig::default();
        [format!("noisy drawings {size} x {size}"), "drawings of that size".to_string()]
    }
}
