//! A run that nobody has made.

use everburn_monitor::{RunState, Update};
use everburn_record::{
    Event, EventKind, Live, LiveRank, MetricLine, Phase, ProcessMetrics, RankLine, RankStep,
    StepCost,
};

/// The time of all pictures.
pub const NOW: u64 = 1_795_300_900_000;

/// A run before its first step.
pub fn beginning() -> RunState {
    let mut state = RunState::default();
    let config = "model = \"mnist\"\n[ranks]\nranks = 2\n".to_string();
    let run = Update::Run {
        name: "a".into(),
        config,
    };
    state.take(&Update::Reset, NOW);
    state.take(&run, NOW);
    state.take(&Update::Running(true), NOW);
    state
}

/// A run on this many ranks, of which one in four is slow, after this many lines of ten steps each.
pub fn fed(ranks: usize, lines: u64) -> RunState {
    let mut state = RunState::default();
    let config = format!("model = \"mnist-bn\"\n[ranks]\nranks = {ranks}\n");
    let run = Update::Run {
        name: "bn-1".into(),
        config,
    };
    state.take(&run, NOW);
    let start = Event {
        unix_time_ms: Some(NOW - 65_000),
        step: Some(0),
        ranks: Some((0..ranks).collect()),
        ..Event::new(
            EventKind::Start,
            format!("mnist-bn begins, on {ranks} ranks"),
        )
    };
    state.take(&Update::Event(start), NOW);
    for line in 1..=lines {
        let step = 10 * line;
        // A stop now and then, on all.
        let pause = if line % 13 == 0 { 0.02 } else { 0.0 };
        let of_rank = |rank: usize| {
            let slow = if rank % 4 == 1 { 0.008 } else { 0.0 };
            RankStep {
                rank,
                seconds: 0.031 + pause,
                waited: 0.012 + pause - slow,
                data: 0.001,
                forward: 0.006 + slow / 2.0,
                backward: 0.009 + slow / 2.0,
                exposed: 0.003,
                optimizer: 0.002,
                samples: Some(16),
                peak_memory: Some(149 << 20),
            }
        };
        let ranks = (0..ranks).map(of_rank).collect();
        let told = RankLine {
            step,
            unix_time_ms: Some(NOW - 60_000 + 300 * line),
            ranks,
        };
        state.take(&Update::Ranks(told), NOW);
        let metric = MetricLine {
            epoch: 1,
            step: step as usize,
            loss: 2.3 / (1.0 + line as f64 / 20.0),
            accuracy: Some(1.0 - 0.9 / (1.0 + line as f64 / 9.0)),
            samples: 64,
            cost: StepCost {
                seconds: 0.031,
                ..StepCost::default()
            },
            learning_rate: Some(0.003),
            gradient_norm: Some(1.25),
            ..MetricLine::default()
        };
        state.take(&Update::Metric(metric), NOW);
    }
    state.take(&Update::Live(live(10 * lines, ranks)), NOW);
    state.take(&Update::Running(true), NOW);
    state
}

/// How such a run stands.
pub fn live(step: u64, ranks: usize) -> Live {
    let of_rank = |rank| LiveRank {
        pid: Some(4710 + rank as u32),
        rank,
        alive: true,
        step: Some(step),
        doing: Some(format!(
            "all_reduce(f32[21840], sum) (collective {}, step {step}), done 0.0 s ago",
            3 * step
        )),
        process_metrics: ProcessMetrics {
            memory_bytes: Some(161 << 20),
            ..ProcessMetrics::default()
        },
        ..LiveRank::default()
    };
    Live {
        unix_time_ms: NOW - 300,
        phase: Phase::Training,
        epoch: 1,
        epochs: 3,
        step,
        steps: Some(2580),
        epoch_samples: Some(55_000),
        moved_unix_ms: Some(NOW - 320),
        seconds_a_step: Some(0.031),
        members: (0..ranks).collect(),
        store_silent_seconds: None,
        ranks: (0..ranks).map(of_rank).collect(),
        failure: None,
        unwritable: None,
    }
}
