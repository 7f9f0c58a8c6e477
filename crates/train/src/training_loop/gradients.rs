//! The gradients of a step, over all ranks.

use std::time::Instant;

use burn::optim::GradientsParams;
use burn_train::TrainStep;
use everburn_distributed::{Ddp, MicroBatch, ShareOfBatch, SyncedGradients};
use everburn_profile::Phase;

use super::RankLoop;
use super::pending_metrics::LocalOutput;
use crate::error::TrainError;
use crate::metrics::rank_times::PassTimes;
use crate::metrics::sums::MetricSums;
use crate::model::erased::{AnyBatch, AnyModel};
use crate::model::labels::checked;

/// What the samples of a step are for, as an error says it.
const TRAINING: &str = "the training";

impl RankLoop {
    /// The mean gradients over all ranks, what this rank has found, and how long its passes took.
    pub(super) fn forward_and_backward(
        &self,
        model: &AnyModel,
        share: ShareOfBatch<AnyBatch>,
        ddp: &Ddp,
    ) -> Result<(SyncedGradients, LocalOutput, PassTimes), TrainError> {
        if let Some(over) = &self.setup.over {
            self.profile(Phase::Forward);
            let began = Instant::now();
            let max_norm = self.setup.config.ddp.max_gradient_norm;
            let (synced, sums, times) = over.step(model, share, ddp, max_norm.map(f64::from))?;
            self.profile_parts(began, &times);
            return Ok((synced, LocalOutput::Sums(sums), times));
        }
        let mut local = self.no_output();
        let mut times = PassTimes::default();
        let mut pass = |model: &AnyModel, part: MicroBatch<AnyBatch>| {
            self.profile_pass(&mut times, |times| {
                timed_pass(model, part, times, &mut local)
            })
        };
        let parts = share.micro_batches.len();
        let missing = share.rounds - parts;
        let overlap = self.setup.config.overlap && ddp.synchronizes_gradients();
        // All ranks go the same way, whose passes then exchange statistics in the same order.
        if share.rounds > 1 || overlap {
            let step = ddp.begin(share.weight)?;
            for (index, part) in share.micro_batches.into_iter().enumerate() {
                let watched = if overlap && index + 1 == parts {
                    step.with_hooks(model, part.weight)
                } else {
                    step.with_hooks_no_sync(model, part.weight)
                };
                if let Err(error) = pass(&watched, part) {
                    step.give_up(&error.to_string());
                    return Err(error);
                }
            }
            let stand_in = || step.with_hooks_stand_in(model);
            if let Err(error) = self.take_part_without_samples(model, missing, stand_in) {
                step.give_up(&error.to_string());
                return Err(error);
            }
            self.profile(Phase::Exchange);
            return Ok((step.finish(model)?, local, times));
        }
        let mut gradients = GradientsParams::new();
        for part in share.micro_batches {
            gradients = match ddp.probe() {
                None => pass(model, part)?,
                Some(probe) => {
                    pass(&probe.with_hooks(model), part)?;
                    probe.gradients(model)
                }
            };
        }
        let stand_in = || everburn_nn::without_samples(model.clone());
        self.take_part_without_samples(model, missing, stand_in)?;
        self.profile(Phase::Exchange);
        let synced = ddp.sync_gradients(model, gradients, share.weight)?;
        Ok((synced, local, times))
    }

    /// What passes have found before the first: read at once, or left on the device.
    pub(super) fn no_output(&self) -> LocalOutput {
        match self.defers_readback {
            true => LocalOutput::OnDevice(Vec::new()),
            false => LocalOutput::Sums(MetricSums::default()),
        }
    }

    /// Answers the other ranks' layers that compute over all ranks, for as many micro-batches as
    /// they have more than this rank.
    pub(super) fn take_part_without_samples(
        &self,
        model: &AnyModel,
        rounds: usize,
        stand_in: impl Fn() -> AnyModel,
    ) -> Result<(), TrainError> {
        if rounds == 0 || !everburn_nn::spans_ranks(model) {
            return Ok(());
        }
        for _ in 0..rounds {
            let batch = self.setup.train.stand_in();
            let batch = batch.map_err(|error| TrainError::Data(error.to_string()))?;
            drop(TrainStep::step(&stand_in(), batch));
        }
        Ok(())
    }
}

/// A pass forward and backward: its gradients; what it has found and its times are added to those before it. Where sums stay
/// on the device, its time is how long the host took to ask for it. Labels on a GPU are not looked at then: the warm-up has done
/// so for the first batch, and to wait for each would hold the GPU up.
pub(super) fn timed_pass(
    model: &AnyModel,
    part: MicroBatch<AnyBatch>,
    times: &mut PassTimes,
    found: &mut LocalOutput,
) -> Result<GradientsParams, TrainError> {
    let start = Instant::now();
    let reads = matches!(found, LocalOutput::Sums(_));
    let output = checked(reads, &part.indices, TRAINING, || {
        TrainStep::step(model, part.batch)
    })?;
    output.item.require_samples(part.samples)?;
    // What the device has yet to compute is waited for where the sums are read.
    let sums = reads.then(|| output.item.sums());
    let passed = start.elapsed().as_secs_f64();
    *times += PassTimes::of_pass(passed, output.item.forward());
    match (found, sums) {
        (LocalOutput::Sums(all), Some(sums)) => {
            *all += sums.map_err(|error| TrainError::Device(error.to_string()))?;
        }
        (LocalOutput::OnDevice(outputs), _) => outputs.push(output.item),
        (LocalOutput::Sums(_), None) => {}
    }
    Ok(output.grads)
}
