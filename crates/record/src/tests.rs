//! The files of a run directory hold every field: none is lost when it is written, or when it is read.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;

/// Checks that `value`, all of whose fields say something, is written with `keys`, which are words, and read back.
fn holds<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, keys: &str) {
    let json = serde_json::to_value(value).unwrap();
    let written: Vec<&str> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut expected: Vec<&str> = keys.split(' ').collect();
    expected.sort_unstable();
    assert_eq!(written, expected);
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *value, "{text}");
}

// Each value names all of its fields, so that a field that is added has to be named here.

#[test]
fn a_line_of_metrics_holds_every_field() {
    let line = MetricLine {
        kind: MetricKind::Step,
        epoch: 2,
        step: 30,
        loss: 0.5,
        accuracy: Some(0.25),
        metrics: [("mae".to_owned(), 0.125)].into(),
        samples: 64,
        predictions: 128,
        unix_time_ms: Some(1_795_447_260_403),
        cost: StepCost {
            seconds: 0.75,
            waited: 0.0625,
            exposed: 0.03125,
            communication: 1.5,
            gradient_bytes: 87_392,
            peak_memory: Some(133_046_272),
        },
        learning_rate: Some(0.001),
        gradient_norm: Some(3.5),
        loss_scale: Some(1024.0),
        skipped_steps: Some(2),
    };
    let keys = "kind epoch step loss accuracy metrics samples predictions unix_time_ms seconds \
        waited exposed communication gradient_bytes peak_memory learning_rate gradient_norm \
        loss_scale skipped_steps";
    holds(&line, keys);
}

#[test]
fn a_line_of_ranks_holds_every_field() {
    let step = RankStep {
        rank: 3,
        seconds: 0.5,
        waited: 0.25,
        data: 0.125,
        forward: 0.0625,
        backward: 0.375,
        exposed: 0.03125,
        optimizer: 0.75,
        samples: Some(32),
        peak_memory: Some(1 << 27),
    };
    let keys = "rank seconds waited data forward backward exposed optimizer samples peak_memory";
    holds(&step, keys);
    let line = RankLine {
        step: 10,
        unix_time_ms: Some(1_795_447_260_403),
        ranks: vec![step],
    };
    holds(&line, "step unix_time_ms ranks");
}

#[test]
fn an_event_holds_every_field_and_every_kind_has_its_word() {
    for kind in EventKind::ALL {
        let event = Event {
            waits_until_ms: None,
            lasted_ms: Some(14_200),
            kind,
            unix_time_ms: Some(1_795_447_260_403),
            step: Some(120),
            rank: Some(1),
            ranks: Some(vec![0, 2]),
            text: "rank 1 stalled".to_owned(),
        };
        holds(&event, "kind unix_time_ms step rank ranks lasted_ms text");
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["kind"], kind.name());
    }
    let earlier: Event = serde_json::from_str(r#"{"kind":"unsaved"}"#).unwrap();
    assert_eq!(earlier.kind, EventKind::CheckpointFailed);
}

#[test]
fn the_live_file_holds_every_field() {
    let process_metrics = ProcessMetrics {
        memory_bytes: Some(1 << 28),
        gpu_percent: Some(98),
        gpu_celsius: Some(61),
        gpu_memory_bytes: Some(1 << 33),
        gpu_memory_total: Some(1 << 36),
    };
    let of_process_metrics =
        "memory_bytes gpu_percent gpu_celsius gpu_memory_bytes gpu_memory_total";
    holds(&process_metrics, of_process_metrics);
    let rank = LiveRank {
        rank: 2,
        alive: true,
        pid: Some(4711),
        host: Some("gpu-1".to_owned()),
        silent_seconds: Some(1.5),
        step: Some(29),
        doing: Some("all_reduce(f32[5], sum)".to_owned()),
        under_way: true,
        waiting_for: vec![0],
        stopped: true,
        process_metrics,
    };
    let of_rank = "rank alive pid host silent_seconds step doing under_way waiting_for stopped";
    holds(&rank, &format!("{of_rank} {of_process_metrics}"));
    for phase in [
        Phase::Starting,
        Phase::Compiling,
        Phase::Training,
        Phase::Validating,
        Phase::Saving,
        Phase::Regrouping,
        Phase::Testing,
        Phase::Ended,
    ] {
        let live = Live {
            unix_time_ms: 1_795_447_260_403,
            phase,
            epoch: 2,
            epochs: 5,
            step: 30,
            steps: Some(100),
            epoch_samples: Some(1270),
            moved_unix_ms: Some(1_795_447_260_300),
            seconds_a_step: Some(0.25),
            members: vec![0, 2],
            store_silent_seconds: Some(12.5),
            ranks: vec![rank.clone()],
            failure: Some("no space left".to_owned()),
            unwritable: Some("no space is left".to_owned()),
        };
        let keys = "unix_time_ms phase epoch epochs step steps epoch_samples moved_unix_ms seconds_a_step members \
            store_silent_seconds ranks failure unwritable";
        holds(&live, keys);
    }
}

#[test]
fn the_environment_and_the_confusion_matrix_hold_every_field() {
    let text = |text: &str| Some(text.to_owned());
    let environment = Environment {
        started_unix_ms: Some(1_795_447_260_403),
        command: text("everburn train mnist"),
        resume_changes: vec!["training.epochs = 14 (was 10)".to_owned()],
        host: text("gpu-1"),
        system: text("Debian 12"),
        kernel: text("6.1.0"),
        processor: text("a processor"),
        cores: Some(2),
        memory_bytes: Some(1 << 34),
        accelerators: vec!["a GPU".to_owned()],
        versions: BTreeMap::from([("NVIDIA driver".to_owned(), "570.86.15".to_owned())]),
        variables: BTreeMap::from([("EVERBURN_LOG".to_owned(), "debug".to_owned())]),
    };
    let keys = "started_unix_ms command resume_changes host system kernel processor cores memory_bytes \
        accelerators versions variables";
    holds(&environment, keys);
    let matrix = ConfusionMatrix {
        split: "test".to_owned(),
        step: Some(30),
        classes: vec!["cat".to_owned(), "dog".to_owned()],
        counts: vec![vec![8, 2], vec![1, 9]],
    };
    holds(&matrix, "split step classes counts");
}
