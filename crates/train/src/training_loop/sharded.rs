//! Steps of ranks that keep a part each of optimizer state, gradients and parameters.

use std::time::Duration;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn_train::TrainStep;
use everburn_distributed::{
    Ddp, GradientShards, HeldBytes, ParameterShards, ShardStage, ShareOfBatch, SyncedGradients,
    all_gather_object,
};
use everburn_profile::Phase;
use everburn_record::ShardingReport;

use super::RankLoop;
use super::gradients::timed_pass;
use super::pending_metrics::LocalOutput;
use crate::checkpoint::optimizer_states::{self, Shapes};
use crate::error::TrainError;
use crate::metrics::rank_times::PassTimes;
use crate::model::erased::{AnyBatch, AnyModel};

/// The tag of messages with shards of an optimizer's state.
const STATES: u64 = 1 << 57;

/// A step's mean gradients, what this rank has found in it, and how long its passes took.
type PassesOutput = (SyncedGradients, LocalOutput, PassTimes);

impl RankLoop {
    /// Leaves this rank its shards, where that is asked for: of the parameters, and of the optimizer's state
    /// that a checkpoint had. All ranks call it.
    pub(super) fn begin_sharding(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
    ) -> Result<AnyModel, TrainError> {
        let config = &self.setup.config;
        let Some(stage) = config.ddp.shard else {
            return Ok(model);
        };
        let offload = config.offload_optimizer.then(Device::flex);
        let (shards, model) = ParameterShards::new(model, ddp, offload)?;
        tracing::debug!("each rank keeps a part of: {stage}");
        if self.outcome.step > 0 {
            let whole = self.setup.state.optimizer_bytes()?;
            let local = optimizer_states::local_shards_of(whole, &shapes(ddp), &shards)?;
            self.setup.state.load_optimizer(local)?;
        }
        self.shards = Some(shards);
        Ok(model)
    }

    /// The model with its parameters, there or on their way, where each rank keeps a part of them. All ranks
    /// call it.
    pub(super) fn open(&mut self, model: AnyModel) -> Result<AnyModel, TrainError> {
        match &mut self.shards {
            Some(shards) => Ok(shards.open(model)?),
            None => Ok(model),
        }
    }

    /// The model as a step's passes need it: with its parameters, unless these are gathered as they are asked for.
    pub(super) fn before_passes(&mut self, model: AnyModel) -> Result<AnyModel, TrainError> {
        match &mut self.shards {
            Some(shards) if shards.stage().shards_parameters() => Ok(shards.close(model)),
            _ => self.open(model),
        }
    }

    /// Whether no rank has all gradients.
    pub(super) fn shards_gradients(&self) -> bool {
        let stage = self.setup.config.ddp.shard;
        stage.is_some_and(ShardStage::shards_gradients)
    }

    /// Whether no rank has all parameters.
    pub(super) fn shards_parameters(&self) -> bool {
        let stage = self.setup.config.ddp.shard;
        stage.is_some_and(ShardStage::shards_parameters)
    }

    /// As [`forward_and_backward`](Self::forward_and_backward), of which this rank is given its shards: each
    /// micro-batch's gradients leave at once, so that no rank ever holds all of them.
    pub(super) fn forward_and_backward_sharded(
        &mut self,
        model: &AnyModel,
        share: ShareOfBatch<AnyBatch>,
        ddp: &Ddp,
    ) -> Result<PassesOutput, TrainError> {
        let mut found = self.no_output();
        let mut times = PassTimes::default();
        let mut gradients = GradientShards::default();
        let checkpointing = self.setup.config.activation_checkpointing;
        let twice = checkpointing.blocks_a_segment().is_some();
        let mut parts = share.micro_batches.into_iter();
        for _ in 0..share.rounds.max(1) {
            let part = parts.next();
            let step = ddp.begin(part.as_ref().map_or(0, |part| part.weight))?;
            let sharded = self.shards.as_ref().ok_or_else(not_begun)?.pass(twice)?;
            let pass = || match part {
                None => self.take_part_without_samples(model, 1, || match &sharded {
                    Some(sharded) => step.with_hooks_stand_in_sharded(model, sharded),
                    None => step.with_hooks_stand_in(model),
                }),
                Some(part) => {
                    let watched = match &sharded {
                        Some(sharded) => step.with_hooks_sharded(model, part.weight, sharded),
                        None => step.with_hooks(model, part.weight),
                    };
                    let passed = self.profile_pass(&mut times, |times| {
                        timed_pass(&watched, part, times, &mut found)
                    });
                    passed.map(drop)
                }
            };
            let passed = match &sharded {
                Some(sharded) => sharded.run(pass),
                None => pass(),
            };
            self.profile(Phase::Exchange);
            // What is left of the parameters goes to the other ranks only.
            drop(sharded);
            let passed = match &self.shards {
                Some(shards) => passed.and_then(|()| Ok(shards.check()?)),
                None => passed,
            };
            if let Err(error) = passed {
                step.give_up(&error.to_string());
                return Err(error);
            }
            gradients.add(step.finish_sharded()?);
        }
        let shards = self.shards.as_mut().ok_or_else(not_begun)?;
        Ok((shards.average(gradients)?, found, times))
    }

    /// What the optimizer makes of `model` with the mean gradients of a step. Where each rank keeps a part, its
    /// shards are updated, and the others' are on their way.
    pub(super) fn learn(
        &mut self,
        model: AnyModel,
        mut gradients: GradientsParams,
        rate: ModuleLearningRate,
        ddp: &Ddp,
    ) -> Result<AnyModel, TrainError> {
        let shards_gradients = self.shards_gradients();
        let optimizer = &mut self.setup.state.optimizer;
        let Some(shards) = &mut self.shards else {
            return Ok(ddp.tie(model.optimize(optimizer, rate, gradients)));
        };
        if !shards_gradients {
            gradients = shards.shard_gradients(&model, gradients)?;
        }
        let model = shards.update(model, gradients, |parameters, gradients| {
            optimizer.step(rate, parameters, gradients)
        })?;
        Ok(model)
    }

    /// How long the training thread has stood still for parameters since this was last asked.
    pub(super) fn waited_for_parameters(&self) -> Duration {
        let shards = self.shards.as_ref();
        shards.map_or(Duration::ZERO, ParameterShards::take_waited)
    }

    /// The full state of the optimizer on rank 0, from the shards of all ranks; nothing on the others.
    pub(super) fn gather_optimizer_state(&self) -> Result<Option<Vec<u8>>, TrainError> {
        let Some(shards) = &self.shards else {
            return Ok(None);
        };
        // Each rank's process has drawn other identities; their order is the same.
        let numbered = shards.ddp().parameters().iter().map(|entry| entry.id.val());
        let numbers = numbered.clone().zip(0..).collect();
        let own = optimizer_states::renamed(self.setup.state.optimizer_bytes()?, &numbers)?;
        let group = &self.setup.group;
        if group.rank() > 0 {
            group.send(own, 0, STATES).wait()?;
            return Ok(Some(Vec::new()));
        }
        let mut parts = vec![own];
        for rank in 1..group.world_size() {
            parts.push(group.recv::<u8>(rank, STATES).wait()?);
        }
        let shapes = shards
            .ddp()
            .parameters()
            .iter()
            .map(|entry| entry.shape.clone());
        let whole = optimizer_states::full_state_of(parts, &(0..).zip(shapes).collect())?;
        let identities = (0..).zip(numbered).collect();
        Ok(Some(optimizer_states::renamed(whole, &identities)?))
    }

    /// The model with all its parameters, at the end; what each rank has held goes into the report. All ranks
    /// call it.
    pub(super) fn end_sharding(&mut self, model: AnyModel) -> Result<AnyModel, TrainError> {
        let Some(mut shards) = self.shards.take() else {
            return Ok(model);
        };
        let model = shards.settle(model)?;
        let optimizer = self.setup.state.optimizer_bytes()?;
        let held = HeldBytes {
            optimizer: optimizer_states::num_bytes(optimizer)?,
            ..shards.held()
        };
        let ranks = all_gather_object(&self.setup.group, &held)?;
        self.outcome.sharding = Some(ShardingReport {
            stage: shards.stage().to_string(),
            offloaded: self.setup.config.offload_optimizer,
            ranks,
        });
        Ok(model)
    }
}

/// The shapes of the parameters that `ddp` keeps equal.
fn shapes(ddp: &Ddp) -> Shapes {
    let parameters = ddp.parameters().iter();
    let shapes = parameters.map(|entry| (entry.id.val(), entry.shape.clone()));
    shapes.collect()
}

fn not_begun() -> TrainError {
    TrainError::Config("this rank has no shards of the model's parameters yet".to_string())
}
