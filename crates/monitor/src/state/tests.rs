//! Tests of `state`.

use everburn_record::LiveRank;

use super::*;

fn metric(step: usize) -> Update {
    Update::Metric(MetricLine {
        step,
        loss: 1.0,
        ..MetricLine::default()
    })
}

#[test]
fn a_curve_that_is_told_again_is_one_curve_and_a_long_one_is_thinned_out() {
    let mut state = RunState::default();
    for step in (1..=5000).chain(1..=10) {
        state.take(&metric(step), 0);
    }
    assert!(state.losses.len() <= MOST_POINTS);
    assert!(state.losses.is_sorted());
    assert_eq!(state.step.unwrap().step, 5000);
}

#[test]
fn no_text_that_is_kept_commands_a_terminal() {
    let mut state = RunState::default();
    let event = Event::new(EventKind::Warning, "a\u{1b}[2J\nb\u{202e}");
    state.take(&Update::Event(event), 0);
    assert_eq!(state.events[0].text, "a\u{fffd}[2J b\u{fffd}");
    let run = Update::Run {
        name: "a\u{9b}2J".into(),
        config: r#"model = "\u001b[2J""#.into(),
    };
    state.take(&run, 0);
    assert_eq!(state.name, "a\u{fffd}2J");
    assert_eq!(state.model, "\u{fffd}[2J");
}

#[test]
fn what_is_kept_is_bounded_whatever_is_said() {
    let mut state = RunState::default();
    let long = "x".repeat(1 << 16);
    let metrics = (0..1_000).map(|number| (format!("{number}{long}"), 1.0));
    let line = MetricLine {
        metrics: metrics.collect(),
        ..MetricLine::default()
    };
    state.take(&Update::Metric(line), 0);
    assert_eq!(state.step.as_ref().unwrap().metrics.len(), 32);
    assert!(state.held() < 1 << 16, "{}", state.held());
    for step in 0..1_000_u64 {
        let rank = |number: u64| usize::try_from(number).unwrap();
        let numbers: Vec<usize> = (0..100).map(|n| rank((step * 100 + n) % 8192)).collect();
        let ranks = numbers.iter().map(|rank| everburn_record::RankStep {
            rank: *rank,
            ..everburn_record::RankStep::default()
        });
        let line = everburn_record::RankLine {
            step: step + 1,
            ranks: ranks.collect(),
            ..everburn_record::RankLine::default()
        };
        state.take(&Update::Ranks(line), 0);
        let event = Event {
            rank: Some(numbers[0]),
            ranks: Some(numbers.clone()),
            ..Event::new(EventKind::Loss, long.clone())
        };
        state.take(&Update::Event(event), 0);
        let of_rank = |rank: &usize| LiveRank {
            rank: *rank,
            doing: Some(long.clone()),
            waiting_for: numbers.clone(),
            ..LiveRank::default()
        };
        let live = Live {
            ranks: numbers.iter().take(2).map(of_rank).collect(),
            members: numbers,
            ..Live::default()
        };
        state.take(&Update::Live(live), 0);
    }
    assert!(state.ranks().len() <= MOST_RANKS);
    assert!(state.held() < 32 << 20, "{}", state.held());
    assert!(state.left_out().unwrap().contains("4096"));
    assert_eq!(RunState::default().left_out(), None);
}

#[test]
fn a_training_that_makes_no_step_is_shown_as_one() {
    let mut state = RunState::default();
    state.take(&Update::Running(true), 1_000);
    let beat = |unix_time_ms: u64, step: u64, phase: Phase| {
        Update::Live(Live {
            unix_time_ms,
            step,
            phase,
            seconds_a_step: Some(0.1),
            ..Live::default()
        })
    };
    for second in 1..=15 {
        state.take(&beat(second, 7, Phase::Training), second * 1_000);
    }
    assert_eq!(state.doing(), "training, no step for 14 s");
    state.take(&beat(16, 8, Phase::Training), 16_000);
    assert_eq!(state.doing(), "training");
    // Only a training is slow for a reason that nobody sees.
    for second in 17..=40 {
        state.take(&beat(second, 8, Phase::Saving), second * 1_000);
    }
    assert_eq!(state.doing(), "saving a checkpoint");
}

#[test]
fn a_training_that_makes_no_step_names_the_rank_that_keeps_the_others_waiting() {
    let mut state = RunState::default();
    state.take(&Update::Running(true), 1_000);
    let rank = |rank, waits_for: &[usize]| LiveRank {
        rank,
        pid: Some(40 + rank as u32),
        host: Some("node7".into()),
        waiting_for: waits_for.to_vec(),
        ..LiveRank::default()
    };
    let live = |store_silent_seconds| {
        Update::Live(Live {
            unix_time_ms: 20_000,
            moved_unix_ms: Some(6_000),
            phase: Phase::Training,
            store_silent_seconds,
            ranks: vec![rank(0, &[1, 2]), rank(1, &[2]), rank(2, &[])],
            ..Live::default()
        })
    };
    state.take(&live(None), 20_000);
    let doing = "no step for 14 s, waiting for rank 2 (pid 42 on node7)";
    assert_eq!(state.doing(), doing);
    assert_eq!(state.awaited_ranks(&state.ranks()), Some(vec![2]));
    // Who waits is as old as the store's last answer.
    state.take(&live(Some(12.0)), 20_000);
    let doing = "training, no step for 14 s, the store has not answered for 12 s";
    assert_eq!(state.doing(), doing);
}

#[test]
fn a_training_that_had_stalled_before_anybody_looked_has_no_remaining_time() {
    let live = |unix_time_ms, moved_unix_ms, step| {
        Update::Live(Live {
            unix_time_ms,
            moved_unix_ms,
            step,
            phase: Phase::Training,
            steps: Some(100),
            seconds_a_step: Some(0.1),
            ..Live::default()
        })
    };
    // The clock of the run's machine is 2 s behind.
    let mut state = RunState::default();
    state.take(&live(90_000, Some(71_000), 7), 92_000);
    assert_eq!(state.doing(), "training, no step for 19 s");
    assert_eq!(state.seconds_left(), None);
    state.take(&live(91_000, Some(90_900), 8), 93_000);
    assert_eq!(state.doing(), "training");
    assert!(state.seconds_left().is_some());
}

#[test]
fn silence_is_told_and_an_end_is_not_silence() {
    let mut state = RunState::default();
    state.take(&Update::Running(true), 1_000);
    let live = Live {
        unix_time_ms: 1_000,
        phase: Phase::Training,
        ..Live::default()
    };
    state.take(&Update::Live(live.clone()), 1_000);
    assert_eq!(state.doing(), "training");
    let silent_store = Live {
        store_silent_seconds: Some(12.4),
        ranks: vec![LiveRank::default()],
        ..live
    };
    state.take(&Update::Live(silent_store), 1_000);
    let doing = "training, the store has not answered for 12 s";
    assert_eq!(state.doing(), doing);
    // Nobody is silent for that.
    assert_eq!(state.ranks()[0].status, RankStatus::Working);
    state.tick(9_000);
    assert_eq!(state.doing(), "no word from rank 0 for 8 s");
    state.take(&Update::Running(false), 9_000);
    assert_eq!(state.doing(), "over, without an end");
    state.take(&Update::Report(serde_json::json!({"stopped": null})), 9_000);
    assert_eq!(state.doing(), "finished");
    state.take(&Update::Reached(false), 9_000);
    assert_eq!(state.doing(), "not reached: trying again");
}

#[test]
fn a_run_that_was_cut_off_is_shown_as_one_and_one_that_was_resumed_is_not() {
    let mut state = RunState::default();
    let live = Live {
        unix_time_ms: 1_000,
        phase: Phase::Training,
        ..Live::default()
    };
    state.take(&Update::Live(live), 1_000);
    // Of the run as it was before it was resumed.
    state.take(&Update::Report(serde_json::json!({"stopped": null})), 1_000);
    let event = Event {
        unix_time_ms: Some(1_000),
        ..Event::new(EventKind::Failure, "the run was cut off on node7")
    };
    state.take(&Update::CutOff(event), 9_000);
    state.take(&Update::Running(false), 9_000);
    assert_eq!(state.doing(), "cut off, last seen 0:08 ago");
    let ended = "the run: cut off, last seen 0:08 ago";
    assert_eq!(state.news(true).as_deref(), Some(ended));
    assert_eq!(state.cut_off(), Some("the run was cut off on node7"));
    assert_eq!(state.events.len(), 1);
    state.take(&Update::Running(true), 10_000);
    assert_eq!(state.cut_off(), None);
    assert_ne!(state.doing(), "cut off, last seen 0:09 ago");
}

#[test]
fn ranks_that_are_waited_for_are_named_with_their_machine_until_the_training_begins() {
    let mut state = RunState::default();
    let run = Update::Run {
        name: "a".into(),
        config: "[ranks]\nranks = 2\nnodes = 2\n".into(),
    };
    state.take(&run, 1_000);
    let wait = Event {
        ranks: Some(vec![0, 1]),
        waits_until_ms: Some(291_000),
        ..Event::new(EventKind::Warning, "waiting for ranks 2, 3 of machine 1")
    };
    state.take(&Update::Event(wait), 1_000);
    state.tick(41_000);
    let doing = "starting, 2 of 4 ranks joined, waiting for ranks 2, 3 of machine 1, 250 s more";
    assert_eq!(state.doing(), doing);
    // The first page, burn-train's dashboard, has it too, of a run that is monitored and of a training.
    let awaited = "waiting for ranks 2, 3 of machine 1, 250 s more";
    for monitors in [true, false] {
        assert_eq!(state.news(monitors).as_deref(), Some(awaited));
    }
    let mut refused = state.clone();
    let of_refused = Event {
        ranks: Some(vec![0, 1]),
        waits_until_ms: Some(291_000),
        ..Event::new(
            EventKind::Warning,
            "waiting for ranks 2, 3; the store has refused 10.0.0.2 (1 time): why",
        )
    };
    refused.take(&Update::Event(of_refused), 41_000);
    let with_refused = format!("{awaited}; the store has refused 10.0.0.2 (1 time): why");
    assert_eq!(refused.news(true), Some(with_refused));
    let status = |rank: usize| state.ranks()[rank].status;
    assert_eq!([0, 1].map(status), [RankStatus::Working; 2]);
    assert_eq!([2, 3].map(status), [RankStatus::Unknown; 2]);
    let start = Event {
        ranks: Some((0..4).collect()),
        ..Event::new(EventKind::Start, "mlp begins, on 4 ranks")
    };
    let mut late = state.clone();
    late.tick(294_000);
    let over = "waiting for ranks 2, 3 of machine 1, the time was over 3 s ago";
    assert_eq!(late.news(true).as_deref(), Some(over));
    state.take(&Update::Event(start), 42_000);
    assert_eq!(state.doing(), "starting");
    assert_eq!(state.news(true), None);
}

#[test]
fn a_run_that_starts_again_waits_whatever_its_files_say_of_its_earlier_end() {
    let mut state = RunState::default();
    let run = Update::Run {
        name: "a".into(),
        config: "[ranks]\nranks = 1\nnodes = 2\n".into(),
    };
    state.take(&run, 100_000);
    for phase in [Phase::Training, Phase::Ended] {
        let live = Live {
            unix_time_ms: 20_000,
            phase,
            ..Live::default()
        };
        let stopped = serde_json::json!({"stopped": "on request after step 100"});
        state.take(&Update::Report(stopped), 100_000);
        state.take(&Update::Running(true), 100_000);
        state.take(&Update::Live(live), 100_000);
        let wait = Event {
            unix_time_ms: Some(110_000),
            ranks: Some(vec![0]),
            waits_until_ms: Some(400_000),
            ..Event::new(EventKind::Warning, "waiting for rank 1 of machine 1")
        };
        state.take(&Update::Event(wait), 110_000);
        state.tick(150_000);
        let awaited = "waiting for rank 1 of machine 1, 250 s more";
        assert_eq!(state.news(true).as_deref(), Some(awaited));
        let doing = format!("starting, 1 of 2 ranks joined, {awaited}");
        assert_eq!(state.doing(), doing);
        // The wait was in vain.
        let failure = Event::new(EventKind::Failure, "rank 1 has not joined");
        state.take(&Update::Event(failure), 150_000);
        assert_eq!(state.awaited(), None);
    }
}
