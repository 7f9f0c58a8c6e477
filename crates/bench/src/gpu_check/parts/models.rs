//! The models that are compared between devices, with nothing in them that is drawn at random.

use std::fmt::Display;

use everburn::burn::module::{Module, ModuleMapper, Param};
use everburn::burn::prelude::*;
use everburn::burn::tensor::Distribution;
use everburn::nn::{Activation, InBlocks};
use everburn::prelude::TrainingData;
use everburn::train::{Classification, NextToken, Objective, draw_parameters};
use everburn_datasets::{
    DataChoice, ImageBatcher, Split, SyntheticDigits, TextBatcher, TextRequest, load_text,
};
use everburn_models::gpt::GptConfig;
use everburn_models::mnist::MnistConfig;
use everburn_models::mnist_bn::MnistBnConfig;

use super::losses::batch_size;
use crate::failure::Failure;
use crate::gpu_check::order::{CheckedModel, SEED};

impl CheckedModel {
    /// Calls `visitor` with the model, `samples` to train it on, and a test set of one batch: it has the kernels of a step.
    pub(super) fn visit<V: Visitor>(
        self,
        samples: usize,
        visitor: V,
    ) -> Result<V::Output, Failure> {
        match self {
            Self::Mnist => {
                let model = drawn(|device| MnistConfig::new().init(device));
                let images = images(samples, batch_size(self), ImageBatcher::unit())?;
                visitor.visit::<_, Classification<4>, _>(model, images)
            }
            Self::MnistBn => {
                let config = MnistBnConfig::new().with_dropout(0.0);
                let model = drawn(|device| config.init(device));
                let images = images(samples, batch_size(self), ImageBatcher::bytes())?;
                visitor.visit::<_, Classification<4>, _>(model, images)
            }
            Self::GptNano => {
                let (vocabulary, texts) = texts(samples, batch_size(self))?;
                let model = drawn(|device| GptConfig::nano(vocabulary).init(device));
                visitor.visit::<_, NextToken, _>(model, texts)
            }
        }
    }
}

/// Something to be done with a model whose type is known by name only.
pub(super) trait Visitor {
    type Output;

    /// The model is on the processor.
    fn visit<M, O, I>(
        self,
        model: M,
        data: TrainingData<I, (O::Input, O::Targets)>,
    ) -> Result<Self::Output, Failure>
    where
        M: InBlocks<Input = O::Input, Output = O::Output> + Module + Display + Sync + 'static,
        O: Objective<Input: Activation, Output: Activation>,
        I: Send + Sync + Clone + 'static;
}

/// Weights that the processor draws, the same in every process.
fn drawn<M: Module>(init: impl Fn(&Device) -> M) -> M {
    let device = Device::flex();
    device.seed(SEED);
    let model = init(&device);
    draw_parameters(&model);
    model
}

/// The same model on the processor, each weight off by at most `rounding` of itself; another one for each `seed`.
pub(super) fn rounded<M: Module>(model: M, rounding: f64, seed: u64) -> M {
    struct Round(f64);
    impl ModuleMapper for Round {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|weights| {
                let off = Distribution::Uniform(1.0 - self.0, 1.0 + self.0);
                let factors = weights.random_like(off);
                weights * factors
            })
        }
    }
    Device::flex().seed(seed);
    model.map(&mut Round(rounding))
}

type Images = TrainingData<everburn_datasets::ImageItem, (Tensor<4>, Tensor<1, Int>)>;

fn images(samples: usize, tested: usize, batcher: ImageBatcher) -> Result<Images, Failure> {
    let digits = SyntheticDigits::new(SEED);
    let (train, test) = (
        digits.generate(Split::Train, samples)?,
        digits.generate(Split::Test, tested)?,
    );
    let data = TrainingData::new("synthetic digits", train, test, batcher);
    Ok(data.with_origin("made for the check"))
}

type Texts = TrainingData<everburn_datasets::TextItem, (Tensor<2, Int>, Tensor<2, Int>)>;

fn texts(samples: usize, tested: usize) -> Result<(usize, Texts), Failure> {
    let loaded = load_text(&TextRequest {
        choice: DataChoice::Embedded,
        context: 64,
        train_limit: Some(samples),
        test_limit: Some(1),
        ..TextRequest::default()
    })?;
    let vocabulary = loaded.vocabulary;
    // The text's own test set is smaller than a batch.
    let test = loaded.train.first(tested);
    let data = TrainingData::new("embedded text", loaded.train, test, TextBatcher);
    Ok((vocabulary, data.with_origin("made for the check")))
}
