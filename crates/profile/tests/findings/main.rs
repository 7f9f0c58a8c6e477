//! What is found in recordings of which it is known what is wrong.

mod layers;

use everburn_profile::{
    Analysis, Facts, Finding, FindingKind, Mark, Pass, Phase, PhaseSpan, Recording, Sample,
    Samples, StepStart,
};

const MILLISECOND: u64 = 1_000_000;

/// A rank's step, in milliseconds; what a step begins with comes first.
type Step = [(Phase, u64)];

/// A step without faults.
const SOUND: &Step = &[
    (Phase::Data, 1),
    (Phase::Forward, 30),
    (Phase::Backward, 60),
    (Phase::Exchange, 1),
    (Phase::Optimizer, 5),
    (Phase::Waiting, 1),
    (Phase::Records, 2),
];

/// Twelve steps of a rank.
fn rank(number: usize, step: &Step) -> Recording {
    let mut recording = Recording {
        facts: Facts {
            rank: number,
            world_size: 2,
            threads: 1,
            cores: 4,
            host: Some("ida".to_owned()),
            training_thread: 7,
            ..Facts::default()
        },
        parameters: ["conv1.weight", "fc1.weight"].map(String::from).to_vec(),
        ..Recording::default()
    };
    let mut now = MILLISECOND;
    let start = |step, at| StepStart {
        step,
        at,
        ..StepStart::default()
    };
    for number in 1..=12 {
        recording.steps.push(start(number, now));
        for (phase, milliseconds) in step {
            let end = now + milliseconds * MILLISECOND;
            if phase.is_pass() {
                // The first half of the forward pass is conv1's, the last of the backward pass.
                let (pass, order) = match phase {
                    Phase::Forward => (Pass::Forward, [(0, now), (1, (now + end) / 2)]),
                    _ => (Pass::Backward, [(1, (now + end) / 2), (0, end - 1)]),
                };
                let marks = order.map(|(parameter, at)| Mark {
                    parameter,
                    pass,
                    at,
                    operations: 0,
                });
                recording.marks.extend(marks);
            }
            recording.phases.push(PhaseSpan {
                phase: *phase,
                step: number,
                begin: now,
                end,
                allocations: 3,
                bytes: 100,
                ..PhaseSpan::default()
            });
            now = end;
        }
    }
    recording.steps.push(start(0, now));
    recording
}

/// The sound step with other times.
fn with(changes: &[(Phase, u64)]) -> Vec<(Phase, u64)> {
    let changed = |(phase, usual): &(Phase, u64)| {
        let change = changes.iter().find(|change| change.0 == *phase);
        (*phase, change.map_or(*usual, |change| change.1))
    };
    SOUND.iter().map(changed).collect()
}

fn findings(recordings: &[Recording]) -> Vec<Finding> {
    Analysis::of(recordings).unwrap().findings()
}

fn kinds(recordings: &[Recording]) -> Vec<FindingKind> {
    findings(recordings).iter().map(|it| it.kind).collect()
}

/// A rank alone that is found in rows of `stacks`, in each for this many milliseconds of a step, from the second one on.
fn sampled(functions: [&str; 4], stacks: &[&[u32]], found: &[(u32, usize)]) -> Recording {
    let mut recording = rank(0, SOUND);
    recording.facts.world_size = 1;
    let found = found.iter();
    let found = found.flat_map(|&(stack, milliseconds)| std::iter::repeat_n(stack, milliseconds));
    let samples = recording.steps[..12].iter().flat_map(|step| {
        let found = found.clone().zip(1_u64..);
        found.map(move |(stack, millisecond)| Sample {
            at: step.at + millisecond * MILLISECOND,
            thread: 7,
            stack,
            on_the_clock: true,
        })
    });
    recording.samples = Samples {
        period: MILLISECOND,
        functions: functions.map(String::from).to_vec(),
        stacks: stacks.iter().map(|stack| stack.to_vec()).collect(),
        samples: samples.collect(),
        ..Samples::default()
    };
    recording
}

#[test]
fn where_nothing_is_wrong_the_largest_layer_is_told_alone() {
    let found = findings(&[rank(0, SOUND), rank(1, SOUND)]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].kind, FindingKind::LargestLayer);
    // Both halves are as long but for the nanosecond at the end.
    assert!(
        found[0].to_string().contains("45 % of its step"),
        "{}",
        found[0]
    );
}

#[test]
fn a_layer_that_takes_a_small_part_of_a_step_is_left_out() {
    let waits = with(&[(Phase::Data, 301)]);
    // 45 of 400 ms.
    let found = kinds(&[rank(0, &waits), rank(1, &waits)]);
    assert_eq!(found, [FindingKind::Data]);
}

#[test]
fn a_rank_that_waits_for_data_is_named_with_its_share() {
    let slow = with(&[(Phase::Data, 301)]);
    let waits = with(&[(Phase::Exchange, 301)]);
    let found = findings(&[rank(0, &waits), rank(1, &slow)]);
    assert_eq!((found[0].kind, found[0].rank), (FindingKind::Data, Some(1)));
    let text = found[0].to_string();
    assert_eq!(
        text,
        "75 % of rank 1's step waits for data (301 ms): raise `training.input.workers`, which is 0: the training thread itself \
         assembles each batch while nothing computes (saves up to 75 % of a step)"
    );
    assert!(
        found
            .iter()
            .all(|finding| finding.kind != FindingKind::SlowRank),
        "{found:?}"
    );
}

#[test]
fn busy_threads_of_workers_want_more_and_resting_ones_do_not() {
    for (busy, expected) in [
        (295, "raise `training.input.workers`: the 1 that"),
        (100, "raise `training.input.prefetch`, which is 2"),
    ] {
        let mut slow = rank(0, &with(&[(Phase::Data, 200)]));
        (slow.facts.workers, slow.facts.prefetch) = (1, 2);
        for step in &slow.steps[..12] {
            slow.background.push(everburn_profile::BackgroundSpan {
                track: everburn_profile::Track::Loader(9),
                name: "batch".to_owned(),
                begin: step.at,
                end: step.at + busy * MILLISECOND,
            });
        }
        let found = findings(&[slow]);
        assert!(found[0].advice.starts_with(expected), "{}", found[0]);
    }
}

#[test]
fn a_rank_three_times_as_slow_is_named_with_where_it_is_slow() {
    let slow = with(&[(Phase::Forward, 90), (Phase::Backward, 180)]);
    let waits = with(&[(Phase::Exchange, 181)]);
    let found = findings(&[rank(0, &waits), rank(1, &slow)]);
    assert_eq!(
        (found[0].kind, found[0].rank),
        (FindingKind::SlowRank, Some(1))
    );
    let text = found[0].to_string();
    assert!(
        text.starts_with(
            "rank 1 works 2.9 times as long as the others (277 ms of a step, not 97 ms)"
        ),
        "{text}"
    );
    assert!(
        text.contains("mostly in its backward phase") && text.contains("ida"),
        "{text}"
    );
    // Rank 0 waits in its exchange, which is no fault of the exchange.
    assert!(
        found
            .iter()
            .all(|finding| finding.kind != FindingKind::Exchange),
        "{found:?}"
    );
}

#[test]
fn a_copy_is_named_with_its_layer_and_caller() {
    let functions = [
        "train",
        "model::Net::forward",
        "burn_tensor::Tensor::into_data",
        "burn_flex::matmul",
    ];
    // A millisecond of data, then conv1 for 15; fc1 copies for 10 of its.
    let stacks: [&[u32]; 2] = [&[0, 1, 2], &[0, 1, 3]];
    let found = findings(&[sampled(functions, &stacks, &[(1, 17), (0, 10), (1, 2)])]);
    assert_eq!(
        (found[0].kind, found[0].layer.as_deref()),
        (FindingKind::HostCopy, Some("fc1"))
    );
    let text = &found[0].text;
    assert!(
        text.starts_with("10 % of rank 0's step goes into copies"),
        "{text}"
    );
    assert!(
        text.contains("layer fc1 (`into_data`, called by model::Net::forward)"),
        "{text}"
    );
}

#[test]
fn an_exchange_that_nobody_is_late_for_is_too_long() {
    let long = with(&[(Phase::Exchange, 100)]);
    let found = findings(&[rank(0, &long), rank(1, &long)]);
    assert_eq!(found[0].kind, FindingKind::Exchange);
    assert!(found[0].text.starts_with("50 % of a step"), "{}", found[0]);
    let mut alone = rank(0, &long);
    alone.facts.world_size = 1;
    assert_ne!(findings(&[alone])[0].kind, FindingKind::Exchange);
}

#[test]
fn cores_that_others_have_are_told() {
    let mut ranks = without_cores([rank(0, SOUND), rank(1, SOUND)], [40, 40]);
    for rank in &mut ranks {
        rank.facts.cores = 1;
    }
    let found = findings(&ranks);
    assert_eq!(found[0].kind, FindingKind::Cores);
    assert!(
        found[0].text.contains("no core for 40 % of its step"),
        "{}",
        found[0]
    );
    assert!(
        found[0].advice.contains("2 threads and may use 1 cores"),
        "{}",
        found[0]
    );
}

/// Each step, both ranks are without a core for this many milliseconds.
fn without_cores(mut ranks: [Recording; 2], milliseconds: [u64; 2]) -> [Recording; 2] {
    for (rank, milliseconds) in ranks.iter_mut().zip(milliseconds) {
        for (number, step) in rank.steps.iter_mut().enumerate() {
            step.kept_waiting = number as u64 * milliseconds * MILLISECOND;
        }
    }
    ranks
}

#[test]
fn a_fault_of_the_training_is_told_before_that_others_have_the_cores() {
    // A step of 150 ms: 50 go into data, 55 into waiting for cores.
    let late = with(&[(Phase::Data, 50)]);
    let both = || [rank(0, &late), rank(1, &late)];
    let found = kinds(&without_cores(both(), [55, 55]));
    assert_eq!(found[..2], [FindingKind::Data, FindingKind::Cores]);
    // Half of it, and less: the machine is too busy to measure anything by.
    let found = kinds(&without_cores(both(), [120, 120]));
    assert_eq!(found[..2], [FindingKind::Cores, FindingKind::Data]);
    // The ranks' own threads have the cores: this is as lasting.
    let mut crowded = without_cores(both(), [55, 55]);
    for rank in &mut crowded {
        rank.facts.threads = 4;
    }
    assert_eq!(
        kinds(&crowded)[..2],
        [FindingKind::Cores, FindingKind::Data]
    );
    // Without such a fault nothing is moved.
    let long = with(&[(Phase::Records, 42)]);
    let found = kinds(&without_cores([rank(0, &long), rank(1, &long)], [55, 55]));
    assert_eq!(found[..2], [FindingKind::Cores, FindingKind::Records]);
}

#[test]
fn a_rank_that_is_slow_because_it_has_no_core_is_told_so_first() {
    let slow = with(&[(Phase::Forward, 90), (Phase::Backward, 180)]);
    let waits = with(&[(Phase::Exchange, 181)]);
    // What rank 1 computes of a phase, in milliseconds.
    let found = |milliseconds, most: u64| {
        let mut ranks = [rank(0, &waits), rank(1, &slow)];
        for (rank, most) in ranks.iter_mut().zip([u64::MAX, most]) {
            for span in rank.phases.iter_mut().filter(|span| !span.phase.waits()) {
                span.cpu = (span.end - span.begin).min(most.saturating_mul(MILLISECOND));
            }
        }
        kinds(&without_cores(ranks, milliseconds))
    };
    let both = [FindingKind::Cores, FindingKind::SlowRank];
    // Of the 180 ms that it is late, it computes none.
    assert_eq!(found([0, 181], 60)[..2], both);
    // While rank 0 waits for it, that is kept from a core as long: which costs nothing.
    assert_eq!(found([170, 181], 60)[..2], both);
    // 180 ms late by itself, and others keep both from working.
    assert_eq!(found([190, 200], u64::MAX)[0], FindingKind::SlowRank);
}

#[test]
fn what_stands_around_the_passes_is_told_where_it_is_long() {
    for (phase, kind) in [
        (Phase::Optimizer, FindingKind::Optimizer),
        (Phase::Records, FindingKind::Records),
    ] {
        let long = with(&[(phase, 200)]);
        let found = findings(&[rank(0, &long), rank(1, &long)]);
        assert_eq!(found[0].kind, kind, "{found:?}");
    }
}

#[test]
fn without_whole_steps_the_message_says_what_to_do() {
    let error = Analysis::of(&[Recording::default()])
        .unwrap_err()
        .to_string();
    assert!(error.contains("training.steps = 50"), "{error}");
}

#[test]
fn without_a_ranks_recording_nobody_else_is_blamed() {
    let waits = with(&[(Phase::Exchange, 301)]);
    let analysis = Analysis::of(&[rank(0, &waits)]).unwrap();
    assert_eq!(analysis.missing, [1]);
    let found = analysis.findings();
    let of_all = |kind| matches!(kind, FindingKind::Exchange | FindingKind::SlowRank);
    assert!(found.iter().all(|it| !of_all(it.kind)), "{found:?}");
    let text = everburn_profile::Summary(&analysis).to_string();
    assert!(
        text.contains("the recordings of rank 1 are missing"),
        "{text}"
    );
    let whole = Analysis::of(&[rank(0, &waits), rank(1, &waits)]).unwrap();
    assert!(whole.missing.is_empty());
    assert!(whole.findings().iter().any(|it| of_all(it.kind)));
}
