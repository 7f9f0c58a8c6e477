//! Tests of schedules.

use everburn_tests::AssertContains;

use super::*;

fn rates(schedule: LrSchedule, numbers: ScheduleNumbers, steps: usize) -> Result<Vec<f64>, String> {
    let scheduler = init(numbers, schedule, steps);
    let mut scheduler = scheduler.map_err(|error| error.to_string())?;
    Ok((0..steps).map(|_| scheduler.step().base()).collect())
}

fn init(
    numbers: ScheduleNumbers,
    schedule: LrSchedule,
    steps: usize,
) -> Result<ModuleLrScheduler, TrainError> {
    initialised(&ModuleLrSchedulerConfig::new(
        numbers.config(schedule, 0.8, steps)?,
    ))
}

fn close(rates: &[f64], expected: &[f64]) {
    assert_eq!(rates.len(), expected.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
    assert!(
        rates.iter().zip(expected).all(near),
        "{rates:?}, not {expected:?}"
    );
}

#[test]
fn each_schedule_has_its_curve_behind_the_warm_up() {
    let none = ScheduleNumbers::default();
    let warm = ScheduleNumbers {
        warmup_steps: 3.0,
        ..none
    };
    close(&rates(LrSchedule::Constant, none, 3).unwrap(), &[0.8; 3]);
    let rise = [0.2, 0.4, 0.6];
    let all = |curve: &[f64]| [&rise, curve].concat();
    let constant = rates(LrSchedule::Constant, warm, 5).unwrap();
    close(&constant, &all(&[0.8, 0.8]));
    let share = ScheduleNumbers {
        warmup_steps: 0.3,
        ..none
    };
    let ten = rates(LrSchedule::Constant, share, 10).unwrap();
    close(&ten[..5], &all(&[0.8, 0.8]));
    // 0.3 steps are none.
    let small = ScheduleNumbers {
        warmup_steps: 0.1,
        ..none
    };
    assert_eq!(
        rates(LrSchedule::Cosine, small, 3),
        rates(LrSchedule::Cosine, none, 3)
    );
    let differ =
        |numbers: ScheduleNumbers, step, schedule| numbers.differ_after(step, schedule, [10, 20]);
    assert!(differ(share, 5, LrSchedule::Constant) && differ(share, 9, LrSchedule::Step));
    assert!(!differ(share, 6, LrSchedule::Constant) && !differ(warm, 1, LrSchedule::Constant));
    assert!(differ(warm, 9, LrSchedule::Cosine));
    let to = ScheduleNumbers {
        final_learning_rate: Some(0.4),
        ..warm
    };
    close(
        &rates(LrSchedule::Cosine, to, 5).unwrap(),
        &all(&[0.8, 0.6]),
    );
    close(
        &rates(LrSchedule::Linear, to, 7).unwrap(),
        &all(&[0.8, 0.7, 0.6, 0.5]),
    );
    let step = ScheduleNumbers {
        decay_every: Some(2),
        decay_factor: Some(0.5),
        ..warm
    };
    close(
        &rates(LrSchedule::Step, step, 8).unwrap(),
        &all(&[0.8, 0.8, 0.4, 0.4, 0.2]),
    );
}

#[test]
fn a_share_of_the_steps_is_rounded_and_leaves_a_step() {
    for (share, total, expected) in [
        // Less than 29 in floating point.
        (0.29, 100, 29),
        (0.08, 1290, 103),
        (0.3, 3, 1),
        (0.9, 3, 2),
        (0.9, 1, 0),
        (0.9, 0, 0),
    ] {
        let numbers = ScheduleNumbers {
            warmup_steps: share,
            ..ScheduleNumbers::default()
        };
        assert_eq!(numbers.warmup_of(total), expected, "{share} of {total}");
    }
}

#[test]
fn a_schedule_goes_on_from_its_record() {
    let numbers = ScheduleNumbers {
        warmup_steps: 3.0,
        decay_every: Some(2),
        ..ScheduleNumbers::default()
    };
    let all = rates(LrSchedule::Step, numbers, 9).unwrap();
    for made in 0..9 {
        let fresh = || init(numbers, LrSchedule::Step, 9).unwrap();
        let mut scheduler = fresh();
        (0..made).for_each(|_| drop(scheduler.step()));
        let mut again = fresh().load_record(scheduler.to_record());
        let rest = (made..9).map(|_| again.step().base()).collect::<Vec<_>>();
        assert_eq!(rest, all[made..], "behind {made} steps");
    }
}

#[test]
fn numbers_that_say_nothing_or_cannot_be_are_refused() {
    let refused = |schedule, change: fn(&mut ScheduleNumbers)| {
        let mut numbers = ScheduleNumbers::default();
        change(&mut numbers);
        rates(schedule, numbers, 5).unwrap_err()
    };
    let constant = refused(LrSchedule::Constant, |n| n.final_learning_rate = Some(0.1));
    constant.assert_contains(["`training.schedule = cosine` or linear"]);
    let above = refused(LrSchedule::Cosine, |n| n.final_learning_rate = Some(0.9));
    above.assert_contains(["`training.schedule_numbers.final_learning_rate = 0.9`"]);
    let how_often = refused(LrSchedule::Step, |_| {});
    how_often.assert_contains(["`training.schedule_numbers.decay_every`"]);
    let cosine = refused(LrSchedule::Cosine, |n| n.decay_every = Some(2));
    assert!(cosine.contains("`training.schedule = step`"), "{cosine}");
    let rising = refused(LrSchedule::Step, |n| {
        (n.decay_every, n.decay_factor) = (Some(2), Some(1.5));
    });
    rising.assert_contains(["`training.schedule_numbers.decay_factor = 1.5`"]);
    let high = |schedule, warmup_steps| {
        let numbers = ScheduleNumbers {
            warmup_steps,
            decay_every: matches!(schedule, LrSchedule::Step).then_some(2),
            ..ScheduleNumbers::default()
        };
        numbers.config(schedule, 2.0, 9).map(drop)
    };
    let cosine = high(LrSchedule::Cosine, 0.0).unwrap_err().to_string();
    let advice = "of at most 1, and this one is 2: `training.schedule = constant` takes more";
    assert!(cosine.ends_with(advice), "{cosine}");
    assert!(
        cosine.starts_with("`training.schedule = cosine`"),
        "{cosine}"
    );
    let warm = high(LrSchedule::Constant, 3.0).unwrap_err().to_string();
    let advice = "`training.schedule = constant` without a warm-up takes more";
    assert!(warm.ends_with(advice), "{warm}");
    for schedule in [LrSchedule::Constant, LrSchedule::Step] {
        assert!(high(schedule, 0.0).is_ok(), "{schedule}");
    }
    let long = refused(LrSchedule::Linear, |n| n.warmup_steps = 5.0);
    long.assert_contains(["`training.schedule_numbers.warmup_steps`"]);
    for steps in [-1.0, 1.5, f64::INFINITY, f64::NAN] {
        let numbers = ScheduleNumbers {
            warmup_steps: steps,
            ..ScheduleNumbers::default()
        };
        let error = rates(LrSchedule::Constant, numbers, 5).unwrap_err();
        assert!(error.contains("must be a whole number of steps"), "{error}");
    }
}
