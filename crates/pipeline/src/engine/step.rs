//! The actions of one step on one rank.

use std::collections::HashMap;
use std::time::Instant;

use burn::module::Module;
use burn::prelude::*;
use everburn_collectives::group::Work;
use everburn_nn::split_backward::{self, WeightBackward};
use everburn_nn::{AnyActivation, Blocks, Randomness, checkpointed_run};
use everburn_schedules::{Action, Carried, Schedule};

use super::{Pipeline, PipelinePass, Values, received, values_of};
use crate::error::PipelineError;
use crate::message::{decode, encode};

/// The state of a micro-batch in a stage between its forward and its backward pass.
struct InFlightMicroBatch {
    input: Box<dyn AnyActivation>,
    result: Outcome,
    /// The deferred gradients of weights, if the schedule splits the backward pass.
    weight_backward: Option<WeightBackward>,
}

enum Outcome {
    /// Of a stage that is not the last.
    Output(Box<dyn AnyActivation>),
    Loss(Box<Tensor<1>>),
}

/// A step under way.
pub(super) struct Step<'a, M, I, O> {
    pipeline: &'a Pipeline,
    schedule: &'a Schedule,
    blocks: &'a Blocks<M, I, O>,
    device: &'a Device,
    /// By micro-batch.
    pub(super) models: HashMap<usize, M>,
    /// By stage and micro-batch.
    in_flight: HashMap<(usize, usize), InFlightMicroBatch>,
    /// By stage and micro-batch: gradients of weights that are still to be computed.
    weights: HashMap<(usize, usize), WeightBackward>,
    /// What goes from a stage of this rank to another one of its own.
    here: HashMap<(Carried, usize, usize), Values>,
    pub(super) sends: Vec<Work<()>>,
    /// When the present action had all it needed.
    pub(super) started: f64,
    pub(super) clock: Instant,
}

impl<'a, M: Module + 'static, I, O> Step<'a, M, I, O> {
    pub(super) fn new(
        pipeline: &'a Pipeline,
        schedule: &'a Schedule,
        blocks: &'a Blocks<M, I, O>,
        device: &'a Device,
    ) -> Self {
        Self {
            pipeline,
            schedule,
            blocks,
            device,
            models: HashMap::new(),
            in_flight: HashMap::new(),
            weights: HashMap::new(),
            here: HashMap::new(),
            sends: Vec::new(),
            started: 0.0,
            clock: Instant::now(),
        }
    }

    pub(super) fn act(
        &mut self,
        action: Action,
        pass: &mut impl PipelinePass<M>,
    ) -> Result<(), PipelineError> {
        let (stage, micro_batch) = (action.stage(), action.micro_batch());
        match action {
            Action::Forward { .. } => self.forward(action, stage, micro_batch, pass),
            Action::Backward { .. } | Action::BackwardInput { .. } => {
                self.backward(action, stage, micro_batch)
            }
            Action::BackwardWeight { .. } => {
                self.begin();
                match self.weights.remove(&(stage, micro_batch)) {
                    None => Ok(()),
                    Some(weight_backward) => weight_backward.run().map(drop).map_err(|error| {
                        let reason = error.to_string();
                        PipelineError::Pass { action, reason }
                    }),
                }
            }
        }
    }

    fn begin(&mut self) {
        self.started = self.clock.elapsed().as_secs_f64();
    }

    fn forward(
        &mut self,
        action: Action,
        stage: usize,
        micro_batch: usize,
        pass: &mut impl PipelinePass<M>,
    ) -> Result<(), PipelineError> {
        let input = if stage == 0 {
            pass.input(micro_batch)
        } else {
            let values = self.receive(action, Carried::Activation, stage - 1)?;
            let from = self.pipeline.stages.rank_of(stage - 1);
            self.pipeline
                .entering(self.blocks, stage, from, micro_batch, values, self.device)?
        };
        self.begin();
        let model = self.models.entry(micro_batch);
        let model = model.or_insert_with(|| pass.model(micro_batch));
        let range = self.pipeline.stages.blocks(stage);
        let taken = input.boxed_clone();
        let run = || match self.pipeline.segment {
            None => self.blocks.run(model, range, taken),
            Some(every) => {
                let drawn = Randomness::Replayed;
                checkpointed_run(self.blocks, model, range, taken, every, drawn)
            }
        };
        let (output, weight_backward) = if self.pipeline.kind.splits_backward() {
            let (output, weight_backward) = split_backward::record(run);
            (output, Some(weight_backward))
        } else {
            (run(), None)
        };
        let result = if stage + 1 == self.pipeline.stages.len() {
            Outcome::Loss(Box::new(pass.loss(micro_batch, output)))
        } else {
            let values = values_of(&*output, action)?;
            self.send(action, Carried::Activation, values)?;
            Outcome::Output(output)
        };
        let flight = InFlightMicroBatch {
            input,
            result,
            weight_backward,
        };
        self.in_flight.insert((stage, micro_batch), flight);
        Ok(())
    }

    fn backward(
        &mut self,
        action: Action,
        stage: usize,
        micro_batch: usize,
    ) -> Result<(), PipelineError> {
        let tensor = |reason| PipelineError::Tensor { action, reason };
        let flight = self.in_flight.remove(&(stage, micro_batch));
        let flight = flight.ok_or(PipelineError::NoGradient { action })?;
        let InFlightMicroBatch {
            input,
            result,
            weight_backward,
        } = flight;
        let seed = match result {
            Outcome::Loss(loss) => {
                self.begin();
                *loss
            }
            Outcome::Output(output) => {
                let values = self.receive(action, Carried::Gradient, stage + 1)?;
                self.begin();
                let seed = output.seed(values).map_err(tensor)?;
                seed.ok_or(PipelineError::NoGradient { action })?
            }
        };
        let gradients = seed.backward();
        if stage > 0 {
            let values = input.gradients(&gradients).map_err(tensor)?;
            self.send(action, Carried::Gradient, values)?;
        }
        if let Some(weight_backward) = weight_backward {
            self.weights.insert((stage, micro_batch), weight_backward);
        }
        Ok(())
    }

    fn receive(
        &mut self,
        action: Action,
        carried: Carried,
        from_stage: usize,
    ) -> Result<Values, PipelineError> {
        let micro_batch = action.micro_batch();
        if let Some(values) = self.here.remove(&(carried, from_stage, micro_batch)) {
            return Ok(values);
        }
        let Some(expected) = self.schedule.receives(action) else {
            let reason = "the schedule has no sender for it".to_string();
            let rank = self.pipeline.group.rank();
            return Err(received(action.stage(), rank, micro_batch, reason));
        };
        let from_rank = expected.from_rank;
        let message = self.pipeline.group.recv::<u8>(from_rank, expected.tag());
        let message = message.wait()?;
        decode(message).map_err(|reason| received(action.stage(), from_rank, micro_batch, reason))
    }

    fn send(
        &mut self,
        action: Action,
        carried: Carried,
        values: Values,
    ) -> Result<(), PipelineError> {
        let (stage, micro_batch) = (action.stage(), action.micro_batch());
        let Some(message) = self.schedule.sends(action) else {
            self.here.insert((carried, stage, micro_batch), values);
            return Ok(());
        };
        let bytes = encode(&values).map_err(|reason| PipelineError::Pass { action, reason })?;
        let group = &self.pipeline.group;
        self.sends
            .push(group.send(bytes, message.to_rank, message.tag()));
        Ok(())
    }
}
