//! What a training step does outside of the stages.

use burn::module::Module;
use burn::prelude::*;
use everburn_distributed::Synchronization;
use everburn_nn::{Activation, AnyActivation};
use everburn_pipeline::PipelinePass;
use everburn_schedules::{Action, Span};

use crate::error::TrainError;
use crate::metrics::rank_times::PassTimes;
use crate::metrics::sums::MetricSums;
use crate::model::objective::Objective;

/// What happens in a step outside of the stages.
pub(super) struct TrainingPass<'a, M, O: Objective> {
    pub(super) model: &'a M,
    pub(super) step: &'a Synchronization,
    /// Whether gradients leave during the last backward pass.
    pub(super) overlap: bool,
    /// By micro-batch.
    pub(super) weights: Vec<usize>,
    pub(super) inputs: Vec<Option<O::Input>>,
    pub(super) targets: Vec<Option<O::Targets>>,
    pub(super) sums: Result<MetricSums, TrainError>,
}

impl<M, O> PipelinePass<M> for TrainingPass<'_, M, O>
where
    M: Module,
    O: Objective<Input: Activation, Output: Activation>,
{
    fn model(&mut self, micro_batch: usize) -> M {
        let weight = self.weights[micro_batch];
        if self.overlap && micro_batch + 1 == self.weights.len() {
            self.step.with_hooks(self.model, weight)
        } else {
            self.step.with_hooks_no_sync(self.model, weight)
        }
    }

    fn input(&mut self, micro_batch: usize) -> Box<dyn AnyActivation> {
        let input = self.inputs[micro_batch].take();
        Box::new(input.expect("the first stage takes each micro-batch once"))
    }

    fn loss(&mut self, micro_batch: usize, output: Box<dyn AnyActivation>) -> Tensor<1> {
        let targets = self.targets[micro_batch].take();
        let targets = targets.expect("the last stage yields each micro-batch once");
        let loss = O::loss(output_of::<O>(output), targets);
        let report = loss.report().sums();
        let report = report.map_err(|error| TrainError::Device(error.to_string()));
        match (&mut self.sums, report) {
            (Ok(sums), Ok(part)) => *sums += part,
            (sums @ Ok(_), Err(error)) => *sums = Err(error),
            (Err(_), _) => {}
        }
        loss.mean
    }
}

/// What the last block has yielded.
pub(super) fn output_of<O: Objective<Output: Activation>>(
    output: Box<dyn AnyActivation>,
) -> O::Output {
    let output = output.into_any().downcast::<O::Output>();
    *output.expect("the blocks of the model end with the objective's output")
}

/// What a rank's passes took; between two of them it waits for other stages.
pub(super) fn pass_times(spans: &[Span]) -> PassTimes {
    let (mut times, mut ended) = (PassTimes::default(), 0.0);
    for span in spans {
        times.waited += (span.start - ended).max(0.0);
        ended = span.end;
        match span.action {
            Action::Forward { .. } => times.forward += span.seconds(),
            _ => times.backward += span.seconds(),
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_two_passes_is_waiting() {
        let (micro_batch, stage) = (0, 0);
        let spans = [
            (Action::Forward { micro_batch, stage }, 0.5, 1.0),
            (Action::Backward { micro_batch, stage }, 3.0, 4.5),
        ];
        let times = pass_times(&spans.map(|(action, start, end)| Span { action, start, end }));
        let (forward, backward, waited) = (0.5, 1.5, 2.5);
        assert_eq!(
            times,
            PassTimes {
                forward,
                backward,
                waited,
                ..PassTimes::default()
            }
        );
        assert_eq!(pass_times(&[]), PassTimes::default());
    }
}
