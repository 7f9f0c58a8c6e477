use super::*;
use crate::kernels::KernelLaunch;

#[test]
fn a_folder_without_recordings_says_how_they_are_made() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("none")] {
        let error = Recording::read_all(&path).unwrap_err().to_string();
        assert!(error.contains("Trainer::recorder"), "{error}");
    }
}

#[test]
fn recordings_from_before_operations_were_counted_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut recording = Recording {
        marks: vec![Mark {
            parameter: 3,
            pass: Pass::Forward,
            at: 17,
            operations: 0,
        }],
        phases: vec![PhaseSpan {
            phase: Phase::Forward,
            step: 1,
            begin: 10,
            end: 20,
            cpu: 5,
            allocations: 1,
            bytes: 8,
            operations: [0, 0],
        }],
        ..Recording::default()
    };
    recording.format = FORMAT;
    let mut older = serde_json::to_value(&recording).unwrap();
    let without = |place: &mut serde_json::Value, name: &str| {
        place.as_object_mut().unwrap().remove(name).unwrap();
    };
    without(&mut older["marks"][0], "operations");
    without(&mut older["phases"][0], "operations");
    without(&mut older["facts"], "peak_operations");
    fs::write(folder.path().join("rank-0.json"), older.to_string()).unwrap();
    assert_eq!(Recording::read_all(folder.path()).unwrap(), [recording]);
}

#[test]
fn what_is_no_recording_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rank-3.json"), "{}").unwrap();
    let error = Recording::read_all(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("rank-3.json") && error.contains("no recording"),
        "{error}"
    );
    let mut recording = serde_json::to_value(Recording::default()).unwrap();
    recording["format"] = 99.into();
    fs::write(folder.path().join("rank-3.json"), recording.to_string()).unwrap();
    let error = Recording::read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("99"), "{error}");
}

#[test]
fn a_planted_link_is_neither_written_through_nor_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("theirs"), "precious").unwrap();
    std::os::unix::fs::symlink(path("theirs"), path("rank-0.json")).unwrap();
    let error = Recording::read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("link"), "{error}");
    let written = Recording::default().write(folder.path()).unwrap();
    assert_eq!(written, path("rank-0.json"));
    assert_eq!(fs::read(path("theirs")).unwrap(), b"precious");
    assert_eq!(Recording::read_all(folder.path()).unwrap().len(), 1);
}

/// What is written of a recording, in the order of the alphabet.
const FIELDS: &str = "
    .background .background[].begin .background[].end .background[].name .background[].track
    .background[].track.reducer .clock_error .clock_offset .facts .facts.batch_size .facts.cores
    .facts.device .facts.host .facts.is_asynchronous .facts.machine .facts.model .facts.parameters
    .facts.peak_operations .facts.prefetch .facts.rank .facts.threads .facts.training_thread
    .facts.workers .facts.world_size .format .kernels .kernels.dropped .kernels.launches
    .kernels.launches[].asked .kernels.launches[].begin .kernels.launches[].end
    .kernels.launches[].name .kernels.names .marks .marks[].at .marks[].operations
    .marks[].parameter .marks[].pass .parameters .phases .phases[].allocations .phases[].begin
    .phases[].bytes .phases[].cpu .phases[].end .phases[].operations .phases[].phase .phases[].step
    .samples .samples.dropped .samples.functions .samples.period .samples.samples
    .samples.samples[].at .samples.samples[].on_the_clock .samples.samples[].stack
    .samples.samples[].thread .samples.stacks .samples.threads .steps .steps[].at
    .steps[].kept_waiting .steps[].kernels_timed .steps[].peak_memory .steps[].step
";

/// The keys of every object in `json`, by the path to it; of a list that of its first item.
fn keys(json: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    use serde_json::Value;
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                found.push(path.clone());
                keys(value, &path, found);
            }
        }
        Value::Array(items) => {
            for item in items.iter().take(1) {
                keys(item, &format!("{path}[]"), found);
            }
        }
        _ => {}
    }
}

/// All of its fields are named, so that one that is added has to be named here.
fn of_every_field() -> Recording {
    let text = |text: &str| text.to_owned();
    Recording {
        format: FORMAT,
        facts: Facts {
            rank: 1,
            world_size: 2,
            machine: Some(text("a machine")),
            host: Some(text("a host")),
            device: text("cuda:0"),
            is_asynchronous: true,
            threads: 3,
            cores: 4,
            workers: 5,
            prefetch: 6,
            batch_size: 64,
            parameters: 21_840,
            model: text("mnist"),
            training_thread: 4711,
            peak_operations: Some(1.5e9),
        },
        clock_offset: -3,
        clock_error: 7,
        steps: vec![StepStart {
            step: 1,
            at: 10,
            kept_waiting: 2,
            peak_memory: 1 << 20,
            kernels_timed: true,
        }],
        phases: vec![PhaseSpan {
            phase: Phase::Backward,
            step: 1,
            begin: 11,
            end: 19,
            cpu: 8,
            allocations: 9,
            bytes: 12,
            operations: [100, 130],
        }],
        parameters: vec![text("fc1.weight")],
        marks: vec![Mark {
            parameter: 0,
            pass: Pass::Backward,
            at: 13,
            operations: 110,
        }],
        background: vec![BackgroundSpan {
            track: Track::Reducer(1),
            name: text("bucket 2"),
            begin: 14,
            end: 15,
        }],
        samples: Samples {
            period: 1_000_000,
            dropped: 1,
            functions: vec![text("main")],
            stacks: vec![vec![0]],
            samples: vec![Sample {
                at: 16,
                thread: 4711,
                stack: 0,
                on_the_clock: true,
            }],
            threads: vec![(4711, text("trainer"))],
        },
        kernels: Kernels {
            names: vec![text("matmul")],
            launches: vec![KernelLaunch {
                name: 0,
                asked: 11,
                begin: 12,
                end: 18,
            }],
            dropped: 2,
        },
    }
}

#[test]
fn a_recording_holds_every_field() {
    let folder = tempfile::tempdir().unwrap();
    let recording = of_every_field();
    let path = recording.write(folder.path()).unwrap();
    let json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut found = Vec::new();
    keys(&json, "", &mut found);
    assert_eq!(found, FIELDS.split_whitespace().collect::<Vec<_>>());
    assert_eq!(Recording::read_all(folder.path()).unwrap(), [recording]);
}
