//! The files of a run directory, each with the fields that its readers count on. A file that loses one is found here,
//! whoever has lost it: the type of the file, or the training that fills it.

use std::collections::BTreeSet;
use std::path::Path;

use everburn_tests::{Everburn, Run};
use serde_json::Value;

/// A file of JSON, or of a JSON object for each line, and what is in each of them: the names of fields, below others
/// with a dot, and `[]` for the items of a list.
const FILES: &[(&str, &str)] = &[
    (
        "report.json",
        "model dataset dataset_origin test_accuracy test_loss test_samples test_predictions best_epoch.epoch \
         best_epoch.validation_loss samples_per_second world_size batch_size epochs steps steps_since_resume seconds \
         train_seconds exposed_seconds gradient_bytes peak_memory finished stopped resumed_after_epoch versions.everburn \
         versions.burn",
    ),
    (
        "metrics.jsonl",
        "kind epoch step loss accuracy samples predictions unix_time_ms seconds waited exposed communication \
         gradient_bytes",
    ),
    (
        "ranks.jsonl",
        "step unix_time_ms ranks[].rank ranks[].seconds ranks[].waited ranks[].data ranks[].forward ranks[].backward \
         ranks[].exposed ranks[].optimizer ranks[].samples ranks[].peak_memory",
    ),
    ("events.jsonl", "kind step text unix_time_ms"),
    ("hashes.jsonl", "step loss tensors chain"),
    (
        "live.json",
        "unix_time_ms phase epoch epochs step steps epoch_samples moved_unix_ms seconds_a_step members ranks[].rank ranks[].alive ranks[].pid \
         ranks[].host ranks[].step ranks[].doing ranks[].memory_bytes",
    ),
    (
        "environment.json",
        "started_unix_ms command host system kernel processor cores memory_bytes versions.Burn versions.Everburn \
         variables.EVERBURN_OFFLINE",
    ),
    ("confusion.json", "split step classes[] counts[]"),
    (
        "checkpoints/epoch-0002/manifest.json",
        "format_version versions.everburn versions.burn files[].name files[].bytes files[].sha256 tensors[].path \
         tensors[].file tensors[].dtype tensors[].shape tensors[].sha256 progress.model progress.epoch progress.step \
         progress.batches progress.batch_size progress.samples_per_epoch progress.total_steps progress.seed \
         progress.optimizer progress.schedule progress.schedule_numbers.warmup_steps progress.best.epoch \
         progress.best.validation_loss.bits progress.best.validation_loss.value progress.so_far.correct \
         progress.chain progress.so_far.loss_sum.bits progress.so_far.loss_sum.value progress.so_far.predictions \
         progress.so_far.samples",
    ),
    (
        "logs/rank-1.finished.json",
        "rank step kind message unix_time_ms",
    ),
    (
        "profile/rank-1.json",
        "format facts.rank facts.world_size facts.machine facts.host facts.device facts.threads facts.cores \
         facts.workers facts.prefetch facts.batch_size facts.parameters facts.model facts.training_thread clock_offset \
         clock_error steps[].step steps[].at steps[].kept_waiting steps[].peak_memory phases[].phase phases[].step \
         phases[].begin phases[].end phases[].cpu phases[].allocations phases[].bytes phases[].operations[] parameters[] \
         marks[].parameter marks[].pass marks[].at marks[].operations background[].track background[].name \
         background[].begin background[].end",
    ),
];

/// The files that hold no JSON.
const OTHERS: &[&str] = &[
    "config.toml",
    "model.safetensors",
    "ema.safetensors",
    "report.html",
    "logs/rank-0.log",
    "checkpoints/epoch-0002/model.safetensors",
    "checkpoints/epoch-0002/optimizer.safetensors",
    "checkpoints/epoch-0002/ema.safetensors",
    "checkpoints/epoch-0002/scheduler.bpk",
];

/// The paths of all fields that are in `json`.
fn fields(json: &Value, path: &str, found: &mut BTreeSet<String>) {
    match json {
        Value::Object(fields_of) => {
            for (name, value) in fields_of {
                let path = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                fields(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(items) => {
            let path = format!("{path}[]");
            for item in items {
                fields(item, &path, found);
                found.insert(path.clone());
            }
        }
        _ => {}
    }
}

/// Checks that each object of a file has these fields.
fn holds(run: &Run, name: &str, expected: &str) {
    let text = run.text(name);
    let objects: Vec<&str> = match Path::new(name).extension() {
        Some(extension) if extension == "jsonl" => text.lines().collect(),
        _ => vec![&text],
    };
    assert!(!objects.is_empty(), "{name} is empty");
    for object in objects {
        let json = serde_json::from_str(object).unwrap_or_else(|e| panic!("{name}: {e}: {object}"));
        let mut found = BTreeSet::new();
        fields(&json, "", &mut found);
        for field in expected.split_whitespace() {
            assert!(found.contains(field), "{name} has no {field}: {object}");
        }
    }
}

#[test]
fn the_files_of_a_run_have_their_fields() {
    let folder = tempfile::tempdir().unwrap();
    Everburn::train(folder.path(), "mlp")
        .words("--run-dir run --ranks 2 --epochs 2 --log-every 1 --hash-every 2 --ema 0.9")
        .words("--max-gradient-norm 1 --profile --tensorboard")
        .succeed();
    let run = Run::new(folder.path().join("run"));
    for (name, expected) in FILES {
        holds(&run, name, expected);
    }
    for name in OTHERS {
        let length = std::fs::metadata(run.path.join(name)).map(|data| data.len());
        assert!(length.is_ok_and(|length| length > 0), "{name}");
    }
    // Rank 0 says what all have done, so this one may be empty.
    run.text("logs/rank-1.log");
    let events = run.path.join("tensorboard").read_dir().unwrap();
    assert!(events.count() > 0, "no events for TensorBoard");
    // What only a step has, and only training.
    let (mut steps, mut epochs) = (0, 0);
    for line in run.metrics() {
        let has = |name: &str| assert!(line[name].is_number(), "{name} in {line}");
        match line["kind"].as_str() {
            Some("step") => {
                for name in ["learning_rate", "gradient_norm", "peak_memory"] {
                    has(name);
                }
                steps += 1;
            }
            Some("train") => {
                has("peak_memory");
                epochs += 1;
            }
            _ => {}
        }
    }
    assert_eq!((steps, epochs), (16, 2));
}
