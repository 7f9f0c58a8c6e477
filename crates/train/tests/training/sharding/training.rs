//! Trainings of one model on ranks that are threads, whole and cut.

use std::path::Path;

use everburn_distributed::{HeldBytes, ShardStage};
use everburn_nn::{Activation, InBlocks};
use everburn_train::{
    Objective, OptimizerConfig, OptimizerKind, Supervised, TrainError, Trainer, TrainingConfig,
    TrainingData, TrainingReport,
};

use crate::harness::config::changed;
use crate::harness::parameters::parameters;
use crate::harness::ranks::on_ranks;
use crate::harness::run::step_lines;
use crate::replicas::in_common;

pub(crate) const STAGES: [ShardStage; 3] = [
    ShardStage::Optimizer,
    ShardStage::Gradients,
    ShardStage::Parameters,
];

/// This many steps of AdamW.
pub(crate) fn adam_w(steps: usize) -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        steps: Some(steps),
        batch_size: 16,
        validation_samples: Some(20),
        log_every: 1,
        optimizer: OptimizerConfig {
            kind: OptimizerKind::AdamW,
            learning_rate: 1e-3,
            weight_decay: 0.01,
            ..OptimizerConfig::default()
        },
        ..TrainingConfig::default()
    }
}

pub(crate) fn with(config: &TrainingConfig, shard: Option<ShardStage>) -> TrainingConfig {
    changed(config.clone(), |config| config.ddp.shard = shard)
}

/// What a training leaves behind.
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    /// Of each step, before clipping.
    pub(crate) norms: Vec<Option<f64>>,
    pub(crate) parameters: Vec<f32>,
    pub(crate) report: TrainingReport,
}

impl Trained {
    /// What each rank has held.
    pub(crate) fn held(&self) -> &[HeldBytes] {
        &self.report.sharding.as_ref().unwrap().ranks
    }
}

pub(crate) fn train<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    world_size: usize,
) -> Trained
where
    M: InBlocks<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let folder = tempfile::tempdir().unwrap();
    let trained = try_train::<M, O, I>(model, data, config, world_size, folder.path(), false);
    trained.unwrap()
}

/// Trains in `folder`; or continues there.
pub(crate) fn try_train<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    world_size: usize,
    folder: &Path,
    resume: bool,
) -> Result<Trained, TrainError>
where
    M: InBlocks<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let results = on_ranks(world_size, config, Some(folder), |trainer| {
        let trainer = Trainer { resume, ..trainer };
        // Not a clone, which would share the running statistics.
        let model = model.valid();
        let checkpointing = config.activation_checkpointing;
        let model = Supervised::<M, O>::of_checkpointed_blocks(model, checkpointing);
        trainer.fit(model, data)
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let replicas = results.iter().map(|(model, _)| parameters(model).concat());
    let steps = step_lines(folder);
    Ok(Trained {
        losses: steps.iter().map(|line| line.loss).collect(),
        norms: steps.iter().map(|line| line.gradient_norm).collect(),
        parameters: in_common(replicas.collect()),
        report: results[0].1.clone(),
    })
}

/// Losses, norms and parameters are the same but for rounding, on the same number of ranks.
pub(crate) fn assert_close(found: &Trained, expected: &Trained, what: &str) {
    assert_within(1e-5, found, expected, what);
}

/// As [`assert_close`]. Another number of ranks adds gradients up in another order, and where one is next to
/// nothing, Adam's step follows its sign.
pub(crate) fn assert_within(tolerance: f64, found: &Trained, expected: &Trained, what: &str) {
    let relative = |a: f64, b: f64| (a - b).abs() / a.abs().max(b.abs()).max(1e-3);
    assert_eq!(found.losses.len(), expected.losses.len(), "{what}");
    let pairs = found.losses.iter().zip(&expected.losses);
    let loss = pairs.map(|(a, b)| relative(*a, *b)).fold(0.0, f64::max);
    assert!(loss <= tolerance, "{what}: losses differ by {loss:e}");
    for pair in found.norms.iter().zip(&expected.norms) {
        match pair {
            (Some(a), Some(b)) => {
                assert!(
                    relative(*a, *b) <= 10.0 * tolerance,
                    "{what}: norms {a} {b}"
                );
            }
            (a, b) => assert_eq!(a, b, "{what}"),
        }
    }
    let pairs = found.parameters.iter().zip(&expected.parameters);
    let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(
        f64::from(worst) <= 20.0 * tolerance,
        "{what}: parameters differ by {worst:e}"
    );
}
