//! A model on several devices and the same on one: the same training.
//!
//! The build has one device, flex, on which all parts are; the way of the code is that of several.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig, momentum::MomentumConfig};
use burn::prelude::*;
use burn::tensor::{Distribution, Int};
use burn_train::TrainStep;
use everburn_models::gpt::{GptConfig, Positions};
use everburn_models::mnist::{Mnist, MnistConfig};
use everburn_models::resnet50::{ResNet50Config, Stem};
use everburn_models::two_part_resnet::TwoPartResNetConfig;
use everburn_nn::{Activation, InBlocks, Placement};
use everburn_train::checkpoint::CheckpointFolder;
use everburn_train::{
    Classification, Classifier, NextToken, Objective, Supervised, Trainer, TrainingConfig,
    with_parameters,
};

use crate::harness::data::digits;
use crate::harness::ranks::alone;
use crate::harness::run::run_directory;

/// Names and numbers of parameters, or of what belongs to them.
type Named = Vec<(String, Vec<f32>)>;

/// Collects something of every parameter and buffer, by path.
struct Collect<F> {
    path: Vec<String>,
    found: Named,
    of: F,
}

trait OfParameter {
    fn numbers<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Vec<f32>>;
}

struct Values;

impl OfParameter for Values {
    fn numbers<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Vec<f32>> {
        Some(param.val().into_data().try_into_vec().unwrap())
    }
}

struct GradientsOf<'a>(&'a GradientsParams);

impl OfParameter for GradientsOf<'_> {
    fn numbers<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Vec<f32>> {
        let gradient = self.0.get::<D>(param.id)?;
        Some(gradient.into_data().try_into_vec().unwrap())
    }
}

impl<F: OfParameter> ModuleVisitor for Collect<F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(numbers) = self.of.numbers(param) {
            self.found.push((self.path.join("."), numbers));
        }
    }

    everburn_nn::walking! { path }
}

fn collect<M: Module>(model: &M, of: impl OfParameter) -> Named {
    let mut collect = Collect {
        path: Vec::new(),
        found: Vec::new(),
        of,
    };
    model.visit(&mut collect);
    collect.found
}

/// Asserts that each pair of arrays is equal within `tolerance` of the larger one's greatest number.
fn assert_close(ours: &Named, theirs: &Named, tolerance: f32, what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for ((path, ours), (their_path, theirs)) in ours.iter().zip(theirs) {
        assert_eq!(path, their_path);
        let pairs = || ours.iter().zip(theirs);
        let scale = pairs().fold(0.0f32, |scale, (a, b)| scale.max(a.abs()).max(b.abs()));
        let largest = pairs().fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(
            largest <= tolerance * scale,
            "{what}, {path}: {largest:e} of {scale:e}"
        );
    }
}

/// Checks that training `model` on 2 and 3 devices is training it on one: loss and gradients of the
/// first step, and the parameters after twenty.
fn trains_alike<M, O>(model: &M, batch: &(O::Input, O::Targets))
where
    M: InBlocks<Input = O::Input, Output = O::Output> + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation, Targets: Clone>,
{
    let device = Device::flex();
    drop(collect(model, Values)); // lazily initialised parameters are drawn now
    // Not clones, which would share the running statistics.
    let one = Supervised::<M, O>::of_blocks(model.valid());
    let expected = twenty_steps(one, batch);
    let trained = expected.after.iter().zip(&expected.before);
    assert!(
        trained.into_iter().any(|(after, before)| after != before),
        "it is trained"
    );
    for parts in [2, 3] {
        let model = model.valid();
        let devices = vec![device.clone(); parts.min(model.blocks().len())];
        let split = Placement::even(&model, &devices)
            .unwrap()
            .split(&model)
            .unwrap();
        assert_eq!(split.parts().len(), devices.len());
        let several = Supervised::<M, O>::on_devices(model, split);
        let found = twenty_steps(several, batch);
        let what = format!("{} parts", devices.len());
        let loss = (found.loss - expected.loss).abs() / expected.loss;
        assert!(loss <= 1e-5, "{what}: the loss differs by {loss:e}");
        assert_close(&found.gradients, &expected.gradients, 1e-5, &what);
        assert_close(&found.after, &expected.after, 1e-4, &what);
    }
}

struct Trained {
    loss: f64,
    gradients: Named,
    before: Named,
    after: Named,
}

fn twenty_steps<M, O>(model: Supervised<M, O>, batch: &(O::Input, O::Targets)) -> Trained
where
    M: Module + Sync + 'static,
    O: Objective<Input: Clone, Targets: Clone>,
{
    // As the training loop does.
    let mut model = model.train().fork(&Device::flex().autodiff());
    let before = collect(&model, Values);
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let mut optimizer: ModuleOptimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
    let mut first = None;
    for _ in 0..20 {
        let output = TrainStep::step(&model, batch.clone());
        if first.is_none() {
            let sums = output.item.sums().unwrap();
            first = Some((
                sums.mean_loss(),
                collect(&model, GradientsOf(&output.grads)),
            ));
        }
        model = optimizer.step(0.01, model, output.grads);
    }
    let (loss, gradients) = first.unwrap();
    assert!(gradients.len() > 1);
    Trained {
        loss,
        gradients,
        before,
        after: collect(&model, Values),
    }
}

/// Noise with arbitrary classes, on a device with autodiff as batches in training are.
fn images() -> (Tensor<4>, Tensor<1, Int>) {
    let device = Device::flex().autodiff();
    let images = Tensor::random([6, 1, 28, 28], Distribution::Default, &device);
    (images, Tensor::from_ints([3, 1, 4, 1, 5, 9], &device))
}

#[test]
fn mnist_trains_alike_on_one_and_more_devices() {
    let model = MnistConfig::new().init(&Device::flex());
    trains_alike::<_, Classification<4>>(&model, &images());
}

#[test]
fn resnets_train_alike_on_one_and_more_devices() {
    let config = ResNet50Config::new()
        .with_stem(Stem::Mnist)
        .with_classes(10);
    let small = config.with_blocks([1, 1, 1, 1]).with_width(4);
    trains_alike::<_, Classification<4>>(&small.init(&Device::flex()), &images());
    let two_parts = TwoPartResNetConfig::new().with_width(4);
    trains_alike::<_, Classification<4>>(&two_parts.init(&Device::flex()), &images());
}

#[test]
fn a_decoder_with_tied_weights_trains_alike_on_one_and_more_devices() {
    let device = Device::flex().autodiff();
    for positions in [Positions::Learned, Positions::Rotary] {
        let config = GptConfig::new(11)
            .with_width(16)
            .with_heads(2)
            .with_context(8);
        let model = config.with_positions(positions).init(&Device::flex());
        let tokens = Tensor::<1, Int>::arange(0..27, &device).remainder_scalar(11);
        let texts = tokens.reshape([3, 9]);
        let batch = (texts.clone().slice([0..3, 0..8]), texts.slice([0..3, 1..9]));
        trains_alike::<_, NextToken>(&model, &batch);
    }
}

#[test]
fn a_checkpoint_of_two_devices_loads_into_one() {
    let data = digits(1, 200, 100);
    let folder = tempfile::tempdir().unwrap();
    let config = TrainingConfig {
        epochs: 1,
        batch_size: 20,
        ..TrainingConfig::default()
    };
    let run = run_directory(folder.path(), &config);
    let trainer = Trainer {
        run: Some(run.clone()),
        ..alone(config)
    };
    let init = || MnistConfig::new().init(&trainer.device);
    let placement = Placement::new().put("conv1", &trainer.device);
    let model = init();
    let split = placement.put("fc1", &trainer.device).split(&model).unwrap();
    let model = Classifier::on_devices(model, split);
    let (_, report) = trainer.fit(model, &data).unwrap();

    let newest = CheckpointFolder::new(run.checkpoints(), 1)
        .load_newest()
        .unwrap();
    let one: Mnist = with_parameters(init(), &newest.checkpoint).unwrap();
    let sums = trainer
        .evaluate(&Classifier::of_blocks(one), &data)
        .unwrap()
        .unwrap();
    let (ours, theirs) = (sums.mean_loss(), report.test_loss.unwrap());
    assert!((ours - theirs).abs() <= 1e-6 * theirs, "{ours} {theirs}");
}
