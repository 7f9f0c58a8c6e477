//! The recordings of all ranks as one trace, on one clock.
//!
//! The format is that of Chrome's tracing ("Trace Event Format", Google, 2016), which Perfetto reads: complete events
//! (`X`) with times in microseconds, and names of processes and threads (`M`). A process is a rank.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::analysis::{Window, segments_of, windows_of};
use crate::recording::{Recording, Track};

/// The rows of a rank.
const TRAINING: u32 = 1;
const LAYERS: u32 = 2;
const DEVICE: u32 = 3;
const REDUCERS: u32 = 10;
const GATHERER: u32 = 90;
const LOADERS: u32 = 100;

/// Writes a trace of `recordings` for Perfetto (<https://ui.perfetto.dev>) or `chrome://tracing`.
///
/// # Errors
/// Those of `output`.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Facts, Recorder, write_trace};
///
/// let recorder = Recorder::new(Facts::default());
/// recorder.begin_step(1);
/// let mut trace = Vec::new();
/// write_trace(&[recorder.finish()], &mut trace).unwrap();
/// let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
/// let names: Vec<_> = trace["traceEvents"].as_array().unwrap().iter().map(|event| &event["name"]).collect();
/// assert!(names.iter().any(|name| *name == "step 1") && names.iter().any(|name| *name == "data"));
/// ```
pub fn write_trace(recordings: &[Recording], output: &mut impl Write) -> io::Result<()> {
    let begins = recordings.iter().filter_map(|recording| {
        let first = recording.steps.first()?.at;
        let background = recording.background.iter().map(|span| span.begin).min();
        Some(recording.common(background.map_or(first, |begin| begin.min(first))))
    });
    let zero = begins.min().unwrap_or(0);
    write!(output, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut first = true;
    for recording in recordings {
        for event in events(recording, zero) {
            if !std::mem::take(&mut first) {
                output.write_all(b",\n")?;
            }
            serde_json::to_writer(&mut *output, &event)?;
        }
    }
    output.write_all(b"]}\n")
}

fn events(recording: &Recording, zero: i64) -> Vec<Value> {
    let facts = &recording.facts;
    let rank = facts.rank;
    let host = facts.host.as_deref().unwrap_or("unknown machine");
    let mut tracks: Vec<Track> = recording.background.iter().map(|span| span.track).collect();
    tracks.sort_unstable();
    tracks.dedup();
    let row = |track: Track| {
        let place = tracks.binary_search(&track).unwrap_or(0) as u32;
        match track {
            Track::Reducer(number) => REDUCERS + number,
            Track::Gatherer => GATHERER,
            Track::Loader(_) => LOADERS + place,
        }
    };
    let mut events = vec![
        json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": format!("rank {rank} on {host}")}}),
        json!({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}),
    ];
    let mut name_row = |row: u32, name: String| {
        events.push(json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": row, "args": {"name": name}}));
    };
    name_row(TRAINING, "training".to_owned());
    name_row(LAYERS, "layers".to_owned());
    if !recording.kernels.launches.is_empty() {
        name_row(DEVICE, format!("kernels on {}", facts.device));
    }
    for track in &tracks {
        let name = match track {
            Track::Reducer(number) => format!("reducer {number}"),
            Track::Gatherer => "gatherer".to_owned(),
            Track::Loader(thread) => format!("loader (thread {thread})"),
        };
        name_row(row(*track), name);
    }
    let event = |row: u32, name: &str, begin: u64, end: u64, args: Value| {
        let microseconds = |at: u64| (recording.common(at) - zero) as f64 / 1e3;
        let begin_us = microseconds(begin);
        json!({
            "ph": "X", "pid": rank, "tid": row, "name": name, "ts": begin_us,
            "dur": microseconds(end) - begin_us, "args": args,
        })
    };
    for (number, Window { begin, end, .. }) in windows_of(recording) {
        events.push(event(
            TRAINING,
            &format!("step {number}"),
            begin,
            end,
            json!({}),
        ));
    }
    for span in &recording.phases {
        let args = json!({
            "step": span.step, "cpu_ms": span.cpu as f64 / 1e6,
            "allocations": span.allocations, "allocated_bytes": span.bytes,
            "operations": span.operations[1].saturating_sub(span.operations[0]),
        });
        events.push(event(
            TRAINING,
            span.phase.name(),
            span.begin,
            span.end,
            args,
        ));
    }
    for segment in segments_of(recording) {
        let pass = segment.pass.name();
        let args = json!({"pass": pass, "operations": segment.operations});
        let name = format!("{} {pass}", segment.module);
        events.push(event(LAYERS, &name, segment.begin, segment.end, args));
    }
    for span in &recording.background {
        events.push(event(
            row(span.track),
            &span.name,
            span.begin,
            span.end,
            json!({}),
        ));
    }
    for launch in &recording.kernels.launches {
        let name = recording.kernels.names.get(launch.name as usize);
        let name = name.map_or("(unknown)", String::as_str);
        let waited = launch.begin.saturating_sub(launch.asked) as f64 / 1e3;
        let args = json!({"asked_before_us": waited});
        events.push(event(DEVICE, name, launch.begin, launch.end, args));
    }
    let training = facts.training_thread;
    let samples = &recording.samples;
    for sample in samples
        .samples
        .iter()
        .filter(|sample| sample.thread == training && sample.on_the_clock)
    {
        let stack = samples.stacks.get(sample.stack as usize);
        let innermost = stack.and_then(|stack| stack.last());
        let name = innermost.and_then(|number| samples.functions.get(*number as usize));
        let ts = (recording.common(sample.at) - zero) as f64 / 1e3;
        let name = name.map_or("(unknown)", String::as_str);
        events.push(json!({"ph": "i", "s": "t", "pid": rank, "tid": TRAINING, "name": name, "ts": ts, "cat": "sample"}));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::Phase;
    use crate::recording::{BackgroundSpan, Facts, PhaseSpan, StepStart};

    fn of_rank(rank: usize, begin: u64, clock_offset: i64) -> Recording {
        let start = |step, at| StepStart {
            step,
            at,
            kept_waiting: 0,
            peak_memory: 0,
            kernels_timed: false,
        };
        let span = |phase, begin, end| PhaseSpan {
            phase,
            step: 1,
            begin,
            end,
            cpu: 0,
            allocations: 0,
            bytes: 0,
            operations: [0, 0],
        };
        Recording {
            facts: Facts {
                rank,
                ..Facts::default()
            },
            clock_offset,
            steps: vec![start(1, begin), start(0, begin + 5_000)],
            phases: vec![span(Phase::Data, begin, begin + 2_000)],
            background: vec![BackgroundSpan {
                track: Track::Reducer(1),
                name: "bucket 0".to_owned(),
                begin: begin + 1_000,
                end: begin + 3_000,
            }],
            ..Recording::default()
        }
    }

    #[test]
    fn all_ranks_are_on_the_clock_of_rank_0() {
        // Rank 1's clock is 9 ms ahead.
        let recordings = [of_rank(0, 1_000_000, 0), of_rank(1, 10_001_000, -9_000_000)];
        let mut text = Vec::new();
        write_trace(&recordings, &mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let when = |rank: usize, name: &str| {
            let is_it = |event: &&Value| {
                event["pid"] == rank && event["name"] == name && event["ph"] == "X"
            };
            let event = events.iter().find(is_it).unwrap();
            (
                event["ts"].as_f64().unwrap(),
                event["dur"].as_f64().unwrap(),
            )
        };
        assert_eq!(when(0, "step 1"), (0.0, 5.0));
        assert_eq!(when(1, "step 1"), (1.0, 5.0));
        assert_eq!(when(1, "data"), (1.0, 2.0));
        assert_eq!(when(1, "bucket 0"), (2.0, 2.0));
    }
}
