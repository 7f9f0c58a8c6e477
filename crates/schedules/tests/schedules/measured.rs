//! Timelines of steps that have really been run.

use everburn_schedules::{
    Action, Costs, Schedule, ScheduleKind, Span, Timeline, TimelineError, simulate,
};

fn schedule() -> Schedule {
    Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 3, 1).unwrap()
}

/// What two ranks would have measured, had they been as even as the simulation.
fn spans() -> Vec<Vec<Span>> {
    let timeline = simulate(&schedule(), &Costs::equal(2)).unwrap();
    (0..2).map(|rank| timeline.spans(rank).to_vec()).collect()
}

#[test]
fn measured_times_are_judged_and_drawn_as_simulated_ones() {
    let simulated = simulate(&schedule(), &Costs::equal(2)).unwrap();
    let measured = Timeline::measured(&schedule(), spans()).unwrap();
    assert_eq!(measured.idle_share(), simulated.idle_share());
    assert_eq!(measured.to_text(80), simulated.to_text(80));
    assert_eq!(measured.to_svg(), simulated.to_svg());
}

#[test]
fn times_of_another_schedule_are_refused() {
    let refused = |spans| {
        Timeline::measured(&schedule(), spans)
            .unwrap_err()
            .to_string()
    };
    let mut short = spans();
    short[1].pop();
    assert_eq!(
        refused(short),
        "action 5 of rank 1 is the backward of micro-batch 2 in stage 1, but the times have nothing"
    );
    let mut long = spans();
    let last = *long[0].last().unwrap();
    long[0].push(last);
    assert_eq!(
        refused(long),
        "action 6 of rank 0 is nothing, but the times have the backward of micro-batch 2 in stage 0"
    );
    let mut other = spans();
    other[0][0].action = Action::Forward {
        micro_batch: 1,
        stage: 0,
    };
    assert!(refused(other).starts_with("action 0 of rank 0 is the forward of micro-batch 0"));
}

#[test]
fn clocks_that_run_backwards_are_refused() {
    for (start, end) in [
        (1.5, 1.0),
        (0.5, 2.0),
        (f64::NAN, 2.0),
        (1.0, f64::INFINITY),
    ] {
        let mut spans = spans();
        (spans[0][1].start, spans[0][1].end) = (start, end);
        let error = Timeline::measured(&schedule(), spans).unwrap_err();
        let named = matches!(
            error,
            TimelineError::OutOfTime {
                rank: 0,
                position: 1,
                ..
            }
        );
        assert!(named, "{error}");
    }
}
