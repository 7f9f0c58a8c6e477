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
    let rank = RankTrace::of(recording, zero);
    let mut events = rank.names();
    events.extend(rank.training());
    events.extend(rank.layers());
    events.extend(rank.background());
    events.extend(rank.kernels());
    events.extend(rank.samples());
    events
}

/// A rank's events.
struct RankTrace<'a> {
    recording: &'a Recording,
    /// The time at which the trace begins.
    zero: i64,
    /// The background threads, each once.
    tracks: Vec<Track>,
}

impl<'a> RankTrace<'a> {
    fn of(recording: &'a Recording, zero: i64) -> Self {
        let mut tracks: Vec<Track> = recording.background.iter().map(|span| span.track).collect();
        tracks.sort_unstable();
        tracks.dedup();
        Self {
            recording,
            zero,
            tracks,
        }
    }

    fn row(&self, track: Track) -> u32 {
        let place = self.tracks.binary_search(&track).unwrap_or(0) as u32;
        match track {
            Track::Reducer(number) => REDUCERS + number,
            Track::Gatherer => GATHERER,
            Track::Loader(_) => LOADERS + place,
        }
    }

    /// The names of the process and its rows.
    fn names(&self) -> Vec<Value> {
        let facts = &self.recording.facts;
        let rank = facts.rank;
        let host = facts.host.as_deref().unwrap_or("unknown machine");
        let mut names = vec![
            json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": format!("rank {rank} on {host}")}}),
            json!({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}),
        ];
        let mut name_row = |row: u32, name: String| {
            names.push(json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": row, "args": {"name": name}}));
        };
        name_row(TRAINING, "training".to_owned());
        name_row(LAYERS, "layers".to_owned());
        if !self.recording.kernels.launches.is_empty() {
            name_row(DEVICE, format!("kernels on {}", facts.device));
        }
        for track in &self.tracks {
            let name = match track {
                Track::Reducer(number) => format!("reducer {number}"),
                Track::Gatherer => "gatherer".to_owned(),
                Track::Loader(thread) => format!("loader (thread {thread})"),
            };
            name_row(self.row(*track), name);
        }
        names
    }

    fn microseconds(&self, at: u64) -> f64 {
        (self.recording.common(at) - self.zero) as f64 / 1e3
    }

    fn event(&self, row: u32, name: &str, [begin, end]: [u64; 2], args: &Value) -> Value {
        let begin_us = self.microseconds(begin);
        json!({
            "ph": "X", "pid": self.recording.facts.rank, "tid": row, "name": name, "ts": begin_us,
            "dur": self.microseconds(end) - begin_us, "args": args,
        })
    }

    /// Steps and their phases.
    fn training(&self) -> impl Iterator<Item = Value> {
        let steps =
            windows_of(self.recording)
                .into_iter()
                .map(|(number, Window { begin, end, .. })| {
                    let name = format!("step {number}");
                    self.event(TRAINING, &name, [begin, end], &json!({}))
                });
        let phases = self.recording.phases.iter().map(|span| {
            let args = json!({
                "step": span.step, "cpu_ms": span.cpu as f64 / 1e6,
                "allocations": span.allocations, "allocated_bytes": span.bytes,
                "operations": span.operations[1].saturating_sub(span.operations[0]),
            });
            self.event(TRAINING, span.phase.name(), [span.begin, span.end], &args)
        });
        steps.chain(phases)
    }

    fn layers(&self) -> impl Iterator<Item = Value> {
        segments_of(self.recording).into_iter().map(|segment| {
            let pass = segment.pass.name();
            let args = json!({"pass": pass, "operations": segment.operations});
            let name = format!("{} {pass}", segment.module);
            self.event(LAYERS, &name, [segment.begin, segment.end], &args)
        })
    }

    fn background(&self) -> impl Iterator<Item = Value> {
        self.recording.background.iter().map(|span| {
            let times = [span.begin, span.end];
            self.event(self.row(span.track), &span.name, times, &json!({}))
        })
    }

    fn kernels(&self) -> impl Iterator<Item = Value> {
        let kernels = &self.recording.kernels;
        kernels.launches.iter().map(|launch| {
            let name = kernels.names.get(launch.name as usize);
            let name = name.map_or("(unknown)", String::as_str);
            let waited = launch.begin.saturating_sub(launch.asked) as f64 / 1e3;
            let args = json!({"asked_before_us": waited});
            self.event(DEVICE, name, [launch.begin, launch.end], &args)
        })
    }

    /// The innermost functions of the training's thread.
    fn samples(&self) -> impl Iterator<Item = Value> {
        let samples = &self.recording.samples;
        let facts = &self.recording.facts;
        let ours = samples
            .samples
            .iter()
            .filter(|sample| sample.thread == facts.training_thread && sample.on_the_clock);
        ours.map(|sample| {
            let stack = samples.stacks.get(sample.stack as usize);
            let innermost = stack.and_then(|stack| stack.last());
            let name = innermost.and_then(|number| samples.functions.get(*number as usize));
            let name = name.map_or("(unknown)", String::as_str);
            let ts = self.microseconds(sample.at);
            json!({"ph": "i", "s": "t", "pid": facts.rank, "tid": TRAINING, "name": name, "ts": ts, "cat": "sample"})
        })
    }
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
            ..StepStart::default()
        };
        let span = |phase, begin, end| PhaseSpan {
            phase,
            step: 1,
            begin,
            end,
            ..PhaseSpan::default()
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
