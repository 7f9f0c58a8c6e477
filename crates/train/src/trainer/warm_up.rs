//! Compiling and tuning before the training.
//!
//! A GPU's kernels are compiled, and the fastest of several ways to do a thing is measured, when a shape is first
//! met. That takes seconds to minutes, in which a dashboard would be black, and ranks that do it at the same time
//! measure each other. So each shape that the training will meet is run once before: on the first rank of each
//! machine while the others wait, then on those, which find what it has kept. Nothing is learnt, and no random
//! number of the training is used up: weights are drawn before, and each step seeds the generator.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn_train::{InferenceStep, TrainStep};
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Buffers, ShareOfBatch, is_gpu};
use everburn_record::units::counted;

use super::{Trainer, TrainingData};

use crate::device::kernels::LaunchCount;
use crate::error::TrainError;
use crate::model::draw::draw_parameters;
use crate::model::erased::{AnyBatch, AnyData, AnyLoader, AnyModel, Trainable, erase_data};
use crate::model::labels::checked;

/// How long other ranks wait for the one that compiles and tunes: a large model takes minutes.
const PATIENCE: Duration = Duration::from_secs(1800);

/// How often it is said that it still continues.
const INTERVAL: Duration = Duration::from_secs(5);

/// What a run of all shapes took.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::WarmUp;
///
/// let warm_up = WarmUp { seconds: 12.34, kernels: 57, shapes: 4 };
/// assert_eq!(warm_up.to_string(), "57 kernels for 4 batch shapes, ready after 12.3 s");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmUp {
    /// The time.
    pub seconds: f64,
    /// How many kinds of kernels were launched.
    pub kernels: usize,
    /// How many shapes of batches there were, forward and backward or forward only.
    pub shapes: usize,
}

impl std::fmt::Display for WarmUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} for {}, ready after {:.1} s",
            counted(self.kernels, "kernel"),
            counted(self.shapes, "batch shape"),
            self.seconds
        )
    }
}

impl Trainer {
    /// Runs each shape of batch once that a training of `model` on `data` would meet on this rank, so that the
    /// kernels for them are compiled, tuned and kept ([`keep_kernels`](crate::keep_kernels)). `model` learns
    /// nothing. Speaks to no other rank.
    ///
    /// # Errors
    /// [`TrainError`] if a batch cannot be read or a step fails.
    pub fn warm_up<M, I>(
        &self,
        model: M,
        data: &TrainingData<I, M::Batch>,
    ) -> Result<WarmUp, TrainError>
    where
        M: Trainable,
        I: Send + Sync + Clone + 'static,
    {
        self.warm_up_alone(AnyModel::new(model), &erase_data(data))
    }

    fn warm_up_alone(&self, model: AnyModel, data: &AnyData) -> Result<WarmUp, TrainError> {
        self.config.validate(self.group.world_size())?;
        let (train, validation) = self.split(data, &self.group)?;
        let inferred = self.inferred(validation.as_ref(), data)?;
        self.run_shapes(model, &train, &inferred)
            .map(|(_, warm_up)| warm_up)
    }

    /// The same before a training, where devices need it, on all ranks at once.
    pub(super) fn warm_up_together(
        &self,
        model: AnyModel,
        train: &AnyLoader,
        validation: Option<&AnyLoader>,
        data: &AnyData,
    ) -> Result<AnyModel, TrainError> {
        let own = self.warm_up.unwrap_or_else(|| is_gpu(&self.device));
        if !wanted_by_any(own, &self.group)? {
            return Ok(model);
        }
        let model = match own {
            true => {
                let inferred = self.inferred(validation, data)?;
                self.run_shapes(model, train, &inferred)?.0
            }
            false => model,
        };
        // What ranks wait for next has a deadline, and compiling may take longer.
        self.group.barrier().wait_within(PATIENCE)?;
        Ok(model)
    }

    /// What the model is only run forward on: the validation set, and the test set at the end.
    fn inferred(
        &self,
        validation: Option<&AnyLoader>,
        data: &AnyData,
    ) -> Result<Vec<AnyLoader>, TrainError> {
        let test = match data.test.len() {
            0 => None,
            _ => Some(self.ordered_loader(data.test.clone(), data, &self.group)?),
        };
        Ok(validation.cloned().into_iter().chain(test).collect())
    }

    /// Says why the first steps take long, where they are not made ready.
    pub(super) fn announce_kernels(&self) {
        if is_gpu(&self.device) {
            self.display().announce(&format!(
                "kernels are compiled and tuned in the first steps ({})",
                self.kernels
            ));
        }
    }

    fn run_shapes(
        &self,
        model: AnyModel,
        train: &AnyLoader,
        inferred: &[AnyLoader],
    ) -> Result<(AnyModel, WarmUp), TrainError> {
        let start = Instant::now();
        let display = self.display();
        display.announce(&format!(
            "compiling and tuning kernels for {} ({})",
            self.model_name, self.kernels
        ));
        let count = LaunchCount::begin();
        let telling = || {
            let seconds = start.elapsed().as_secs();
            let kinds = count.kinds();
            display.announce(&format!(
                "still compiling and tuning: {} so far, {seconds} s",
                counted(kinds, "kernel")
            ));
        };
        let compute = self.config.precision.compute_type();
        let run = || self.run_each_shape_once(model, train, inferred);
        let run = || everburn_nn::autocast(compute, run);
        let (model, shapes) = while_telling(run, telling)?;
        let warm_up = WarmUp {
            seconds: start.elapsed().as_secs_f64(),
            kernels: count.kinds(),
            shapes,
        };
        display.announce(&warm_up.to_string());
        Ok((model, warm_up))
    }

    fn run_each_shape_once(
        &self,
        model: AnyModel,
        train: &AnyLoader,
        inferred: &[AnyLoader],
    ) -> Result<(AnyModel, usize), TrainError> {
        let device_error =
            |error: burn::tensor::TensorReadError| TrainError::Device(error.to_string());
        // Drawn now, on the model's device: a fork of weights that are still to be drawn would draw its own.
        draw_parameters(&model);
        let checkpointing = self.config.activation_checkpointing;
        let device = checkpointing.autodiff(self.device.clone());
        let before = Buffers::read(&model)?;
        let trained = checkpointing.prepare(model.clone().train().fork(&device));
        let rate = self.config.optimizer.learning_rate;
        let (mut optimizer, _) = self.optimizer(&model)?;
        let mut shapes = 0;
        let mut sizes = BTreeSet::new();
        for part in first_and_last(train)? {
            if sizes.insert(part.samples) {
                let output = checked(true, &part.indices, "the training", || {
                    TrainStep::step(&trained, part.batch)
                })?;
                let learnt = trained
                    .clone()
                    .optimize(&mut optimizer, rate.into(), output.grads);
                // Waits until the device has done it.
                output.item.sums().map_err(device_error)?;
                drop(learnt);
            }
        }
        shapes += sizes.len();
        let valid = trained.valid();
        let mut sizes = BTreeSet::new();
        for loader in inferred {
            for part in first_and_last(loader)? {
                if sizes.insert(part.samples) {
                    let report = checked(true, &part.indices, "an evaluation", || {
                        InferenceStep::step(&valid, part.batch)
                    })?;
                    report.sums().map_err(device_error)?;
                }
            }
        }
        shapes += sizes.len();
        // What a copy has seen, the original's statistics have seen, too.
        Ok((before.write(model), shapes))
    }
}

/// All ranks do the same, or some would wait for others that never come.
fn wanted_by_any(own: bool, group: &ProcessGroup) -> Result<bool, TrainError> {
    if group.world_size() == 1 {
        return Ok(own);
    }
    let all = group.all_gather(vec![u8::from(own)]).wait()?;
    Ok(all.iter().any(|wanted| wanted == &[1]))
}

/// The micro-batches of the first and of the last share of an epoch: the last one is smaller, if any is.
fn first_and_last(
    loader: &AnyLoader,
) -> Result<Vec<everburn_distributed::MicroBatch<AnyBatch>>, TrainError> {
    let batches = loader.sampler().num_batches();
    let last = (batches > 1).then(|| batches - 1);
    let mut parts = Vec::new();
    for skipped in [Some(0), last].into_iter().flatten() {
        let share = loader.epoch(1).behind(skipped).next().transpose();
        let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
        parts.extend(
            share
                .into_iter()
                .flat_map(|share: ShareOfBatch<AnyBatch>| share.micro_batches),
        );
    }
    Ok(parts)
}

/// Runs `work` on this thread, and `tell` on another one every few seconds meanwhile.
fn while_telling<T>(work: impl FnOnce() -> T, tell: impl Fn() + Sync) -> T {
    let (done, waiting) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let tell = &tell;
        scope.spawn(move || {
            while waiting.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                tell();
            }
        });
        let result = work();
        drop(done);
        result
    })
}
