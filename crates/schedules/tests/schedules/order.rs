//! Which schedules there are, and which there cannot be.

use everburn_schedules::{
    Action, Costs, Schedule, ScheduleError, ScheduleKind, Sends, SimulationError, StageCosts,
    simulate,
};
use proptest::prelude::*;

fn lists_of(schedule: &Schedule) -> Vec<Vec<Action>> {
    let ranks = 0..schedule.ranks();
    ranks.map(|rank| schedule.actions(rank).to_vec()).collect()
}

fn kinds() -> impl Strategy<Value = ScheduleKind> {
    prop::sample::select(ScheduleKind::ALL.to_vec())
}

proptest! {
    #[test]
    fn every_schedule_is_whole_and_has_an_end(
        kind in kinds(),
        ranks in 1_usize..12,
        micro_batches in 1_usize..50,
        chunks in 1_usize..6,
        seconds in prop::collection::vec(0.0_f64..3.0, 4),
    ) {
        let chunks = if kind.has_chunks() { chunks } else { 1 };
        let schedule = Schedule::new(kind, ranks, micro_batches, chunks).unwrap();
        // The lists stand the checks that lists of your own have to stand.
        let again = Schedule::from_actions(micro_batches, chunks, lists_of(&schedule)).unwrap();
        prop_assert_eq!(again.kind(), None);
        let stage = StageCosts {
            backward_input: seconds[1],
            backward_weight: seconds[2],
            transfer: seconds[3],
            ..StageCosts::of_forward(seconds[0])
        };
        let costs = Costs { stages: vec![stage; ranks * chunks], sends: Sends::Buffered };
        let timeline = simulate(&schedule, &costs).unwrap();
        for rank in 0..ranks {
            let spans = timeline.spans(rank);
            let done: Vec<Action> = spans.iter().map(|span| span.action).collect();
            prop_assert_eq!(done.as_slice(), schedule.actions(rank));
            prop_assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(spans.iter().all(|span| span.end <= timeline.makespan()));
        }
    }

    #[test]
    fn a_list_of_which_something_is_taken_is_refused(
        kind in kinds(),
        ranks in 1_usize..5,
        micro_batches in 1_usize..7,
        taken in any::<prop::sample::Index>(),
    ) {
        let schedule = Schedule::new(kind, ranks, micro_batches, 1).unwrap();
        let mut lists = lists_of(&schedule);
        let rank = taken.index(ranks);
        let action = lists[rank].remove(taken.index(schedule.actions(rank).len()));
        let error = Schedule::from_actions(micro_batches, 1, lists).unwrap_err();
        let names_it = matches!(
            error,
            ScheduleError::Missing { rank: named, action: missing }
                if named == rank && missing == action
        );
        prop_assert!(names_it, "{}", error);
    }

    #[test]
    fn blocking_sends_end_or_name_a_circle(
        kind in kinds(),
        ranks in 1_usize..6,
        micro_batches in 1_usize..10,
        chunks in 1_usize..4,
    ) {
        let chunks = if kind.has_chunks() { chunks } else { 1 };
        let schedule = Schedule::new(kind, ranks, micro_batches, chunks).unwrap();
        let costs = Costs { sends: Sends::Blocking, ..Costs::equal(ranks * chunks) };
        match simulate(&schedule, &costs) {
            Ok(timeline) => prop_assert!(timeline.makespan() > 0.0),
            Err(SimulationError::Deadlock(deadlock)) => {
                let cycle = deadlock.cycle();
                prop_assert!(cycle.len() > 1);
                let next = cycle.iter().cycle().skip(1);
                prop_assert!(cycle.iter().zip(next).all(|(wait, next)| wait.partner() == next.rank));
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

#[test]
fn the_papers_order_of_interleaving() {
    // Narayanan et al. 2021, figure 4: four devices, eight micro-batches, two chunks.
    let schedule = Schedule::new(ScheduleKind::Interleaved1F1B, 4, 8, 2).unwrap();
    let shown: Vec<String> = schedule
        .actions(3)
        .iter()
        .take(12)
        .map(|action| {
            let letter = action.pass().letter();
            format!("{letter}{} {}", action.micro_batch(), action.stage())
        })
        .collect();
    let expected = [
        "F0 3", "F1 3", "F2 3", "F3 3", "F0 7", "B0 7", "F1 7", "B1 7", "F2 7", "B2 7", "F3 7",
        "B3 7",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let error = |ranks, micro_batches, chunks| {
        let kind = ScheduleKind::OneForwardOneBackward;
        let refused = Schedule::new(kind, ranks, micro_batches, chunks);
        refused.unwrap_err().to_string()
    };
    for (ranks, micro_batches, chunks, expected) in [
        (0, 8, 1, "a schedule needs at least one rank, not 0"),
        (4, 0, 1, "a schedule needs at least one micro-batch, not 0"),
        (4, 8, 0, "a schedule needs at least one chunk, not 0"),
        (
            4,
            8,
            2,
            "1f1b has one chunk per rank, not 2: use the schedule interleaved for more",
        ),
    ] {
        assert_eq!(error(ranks, micro_batches, chunks), expected);
    }
    assert_eq!(
        error(4, usize::MAX, 1),
        format!(
            "4 ranks of 1 chunks with {} micro-batches are more than 1048576 passes per step: use \
             fewer micro-batches",
            usize::MAX
        )
    );
}

fn made(lists: &[&[Action]]) -> Result<Schedule, String> {
    let lists = lists.iter().map(|list| list.to_vec()).collect();
    Schedule::from_actions(1, 1, lists).map_err(|error| error.to_string())
}

#[test]
fn lists_of_ones_own_are_checked() {
    let forward = |micro_batch, stage| Action::Forward { micro_batch, stage };
    let backward = |micro_batch, stage| Action::Backward { micro_batch, stage };
    let input = |micro_batch, stage| Action::BackwardInput { micro_batch, stage };
    let weight = |micro_batch, stage| Action::BackwardWeight { micro_batch, stage };
    let first = [forward(0, 0), backward(0, 0)];
    let halves = [forward(0, 1), input(0, 1), weight(0, 1)];
    assert!(made(&[&first, &halves]).is_ok());

    let error = |lists: &[&[Action]]| made(lists).unwrap_err();
    assert_eq!(
        error(&[&first, &[forward(0, 1), input(0, 1)]]),
        "rank 1 never executes the backward for weights of micro-batch 0 in stage 1"
    );
    assert_eq!(
        error(&[&first, &[forward(0, 1), input(0, 1), backward(0, 1)]]),
        "rank 1 executes the backward of micro-batch 0 in stage 1 twice"
    );
    assert_eq!(
        error(&[&[forward(0, 1)], &[forward(0, 0)]]),
        "rank 0 cannot do the forward of micro-batch 0 in stage 1: with 2 ranks, stage 1 belongs to \
         rank 1"
    );
    assert_eq!(
        error(&[&first, &[forward(3, 1)]]),
        "rank 1 cannot do the forward of micro-batch 3 in stage 1: there are 2 stages and 1 \
         micro-batches, counted from 0"
    );
}

#[test]
fn times_that_no_clock_shows_are_refused() {
    let schedule = Schedule::new(ScheduleKind::GPipe, 2, 2, 1).unwrap();
    for seconds in [-1.0, f64::NAN, f64::INFINITY] {
        let mut costs = Costs::equal(2);
        costs.stages[1].transfer = seconds;
        let error = simulate(&schedule, &costs).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("`transfer` of stage 1 is {seconds} s: it must be finite and not negative")
        );
    }
}
