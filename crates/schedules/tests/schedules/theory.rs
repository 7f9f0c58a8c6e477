//! The simulation against the formulas.

use everburn_schedules::{Costs, Schedule, ScheduleKind, Timeline, simulate, theoretical_idle};

/// Every kind on a grid of ranks, micro-batches and chunks, simulated with equal costs.
fn on_the_grid() -> impl Iterator<Item = (ScheduleKind, [usize; 3], Timeline)> {
    let kinds = ScheduleKind::ALL.into_iter();
    let with_ranks = kinds.flat_map(|kind| (1..=8).map(move |ranks| (kind, ranks)));
    let with_micro_batches = with_ranks
        .flat_map(|(kind, ranks)| (1..=24).map(move |micro_batches| (kind, ranks, micro_batches)));
    let all = with_micro_batches.flat_map(|(kind, ranks, micro_batches)| {
        let most = if kind.has_chunks() { 4 } else { 1 };
        (1..=most).map(move |chunks| (kind, [ranks, micro_batches, chunks]))
    });
    all.map(|(kind, [ranks, micro_batches, chunks])| {
        let schedule = Schedule::new(kind, ranks, micro_batches, chunks).unwrap();
        let timeline = simulate(&schedule, &Costs::equal(ranks * chunks)).unwrap();
        (kind, [ranks, micro_batches, chunks], timeline)
    })
}

#[test]
fn the_simulated_idle_share_is_that_of_theory() {
    for (kind, [ranks, micro_batches, chunks], timeline) in on_the_grid() {
        let theory = theoretical_idle(kind, ranks, micro_batches, chunks);
        let simulated = timeline.idle_share();
        assert!(
            (simulated - theory).abs() < 1e-9,
            "{kind}, {ranks} ranks, {micro_batches} micro-batches, {chunks} chunks: simulated \
             {simulated}, theory {theory}"
        );
    }
}

#[test]
fn zero_bubble_is_less_idle_than_1f1b() {
    for ranks in 2..=16 {
        for micro_batches in 1..=64 {
            let of = |kind| theoretical_idle(kind, ranks, micro_batches, 1);
            let (zero, one) = (
                of(ScheduleKind::ZeroBubbleH1),
                of(ScheduleKind::OneForwardOneBackward),
            );
            assert!(
                zero < one,
                "{ranks} ranks, {micro_batches} micro-batches: {zero} and {one}"
            );
        }
    }
}

#[test]
fn interleaving_over_one_chunk_is_as_idle_as_1f1b() {
    for (ranks, micro_batches) in [(2, 1), (4, 3), (4, 8), (4, 10), (8, 16)] {
        let of = |kind| theoretical_idle(kind, ranks, micro_batches, 1);
        let (interleaved, plain) = (
            of(ScheduleKind::Interleaved1F1B),
            of(ScheduleKind::OneForwardOneBackward),
        );
        assert!((interleaved - plain).abs() < 1e-12);
    }
}

#[test]
fn as_many_micro_batches_are_live_as_the_papers_say() {
    for (kind, [ranks, micro_batches, _], timeline) in on_the_grid() {
        for rank in 0..ranks {
            let live = timeline.peak_live(rank);
            match kind {
                ScheduleKind::GPipe => assert_eq!(live, micro_batches),
                ScheduleKind::OneForwardOneBackward => {
                    assert_eq!(live, micro_batches.min(ranks - rank));
                }
                // No rank keeps more than the first one of 1F1B.
                ScheduleKind::ZeroBubbleH1 => assert_eq!(live, micro_batches.min(ranks)),
                ScheduleKind::Interleaved1F1B => {}
            }
        }
    }
}

#[test]
fn interleaving_keeps_what_narayanan_et_al_say() {
    let schedule = Schedule::new(ScheduleKind::Interleaved1F1B, 4, 8, 2).unwrap();
    // Warm-up of rank r: 2 (p - r - 1) + (v - 1) p, and the one that is in hand.
    let live: Vec<usize> = (0..4).map(|rank| schedule.peak_live(rank)).collect();
    assert_eq!(live, [11, 9, 7, 5]);
}

#[test]
fn activations_are_counted_in_bytes_too() {
    let bytes = |kind| {
        let schedule = Schedule::new(kind, 4, 8, 1).unwrap();
        let mut costs = Costs::equal(4);
        for stage in &mut costs.stages {
            stage.activation_bytes = 100;
            stage.deferred_bytes = 30;
        }
        let timeline = simulate(&schedule, &costs).unwrap();
        (0..4)
            .map(|rank| timeline.peak_activation_bytes(rank))
            .collect::<Vec<_>>()
    };
    assert_eq!(bytes(ScheduleKind::GPipe), [800; 4]);
    assert_eq!(
        bytes(ScheduleKind::OneForwardOneBackward),
        [400, 300, 200, 100]
    );
    // Rank r has p - r whole micro-batches, what r others have put off, and makes that of one more.
    assert_eq!(bytes(ScheduleKind::ZeroBubbleH1), [430, 360, 290, 220]);
}

#[test]
fn a_longer_backward_pass_leaves_gpipe_and_1f1b_as_idle() {
    for kind in [ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward] {
        let schedule = Schedule::new(kind, 4, 8, 1).unwrap();
        let mut costs = Costs::equal(4);
        for stage in &mut costs.stages {
            stage.backward_weight = 2.7;
        }
        let timeline = simulate(&schedule, &costs).unwrap();
        assert!((timeline.idle_share() - 3.0 / 11.0).abs() < 1e-9);
    }
}

#[test]
fn transfers_and_slow_stages_make_a_step_longer() {
    let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 1, 1).unwrap();
    let mut costs = Costs::equal(2);
    costs.stages[0].transfer = 0.25;
    costs.stages[1].forward = 3.0;
    let timeline = simulate(&schedule, &costs).unwrap();
    assert_eq!(timeline.makespan(), 1.0 + 0.25 + 3.0 + 2.0 + 0.25 + 2.0);
    assert_eq!(timeline.busy(0), 3.0);
}

#[test]
fn messages_of_one_way_travel_one_after_the_other() {
    let schedule = Schedule::new(ScheduleKind::GPipe, 2, 3, 1).unwrap();
    let mut costs = Costs::equal(2);
    // The way is slower than the stages: it sets the pace of the forward passes.
    costs.stages[0].transfer = 10.0;
    let timeline = simulate(&schedule, &costs).unwrap();
    let starts: Vec<f64> = timeline
        .spans(1)
        .iter()
        .take(3)
        .map(|span| span.start)
        .collect();
    assert_eq!(starts, [11.0, 21.0, 31.0]);
}

#[test]
fn passes_that_take_no_time_are_no_trouble() {
    let schedule = Schedule::new(ScheduleKind::ZeroBubbleH1, 2, 2, 1).unwrap();
    let mut costs = Costs::equal(2);
    for stage in &mut costs.stages {
        (stage.forward, stage.backward_input, stage.backward_weight) = (0.0, 0.0, 0.0);
    }
    let timeline = simulate(&schedule, &costs).unwrap();
    assert_eq!((timeline.makespan(), timeline.idle_share()), (0.0, 0.0));
    for drawing in [timeline.to_text(80), timeline.to_svg()] {
        assert!(
            drawing.contains("0 s") && !drawing.contains("NaN"),
            "{drawing}"
        );
    }
}
