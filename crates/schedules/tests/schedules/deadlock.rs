//! Orders that never end, and how they are told.

use everburn_schedules::{
    Action, Costs, Schedule, ScheduleError, ScheduleKind, Sends, SimulationError, simulate,
};

fn forward(micro_batch: usize, stage: usize) -> Action {
    Action::Forward { micro_batch, stage }
}

fn backward(micro_batch: usize, stage: usize) -> Action {
    Action::Backward { micro_batch, stage }
}

/// The first rank wants the first gradient before its second forward pass, the second rank the second
/// activation before its first backward pass; the third one is stuck after them.
fn crossed() -> Vec<Vec<Action>> {
    vec![
        vec![forward(0, 0), backward(0, 0), forward(1, 0), backward(1, 0)],
        vec![forward(0, 1), forward(1, 1), backward(0, 1), backward(1, 1)],
        vec![forward(0, 2), forward(1, 2), backward(0, 2), backward(1, 2)],
    ]
}

#[test]
fn a_schedule_of_ones_own_that_never_ends_is_refused() {
    let error = Schedule::from_actions(2, 1, crossed()).unwrap_err();
    insta::assert_snapshot!(error.to_string());
    let ScheduleError::Deadlock(deadlock) = error else {
        panic!("{error}");
    };
    let ranks: Vec<usize> = deadlock.cycle().iter().map(|wait| wait.rank).collect();
    assert_eq!(ranks, [0, 1]);
    assert_eq!(deadlock.others()[0].rank, 2);
}

#[test]
fn a_rank_that_waits_for_itself_is_told_of() {
    let lists = vec![vec![backward(0, 0), forward(0, 0)]];
    insta::assert_snapshot!(Schedule::from_actions(1, 1, lists).unwrap_err());
    // Two chunks on one rank, the second before the first.
    let lists = vec![vec![
        forward(0, 1),
        forward(0, 0),
        backward(0, 1),
        backward(0, 0),
    ]];
    insta::assert_snapshot!(Schedule::from_actions(1, 2, lists).unwrap_err());
    let lists = vec![vec![
        forward(0, 0),
        forward(0, 1),
        backward(0, 0),
        backward(0, 1),
    ]];
    insta::assert_snapshot!(Schedule::from_actions(1, 2, lists).unwrap_err());
}

#[test]
fn weights_before_inputs_are_told_of() {
    let (micro_batch, stage) = (0, 0);
    let weight = Action::BackwardWeight { micro_batch, stage };
    let input = Action::BackwardInput { micro_batch, stage };
    let lists = vec![vec![forward(0, 0), weight, input]];
    insta::assert_snapshot!(Schedule::from_actions(1, 1, lists).unwrap_err());
}

#[test]
fn blocking_sends_stop_1f1b_but_not_gpipe() {
    let simulated = |kind| {
        let schedule = Schedule::new(kind, 4, 8, 1).unwrap();
        let costs = Costs {
            sends: Sends::Blocking,
            ..Costs::equal(4)
        };
        simulate(&schedule, &costs)
    };
    let gpipe = simulated(ScheduleKind::GPipe).unwrap();
    assert_eq!(gpipe.makespan(), 33.0);
    let error = simulated(ScheduleKind::OneForwardOneBackward).unwrap_err();
    assert!(matches!(error, SimulationError::Deadlock(_)));
    insta::assert_snapshot!(error);
}
