//! What a rank of `bench pipeline` is to do, and what follows from the times of all ranks.

use std::path::PathBuf;

use everburn::schedules::{
    Costs, Pass, Schedule, ScheduleKind, Span, StageCosts, Timeline, simulate, theoretical_idle,
};
use everburn_record::statistics;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The steps that are wanted of a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(super) schedule: ScheduleKind,
    pub(super) micro_batches: usize,
    /// Stages of each rank.
    pub(super) chunks: usize,
    pub(super) layers: usize,
    /// The inputs and outputs of each layer.
    pub(super) width: usize,
    /// Rows of a micro-batch.
    pub(super) batch: usize,
    /// Steps that are measured.
    pub(super) steps: usize,
    /// Draw the step of median idleness into this file.
    pub(super) svg: Option<PathBuf>,
    /// Whether its memory counts, and its times do not.
    pub(super) is_for_memory: bool,
}

/// What rank 0 reports: medians over the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// From its start to the end of the last rank's last action.
    pub(super) milliseconds: f64,
    /// The share of a step for which a rank computes nothing, the mean over ranks.
    pub(super) idle: f64,
    /// What the formula says, for stages of equal cost.
    pub(super) theory: f64,
    /// What the simulation says, with the costs that were measured.
    pub(super) simulated: f64,
    pub(super) stages: Vec<StageMilliseconds>,
    /// By rank: the most memory of a step above what there was before it, in bytes.
    pub(super) bytes: Vec<f64>,
    /// By rank: the most micro-batches that the schedule keeps.
    pub(super) live: Vec<usize>,
}

/// What the passes of a micro-batch take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StageMilliseconds {
    forward: f64,
    /// Whole, where the schedule does not cut it in two.
    backward: f64,
    backward_weight: f64,
}

/// The middle of `values`; 0 of passes that the schedule does not have.
fn median(values: &[f64]) -> f64 {
    statistics::median(values).unwrap_or(0.0)
}

/// What follows from what each rank has told of each step.
pub(super) fn measured(
    order: &Order,
    schedule: &Schedule,
    by_rank: &[Vec<&[f64]>],
) -> Result<Step, Failure> {
    let ranks = schedule.ranks();
    let steps = (0..order.steps).map(|step| {
        let told = by_rank.iter().map(|steps| steps[step]).collect::<Vec<_>>();
        timeline(schedule, &told)
    });
    let mut steps = steps.collect::<Result<Vec<_>, _>>()?;
    steps.sort_by(|a, b| a.idle_share().total_cmp(&b.idle_share()));
    let over_steps =
        |what: &dyn Fn(&Timeline) -> f64| median(&steps.iter().map(what).collect::<Vec<_>>());
    let costs = Costs {
        stages: (0..schedule.stages())
            .map(|stage| stage_costs(&steps, schedule, stage))
            .collect(),
        ..Costs::equal(schedule.stages())
    };
    if let Some(file) = &order.svg {
        let drawing = steps[steps.len() / 2].to_svg();
        std::fs::write(file, drawing)
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", file.display())))?;
    }
    let stage = |costs: &StageCosts| StageMilliseconds {
        forward: 1e3 * costs.forward,
        backward: 1e3 * costs.backward_input,
        backward_weight: 1e3 * costs.backward_weight,
    };
    let (micro_batches, chunks) = (order.micro_batches, order.chunks);
    Ok(Step {
        milliseconds: 1e3 * over_steps(&Timeline::makespan),
        idle: over_steps(&Timeline::idle_share),
        theory: theoretical_idle(order.schedule, ranks, micro_batches, chunks),
        simulated: simulate(schedule, &costs)?.idle_share(),
        stages: costs.stages.iter().map(stage).collect(),
        bytes: by_rank
            .iter()
            .map(|steps| median(&steps.iter().map(|told| told[1]).collect::<Vec<_>>()))
            .collect(),
        live: (0..ranks).map(|rank| schedule.peak_live(rank)).collect(),
    })
}

/// A step, whose ranks' clocks begin when the first of them does.
fn timeline(schedule: &Schedule, told: &[&[f64]]) -> Result<Timeline, Failure> {
    let first = told
        .iter()
        .map(|told| told[0])
        .fold(f64::INFINITY, f64::min);
    let spans = told.iter().enumerate().map(|(rank, told)| {
        let late = told[0] - first;
        let times = told[2..].chunks_exact(2);
        let spans = schedule.actions(rank).iter().zip(times);
        let spans = spans.map(|(action, times)| Span {
            action: *action,
            start: late + times[0],
            end: late + times[1],
        });
        spans.collect()
    });
    Ok(Timeline::measured(schedule, spans.collect())?)
}

/// The medians of a stage's passes.
fn stage_costs(steps: &[Timeline], schedule: &Schedule, stage: usize) -> StageCosts {
    let rank = stage % schedule.ranks();
    let seconds = |passes: &[Pass]| {
        let spans = steps.iter().flat_map(|step| step.spans(rank));
        let spans = spans
            .filter(|span| span.action.stage() == stage && passes.contains(&span.action.pass()));
        median(&spans.map(Span::seconds).collect::<Vec<_>>())
    };
    StageCosts {
        backward_input: seconds(&[Pass::Backward, Pass::BackwardInput]),
        backward_weight: seconds(&[Pass::BackwardWeight]),
        ..StageCosts::of_forward(seconds(&[Pass::Forward]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two steps of GPipe over two ranks and one micro-batch; rank 1 begins 1 s after rank 0.
    #[test]
    fn ranks_are_brought_to_one_clock() {
        let schedule = Schedule::new(ScheduleKind::GPipe, 2, 1, 1).unwrap();
        let first: &[f64] = &[100.0, 8.0, 0.0, 2.0, 8.0, 12.0];
        let second: &[f64] = &[101.0, 4.0, 1.0, 3.0, 3.0, 7.0];
        let order = Order {
            schedule: ScheduleKind::GPipe,
            micro_batches: 1,
            chunks: 1,
            layers: 2,
            width: 1,
            batch: 1,
            steps: 2,
            svg: None,
            is_for_memory: false,
        };
        let by_rank = [vec![first, first], vec![second, second]];
        let measured = measured(&order, &schedule, &by_rank).unwrap();
        assert_eq!(measured.milliseconds, 12e3);
        assert_eq!((measured.idle, measured.theory), (0.5, 0.5));
        assert_eq!(measured.simulated, 0.5);
        assert_eq!(measured.bytes, [8.0, 4.0]);
        assert_eq!(measured.stages[1].backward, 4e3);
    }
}
