//! The figures of a run in Prometheus' text format.
//!
//! Names follow Prometheus' rules: base units, a ratio in place of per cent, `_total` for counters. What is not known
//! is left out.

use std::fmt::Write;

use everburn_record::{MetricLine, RankStep, plain};

use crate::state::{RankState, RankStatus, RunState};

/// How many characters of a label are shown.
const LONGEST_LABEL: usize = 200;

/// The text of a run's figures. `now_ms` is the time by this machine's clock, in milliseconds since 1970.
pub(super) fn exposition(state: &RunState, now_ms: u64) -> String {
    let mut text = Text::default();
    of_run(&mut text, state);
    of_model(&mut text, state);
    of_ranks(&mut text, state, now_ms);
    text.0
}

/// Families of figures: for each a line that describes it, its type, and its samples.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Option<f64>)>,
    ) {
        self.family(name, "gauge", help, samples);
    }

    /// A gauge without labels.
    fn one(&mut self, name: &str, help: &str, value: Option<f64>) {
        self.gauge(name, help, [(Labels::default(), value)]);
    }

    fn family(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Option<f64>)>,
    ) {
        let mut begun = false;
        for (labels, value) in samples {
            let Some(value) = value else { continue };
            // Writing to a string does not fail.
            if !begun {
                let _ = write!(
                    self.0,
                    "# HELP everburn_{name} {help}\n# TYPE everburn_{name} {kind}\n"
                );
                begun = true;
            }
            let _ = writeln!(self.0, "everburn_{name}{} {}", labels.text(), number(value));
        }
    }
}

/// Labels of a sample, with values that may be anything.
#[derive(Debug, Default)]
struct Labels(String);

impl Labels {
    fn of(name: &str, value: &str) -> Self {
        Self::default().with(name, value)
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        let value = plain::line(value, LONGEST_LABEL);
        let value = value.replace('\\', r"\\").replace('"', "\\\"");
        // Writing to a string does not fail.
        let _ = write!(self.0, "{name}=\"{value}\"");
        self
    }

    fn text(&self) -> String {
        match self.0.as_str() {
            "" => String::new(),
            labels => format!("{{{labels}}}"),
        }
    }
}

fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".to_string(),
        f64::INFINITY => "+Inf".to_string(),
        f64::NEG_INFINITY => "-Inf".to_string(),
        _ => value.to_string(),
    }
}

fn of_run(text: &mut Text, state: &RunState) {
    let labels = Labels::of("run", &state.name).with("model", &state.model);
    text.gauge("run_info", "The run, by its labels.", [(labels, Some(1.0))]);
    let running = state.running.map(|running| f64::from(u8::from(running)));
    text.one(
        "running",
        "1 while a process runs the training, else 0.",
        running,
    );
    let live = &state.live;
    let known = live.unix_time_ms > 0;
    let phase = Labels::of("phase", live.phase.text());
    let phase = (phase, known.then_some(1.0));
    text.gauge("phase_info", "The current activity, by its label.", [phase]);
    let of_live = |value: u64| known.then_some(value as f64);
    text.one(
        "epoch",
        "The current epoch, counted from 1.",
        of_live(live.epoch),
    );
    text.one(
        "epochs_planned",
        "How many epochs the run is to have.",
        of_live(live.epochs),
    );
    let newest = state.step.as_ref().map(|line| line.step as u64);
    let step = newest.into_iter().chain(known.then_some(live.step)).max();
    text.one(
        "step",
        "How many steps have been made.",
        step.map(|step| step as f64),
    );
    text.one(
        "steps_planned",
        "How many steps the run is to have.",
        whole(live.steps),
    );
    text.one(
        "step_seconds",
        "How long a step has taken lately.",
        live.seconds_a_step,
    );
    let counters = [
        (
            "restarts_total",
            "How often a rank was started again.",
            state.restarts,
        ),
        (
            "checkpoints_failed_total",
            "How many checkpoints could not be written.",
            state.failed_checkpoints,
        ),
    ];
    for (name, help, count) in counters {
        let sample = (Labels::default(), Some(count as f64));
        text.family(name, "counter", help, [sample]);
    }
}

fn of_model(text: &mut Text, state: &RunState) {
    let splits = [
        ("train", &state.step),
        ("validation", &state.validation),
        ("test", &state.test),
    ];
    let of = |value: fn(&MetricLine) -> Option<f64>| {
        splits.map(|(split, line)| (Labels::of("split", split), line.as_ref().and_then(value)))
    };
    text.gauge(
        "loss",
        "The newest mean loss: of the last logged step, the last validation, the test.",
        of(MetricLine::known_loss),
    );
    text.gauge(
        "accuracy",
        "The share of predictions that were correct, from 0 to 1.",
        of(|line| line.accuracy),
    );
    let named = splits.into_iter().flat_map(|(split, line)| {
        let metrics = line.iter().flat_map(|line| &line.metrics);
        metrics
            .map(move |(name, mean)| (Labels::of("split", split).with("name", name), Some(*mean)))
    });
    text.gauge("metric", "Other metrics of the objective, by name.", named);
    let step = state.step.as_ref();
    let of_step = |value: fn(&MetricLine) -> Option<f64>| step.and_then(value);
    text.one(
        "learning_rate",
        "The learning rate.",
        of_step(|line| line.learning_rate),
    );
    text.one(
        "gradient_norm",
        "The norm of all gradients together.",
        of_step(|line| line.gradient_norm),
    );
    text.one(
        "samples_per_second",
        "Samples per second of all ranks together, in the last logged step.",
        of_step(MetricLine::samples_per_second),
    );
}

fn of_ranks(text: &mut Text, state: &RunState, now_ms: u64) {
    let ranks = state.ranks();
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&RankState) -> Option<f64>| {
        let samples = ranks.iter();
        let samples = samples.map(|rank| (Labels::of("rank", &rank.rank.to_string()), value(rank)));
        text.gauge(name, help, samples);
    };
    for (name, help, value) in RANK_GAUGES {
        gauge(name, help, &value);
    }
    let running = state.goes_on() && state.live.unix_time_ms > 0;
    // By clocks of one machine, mostly.
    let age = now_ms.saturating_sub(state.live.unix_time_ms) as f64 / 1e3;
    let unread = state.live.store_silent_seconds.unwrap_or(0.0);
    // Which is a part of that age.
    let silence = state.silence().unwrap_or(0.0);
    gauge(
        "rank_heartbeat_age_seconds",
        "The age of the rank's last heartbeat.",
        &|rank| {
            let heard = rank.process.is_some() || rank.silent_seconds.is_some();
            let silent = rank.silent_seconds.map_or(0.0, |seconds| seconds - silence);
            (heard && running).then_some(silent + unread + age)
        },
    );
}

/// The name of a figure of each rank, its description and its value.
type RankGauge = (&'static str, &'static str, fn(&RankState) -> Option<f64>);

const RANK_GAUGES: [RankGauge; 12] = [
    (
        "rank_up",
        "1 if the rank trains, 0 if it is silent, lost or has ended.",
        |rank| match rank.status {
            RankStatus::Unknown => None,
            RankStatus::Working | RankStatus::Straggling => Some(1.0),
            RankStatus::Silent | RankStatus::Lost | RankStatus::Ended => Some(0.0),
        },
    ),
    ("rank_step", "The rank's newest step.", |rank| {
        whole(rank.step)
    }),
    (
        "rank_step_seconds",
        "The mean step time of the newest logged steps.",
        |rank| Some(rank.times.as_ref()?.seconds),
    ),
    (
        "rank_communication_ratio",
        "The share of a step in gradient exchange that the backward pass does not hide.",
        |rank| share(rank, |step| step.exposed),
    ),
    (
        "rank_waiting_ratio",
        "The share of a step spent waiting for other ranks.",
        |rank| share(rank, |step| step.waited),
    ),
    (
        "rank_data_ratio",
        "The share of a step spent waiting for data.",
        |rank| share(rank, |step| step.data),
    ),
    (
        "rank_memory_bytes",
        "The memory of the rank's process.",
        |rank| whole(rank.process_metrics.memory_bytes),
    ),
    (
        "rank_peak_memory_bytes",
        "The most memory that the rank has used.",
        |rank| whole(rank.times.as_ref()?.peak_memory),
    ),
    (
        "rank_gpu_memory_bytes",
        "The memory in use on the rank's GPU.",
        |rank| whole(rank.process_metrics.gpu_memory_bytes),
    ),
    (
        "rank_gpu_memory_total_bytes",
        "The memory of the rank's GPU.",
        |rank| whole(rank.process_metrics.gpu_memory_total),
    ),
    (
        "rank_gpu_busy_ratio",
        "The share of time in which a kernel ran on the GPU.",
        |rank| Some(f64::from(rank.process_metrics.gpu_percent?) / 100.0),
    ),
    (
        "rank_gpu_celsius",
        "The temperature of the rank's GPU.",
        |rank| rank.process_metrics.gpu_celsius.map(f64::from),
    ),
];

fn whole(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// The share of a rank's step that `part` takes.
fn share(rank: &RankState, part: fn(&RankStep) -> f64) -> Option<f64> {
    let step = rank.times.as_ref()?;
    let some = step.seconds > 0.0;
    Some(if some { part(step) / step.seconds } else { 0.0 })
}

#[cfg(test)]
mod tests;
