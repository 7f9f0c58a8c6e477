//! Running the actions of a schedule.

mod step;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::ProcessGroup;
use everburn_collectives::sync::lock;
use everburn_nn::{AnyActivation, Blocks};
use everburn_schedules::{Action, Schedule, ScheduleKind, Span};

use self::step::Step;
use crate::error::PipelineError;
use crate::message::{decode, encode};
use crate::stages::Stages;

/// Tags of messages that belong to no training step.
const INFERENCE: u64 = 1 << 60;

/// What happens in a step outside of the stages. Each method is called for the micro-batches whose
/// number it is given, on the ranks that need it. See the [crate's example](crate).
///
/// ```
/// # mod everburn { pub use everburn_pipeline as pipeline; }
/// # use burn::{nn::Linear, prelude::*};
/// # use everburn_nn::AnyActivation;
/// use everburn::pipeline::PipelinePass;
///
/// struct Pass(Linear, Tensor<2>);
/// impl PipelinePass<Linear> for Pass {
///     fn model(&mut self, _: usize) -> Linear { self.0.clone() }
///     fn input(&mut self, _: usize) -> Box<dyn AnyActivation> { Box::new(self.1.clone()) }
///     fn loss(&mut self, _: usize, output: Box<dyn AnyActivation>) -> Tensor<1> {
///         output.into_any().downcast::<Tensor<2>>().unwrap().mean()
///     }
/// }
/// ```
pub trait PipelinePass<M> {
    /// The model with which a micro-batch is run: `Synchronization::with_hooks_no_sync`, or `with_hooks` for the last
    /// micro-batch of the step. Called once for each, on every rank.
    fn model(&mut self, micro_batch: usize) -> M;

    /// What the first stage takes.
    fn input(&mut self, micro_batch: usize) -> Box<dyn AnyActivation>;

    /// The loss of the last stage's output, of which gradients are taken; shape `[1]`.
    fn loss(&mut self, micro_batch: usize, output: Box<dyn AnyActivation>) -> Tensor<1>;
}

/// One rank's end of a pipeline of stages. See the [crate's example](crate).
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_pipeline as pipeline; pub use everburn_schedules as schedules; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::pipeline::{Pipeline, Stages};
/// use everburn::schedules::ScheduleKind;
///
/// let alone = ProcessGroup::alone(GroupOptions::default());
/// let stages = Stages::even(4, 1, 1).unwrap();
/// let pipeline = Pipeline::new(alone, ScheduleKind::OneForwardOneBackward, stages)?;
/// assert_eq!(pipeline.stages().blocks(0), 0..4);
/// # Ok::<(), everburn_pipeline::PipelineError>(())
/// ```
#[derive(Debug)]
#[doc(alias = "PipelineStage")]
pub struct Pipeline {
    group: ProcessGroup,
    kind: ScheduleKind,
    stages: Stages,
    /// How many blocks the backward pass computes again together.
    segment: Option<NonZeroUsize>,
    /// By number of micro-batches.
    schedules: Mutex<HashMap<usize, Arc<Schedule>>>,
}

type Values = Vec<Option<TensorData>>;

impl Pipeline {
    /// The pipeline over the ranks of `group`, which runs steps by a schedule of this kind.
    ///
    /// # Errors
    /// [`PipelineError::Schedule`] if there is no such schedule for these stages.
    ///
    /// # Panics
    /// Panics if the stages were made for another number of ranks.
    pub fn new(
        group: ProcessGroup,
        kind: ScheduleKind,
        stages: Stages,
    ) -> Result<Self, PipelineError> {
        assert_eq!(
            group.world_size(),
            stages.ranks(),
            "the stages were made for another number of ranks"
        );
        let pipeline = Self {
            group,
            kind,
            stages,
            segment: None,
            schedules: Mutex::default(),
        };
        pipeline.schedule(1)?;
        Ok(pipeline)
    }

    /// The same pipeline, whose stages keep what goes from one segment of `every` blocks to the next of a
    /// micro-batch, and compute the segments again in its backward pass ([`checkpointed_run`](everburn_nn::checkpointed_run)).
    #[must_use]
    pub fn recomputing(self, every: Option<NonZeroUsize>) -> Self {
        Self {
            segment: every,
            ..self
        }
    }

    /// The ranks of the pipeline.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// Its stages.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// The schedule of a step of `micro_batches`.
    ///
    /// # Errors
    /// [`PipelineError::Schedule`] if there is none.
    pub fn schedule(&self, micro_batches: usize) -> Result<Arc<Schedule>, PipelineError> {
        let mut schedules = lock(&self.schedules);
        if let Some(schedule) = schedules.get(&micro_batches) {
            return Ok(schedule.clone());
        }
        let (ranks, chunks) = (self.stages.ranks(), self.stages.chunks());
        let schedule = Arc::new(Schedule::new(self.kind, ranks, micro_batches, chunks)?);
        schedules.insert(micro_batches, schedule.clone());
        Ok(schedule)
    }

    /// Runs a training step of `micro_batches`, forward and backward, and returns when this rank did
    /// what. All ranks of the pipeline call it with the same number.
    ///
    /// `device` is that of this rank's stages, with autodiff. The gradients of parameters go wherever
    /// the copies that [`PipelinePass::model`] gives send them.
    ///
    /// # Errors
    /// [`PipelineError`] if a collective fails, or what came from another stage does not fit.
    pub fn run<M: Module + 'static, I, O>(
        &self,
        blocks: &Blocks<M, I, O>,
        device: &Device,
        micro_batches: usize,
        pass: &mut impl PipelinePass<M>,
    ) -> Result<Vec<Span>, PipelineError> {
        let schedule = self.schedule(micro_batches)?;
        let actions = schedule.actions(self.group.rank());
        let mut left = vec![0; micro_batches];
        for action in actions {
            left[action.micro_batch()] += 1;
        }
        let mut step = Step::new(self, &schedule, blocks, device);
        let mut spans = Vec::with_capacity(actions.len());
        for action in actions {
            step.act(*action, pass)?;
            let end = step.clock.elapsed().as_secs_f64();
            spans.push(Span {
                action: *action,
                start: step.started,
                end,
            });
            let micro_batch = action.micro_batch();
            left[micro_batch] -= 1;
            if left[micro_batch] == 0 {
                step.models.remove(&micro_batch);
            }
        }
        for send in step.sends {
            send.wait()?;
        }
        Ok(spans)
    }

    /// Runs a batch forward only; the output, on the rank that has the last stage. All ranks of the
    /// pipeline call it.
    ///
    /// # Errors
    /// As [`Pipeline::run`].
    pub fn infer<M, I, O>(
        &self,
        blocks: &Blocks<M, I, O>,
        model: &M,
        device: &Device,
        input: impl FnOnce() -> Box<dyn AnyActivation>,
    ) -> Result<Option<Box<dyn AnyActivation>>, PipelineError> {
        let (rank, last) = (self.group.rank(), self.stages.len() - 1);
        let mut input = Some(input);
        let mut here: Option<Values> = None;
        let mut sends = Vec::new();
        let mut result = None;
        for stage in self.stages.stages_of(rank) {
            let action = Action::Forward {
                micro_batch: 0,
                stage,
            };
            let taken = match (stage, input.take()) {
                (0, Some(input)) => input(),
                _ => {
                    let from = self.stages.rank_of(stage - 1);
                    let values = match here.take() {
                        Some(values) => values,
                        None => {
                            let tag = INFERENCE | stage as u64;
                            let message = self.group.recv::<u8>(from, tag).wait()?;
                            let values = decode(message);
                            values.map_err(|reason| received(stage, from, 0, reason))?
                        }
                    };
                    self.entering(blocks, stage, from, 0, values, device)?
                }
            };
            let output = blocks.run(model, self.stages.blocks(stage), taken);
            if stage == last {
                result = Some(output);
                break;
            }
            let values = values_of(&*output, action)?;
            let to = self.stages.rank_of(stage + 1);
            if to == rank {
                here = Some(values);
            } else {
                let message = encode(&values);
                let message = message.map_err(|reason| PipelineError::Pass { action, reason })?;
                let tag = INFERENCE | (stage + 1) as u64;
                sends.push(self.group.send(message, to, tag));
            }
        }
        for send in sends {
            send.wait()?;
        }
        Ok(result)
    }

    /// What a stage takes, of the numbers that came.
    fn entering<M, I, O>(
        &self,
        blocks: &Blocks<M, I, O>,
        stage: usize,
        from: usize,
        micro_batch: usize,
        values: Values,
        device: &Device,
    ) -> Result<Box<dyn AnyActivation>, PipelineError> {
        let wrong = |reason: String| received(stage, from, micro_batch, reason);
        let values = values.into_iter().collect::<Option<Vec<_>>>();
        let values = values.ok_or_else(|| wrong("a tensor is missing".to_string()))?;
        let block = self.stages.blocks(stage).start;
        let entering = blocks.input_of(block, values, device);
        entering.map_err(|error| wrong(error.to_string()))
    }
}

fn received(stage: usize, from: usize, micro_batch: usize, reason: String) -> PipelineError {
    PipelineError::Received {
        stage,
        from,
        micro_batch,
        reason,
    }
}

fn values_of(output: &dyn AnyActivation, action: Action) -> Result<Values, PipelineError> {
    let values = output.values();
    let values = values.map_err(|reason| PipelineError::Tensor { action, reason })?;
    Ok(values.into_iter().map(Some).collect())
}
