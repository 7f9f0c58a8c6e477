//! The losses of the first steps of a training on a device, by the loop that trains everything.

use std::fmt::Display;

use everburn::burn::module::Module;
use everburn::burn::prelude::Device;
use everburn::nn::{Activation, InBlocks};
use everburn::prelude::*;
use everburn::train::{
    KernelCache, MetricKind, MetricLine, Objective, OptimizerConfig, OptimizerKind,
};

use super::models::{CheckedModel, SEED, Visitor, rounded};
use crate::failure::Failure;

/// How many samples per step has.
pub(super) fn batch_size(model: CheckedModel) -> usize {
    match model {
        CheckedModel::GptNano => 32,
        CheckedModel::Mnist | CheckedModel::MnistBn => 64,
    }
}

/// As the model's preset has it, but for what changes within an epoch.
fn optimizer(model: CheckedModel) -> OptimizerConfig {
    match model {
        CheckedModel::Mnist => OptimizerConfig::default(),
        CheckedModel::MnistBn => OptimizerConfig {
            learning_rate: 0.003,
            ..OptimizerConfig::default()
        },
        CheckedModel::GptNano => OptimizerConfig {
            kind: OptimizerKind::AdamW,
            learning_rate: 0.003,
            beta_2: Some(0.99),
            weight_decay: 0.1,
            ..OptimizerConfig::default()
        },
    }
}

/// Trains for this many steps; returns the loss of each.
pub(super) struct Losses {
    pub(super) model: CheckedModel,
    pub(super) device: Device,
    pub(super) steps: usize,
    /// By how much of themselves the first weights are off.
    pub(super) rounding: Option<f64>,
}

impl Visitor for Losses {
    type Output = Vec<f64>;

    fn visit<M, O, I>(
        self,
        model: M,
        data: TrainingData<I, (O::Input, O::Targets)>,
    ) -> Result<Vec<f64>, Failure>
    where
        M: InBlocks<Input = O::Input, Output = O::Output> + Module + Display + Sync + 'static,
        O: Objective<Input: Activation, Output: Activation>,
        I: Send + Sync + Clone + 'static,
    {
        let folder = tempfile::tempdir()?;
        let run = RunDirectory::create(folder.path())?;
        let config = TrainingConfig {
            // A text may have fewer samples than the steps read.
            epochs: self.steps,
            steps: Some(self.steps),
            batch_size: batch_size(self.model),
            seed: SEED,
            validation_samples: Some(0),
            log_every: 1,
            optimizer: optimizer(self.model),
            ..TrainingConfig::default()
        };
        // The check of a device, which comes before a training, is kept there.
        let kernels = std::env::var_os(everburn::kernels::VARIABLE).map(Into::into);
        let kernels = kernels.map_or_else(
            || KernelCache::Nowhere("the check named no folder".to_string()),
            KernelCache::Folder,
        );
        let trainer = Trainer {
            device: self.device,
            kernels,
            run: Some(run),
            ..Trainer::new(config, ProcessGroup::alone(GroupOptions::default()))
        };
        let model = match self.rounding {
            Some(rounding) => rounded(model, rounding, SEED),
            None => model,
        };
        let trained = trainer.fit(Supervised::<M, O>::of_blocks(model), &data);
        trained.map(drop)?;
        read(folder.path())
    }
}

/// The losses of the steps that a run has recorded.
pub(super) fn read(run: &std::path::Path) -> Result<Vec<f64>, Failure> {
    let path = run.join("metrics.jsonl");
    let refuse = |error: &dyn Display| Failure::usage(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| refuse(&error))?;
    let lines = text.lines().map(serde_json::from_str::<MetricLine>);
    let lines = lines.collect::<Result<Vec<_>, _>>();
    let lines = lines.map_err(|error| refuse(&error))?.into_iter();
    let steps = lines.filter(|line| line.kind == MetricKind::Step);
    Ok(steps.map(|line| line.loss).collect())
}

/// The largest relative difference of two rows of losses, and the step at which it is, counted from 1; `None` if
/// they have different lengths or none.
pub(super) fn furthest(one: &[f64], other: &[f64]) -> Option<(f64, usize)> {
    if one.len() != other.len() {
        return None;
    }
    let apart = one.iter().zip(other).enumerate();
    let apart = apart.map(|(index, (a, b))| ((a - b).abs() / a.abs().max(b.abs()), index + 1));
    // What is not a number is further than any.
    apart.reduce(|worst, next| match worst.0.is_nan() || next.0 <= worst.0 {
        true => worst,
        false => next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_furthest_step_is_named() {
        assert_eq!(
            furthest(&[2.0, 1.0, 4.0], &[2.0, 1.0, 3.0]),
            Some((0.25, 3))
        );
        assert_eq!(furthest(&[2.0], &[2.0, 1.0]), None);
        assert_eq!(furthest(&[], &[]), None);
        let (apart, step) = furthest(&[1.0, f64::NAN, 9.0], &[1.0, 1.0, 1.0]).unwrap();
        assert!(apart.is_nan() && step == 2, "{apart} {step}");
    }
}
