use everburn_record::{
    Event, EventKind, Live, LiveRank, MetricKind, Phase, ProcessMetrics, RankLine, StepCost,
};

use super::*;
use crate::update::Update;

fn line(kind: MetricKind, step: usize, loss: f64) -> MetricLine {
    MetricLine {
        kind,
        step,
        loss,
        ..MetricLine::default()
    }
}

fn sample() -> RunState {
    let mut state = RunState::default();
    let config = "model = 'mnist'\n[ranks]\nranks = 2".to_string();
    let name = "a \"quoted\\\nname".to_string();
    let rank = |rank, silent_seconds| LiveRank {
        rank,
        pid: Some(7),
        silent_seconds,
        process_metrics: ProcessMetrics {
            memory_bytes: Some(1 << 20),
            gpu_percent: Some(50),
            ..ProcessMetrics::default()
        },
        ..LiveRank::default()
    };
    let step = |rank, waited| RankStep {
        rank,
        seconds: 0.5,
        waited,
        exposed: waited / 2.0,
        ..RankStep::default()
    };
    let updates = [
        Update::Run { name, config },
        Update::Running(true),
        Update::Metric(MetricLine {
            samples: 64,
            cost: StepCost {
                seconds: 0.5,
                ..StepCost::default()
            },
            learning_rate: Some(1e-7),
            accuracy: Some(0.75),
            metrics: [("f1".to_string(), f64::NAN)].into(),
            ..line(MetricKind::Step, 10, 2.5)
        }),
        Update::Metric(line(MetricKind::Validation, 10, f64::INFINITY)),
        Update::Ranks(RankLine {
            step: 10,
            ranks: vec![step(0, 0.25), step(1, 0.0)],
            ..RankLine::default()
        }),
        Update::Event(Event::new(EventKind::Restart, "rank 1 was started again")),
        Update::Event(Event::new(EventKind::CheckpointFailed, "no space left")),
        Update::Live(Live {
            unix_time_ms: everburn_record::unix_time_ms(),
            phase: Phase::Training,
            epoch: 2,
            step: 12,
            steps: Some(20),
            ranks: vec![rank(0, None), rank(1, Some(4.0))],
            ..Live::default()
        }),
    ];
    state.take_all(&updates);
    state
}

#[test]
fn all_figures_of_a_run_are_there_in_the_text_format() {
    let state = sample();
    let text = exposition(&state, state.live.unix_time_ms + 2_500);
    for line in [
        r#"everburn_run_info{run="a \"quoted\\ name",model="mnist"} 1"#,
        "everburn_running 1",
        r#"everburn_phase_info{phase="training"} 1"#,
        "everburn_epoch 2",
        "everburn_step 12",
        "everburn_steps_planned 20",
        "# TYPE everburn_restarts_total counter",
        "everburn_restarts_total 1",
        "everburn_checkpoints_failed_total 1",
        "# TYPE everburn_loss gauge",
        r#"everburn_loss{split="train"} 2.5"#,
        r#"everburn_loss{split="validation"} +Inf"#,
        r#"everburn_accuracy{split="train"} 0.75"#,
        r#"everburn_metric{split="train",name="f1"} NaN"#,
        "everburn_learning_rate 0.0000001",
        "everburn_samples_per_second 128",
        r#"everburn_rank_up{rank="0"} 1"#,
        r#"everburn_rank_up{rank="1"} 0"#,
        r#"everburn_rank_step_seconds{rank="1"} 0.5"#,
        r#"everburn_rank_communication_ratio{rank="0"} 0.25"#,
        r#"everburn_rank_waiting_ratio{rank="0"} 0.5"#,
        r#"everburn_rank_memory_bytes{rank="1"} 1048576"#,
        r#"everburn_rank_gpu_busy_ratio{rank="0"} 0.5"#,
        r#"everburn_rank_heartbeat_age_seconds{rank="0"} 2.5"#,
        r#"everburn_rank_heartbeat_age_seconds{rank="1"} 6.5"#,
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(
        text.ends_with('\n') && !text.contains("everburn_gradient_norm"),
        "{text}"
    );
}

#[test]
fn each_family_is_described_once_before_its_samples() {
    let mut described = std::collections::BTreeSet::new();
    let state = sample();
    let text = exposition(&state, state.live.unix_time_ms + 2_500);
    let mut family = "";
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap();
            assert!(described.insert(family), "{family} is there twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            assert!(kind.starts_with(family), "{line}");
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(name, family);
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        }
    }
    assert!(described.len() > 10, "{described:?}");
    // Of a run of which nothing is known, no figure is made up.
    let nothing = exposition(&RunState::default(), 0);
    assert!(!nothing.contains("everburn_loss") && !nothing.contains("everburn_epoch"));
}
