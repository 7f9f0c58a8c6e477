use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

#[test]
fn a_step_has_no_gaps_whatever_is_entered_late() {
    let recorder = Recorder::new(Facts::default());
    recorder.begin_step(7);
    recorder.enter(Phase::Forward);
    let earlier = Instant::now();
    recorder.enter_at(Phase::Backward, earlier, None);
    // Before the phase that continues: it takes no time.
    recorder.enter_at(Phase::Exchange, earlier, None);
    recorder.enter(Phase::Optimizer);
    recorder.begin_step(8);
    let recording = recorder.finish();
    let phases: Vec<(u32, Phase)> = recording
        .phases
        .iter()
        .map(|span| (span.step, span.phase))
        .collect();
    let expected = [
        (7, Phase::Data),
        (7, Phase::Forward),
        (7, Phase::Backward),
        (7, Phase::Exchange),
        (7, Phase::Optimizer),
        (8, Phase::Data),
    ];
    assert_eq!(phases, expected);
    for pair in recording.phases.windows(2) {
        assert!(pair[0].end == pair[1].begin && pair[0].begin <= pair[0].end);
    }
    let steps: Vec<u32> = recording.steps.iter().map(|start| start.step).collect();
    assert_eq!(steps, [7, 8, 0]);
}

#[test]
fn outside_of_steps_nothing_is_recorded() {
    let recorder = Recorder::new(Facts::default());
    recorder.enter(Phase::Forward);
    recorder.enter_at(Phase::Backward, Instant::now(), None);
    recorder.mark(3, Pass::Forward);
    recorder.end_step();
    recorder.peak_memory(9);
    let recording = recorder.finish();
    assert!(
        recording.phases.is_empty() && recording.marks.is_empty() && recording.steps.is_empty()
    );
}

#[test]
fn operations_are_counted_at_marks_and_at_the_ends_of_phases() {
    static COUNTED: AtomicU64 = AtomicU64::new(1000);
    let compute = |operations| COUNTED.fetch_add(operations, Ordering::Relaxed);
    let recorder = Recorder::new(Facts::default());
    recorder.count_operations(|| COUNTED.load(Ordering::Relaxed));
    recorder.begin_step(1);
    recorder.enter(Phase::Forward);
    recorder.mark(0, Pass::Forward);
    compute(30);
    recorder.mark(1, Pass::Forward);
    compute(20);
    let turned = Instant::now();
    compute(60);
    recorder.mark(1, Pass::Backward);
    compute(40);
    recorder.mark(0, Pass::Backward);
    // That the forward pass was over is only told when all is.
    recorder.enter_at(Phase::Backward, turned, Some(50));
    recorder.enter(Phase::Optimizer);
    compute(7);
    // More than there were: somebody has miscounted.
    recorder.enter_at(Phase::Waiting, Instant::now(), Some(90));
    let recording = recorder.finish();
    let marks: Vec<u64> = recording.marks.iter().map(|mark| mark.operations).collect();
    assert_eq!(marks, [1000, 1030, 1110, 1150]);
    let phases: Vec<[u64; 2]> = recording
        .phases
        .iter()
        .map(|span| span.operations)
        .collect();
    let expected = [
        [1000, 1000],
        [1000, 1050],
        [1050, 1150],
        [1150, 1157],
        [1157, 1157],
    ];
    assert_eq!(phases, expected);
}
