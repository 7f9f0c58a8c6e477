//! Progress as plain lines, for files, pipes and logs.

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};

use burn_train::LearnerSummary;
use burn_train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn_train::metric::{MetricDefinition, MetricId};
use burn_train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};
use everburn_record::units;

/// How often a line is written during a split.
const INTERVAL: Duration = Duration::from_secs(2);

/// The same where the line stays in place.
const INTERVAL_IN_PLACE: Duration = Duration::from_millis(200);

/// Metrics that are costs, by their names: `metrics.jsonl` and the dashboard have them, a line has no space for them.
const COSTS: [&str; 4] = [
    "Waiting for ranks",
    "Exposed communication",
    "Peak memory",
    "Learning Rate",
];

/// The width of a line that stays in place: what fits a terminal of 80 columns, after the launcher's `[rank 0] `.
const COLUMNS: usize = 80 - "[rank 0] ".len();

/// The cells of the bar.
const BAR: usize = 10;

/// Set by a launcher that shows the rank's output on a terminal, and takes a line that ends in a carriage return and a
/// newline for one that the next line replaces.
const PROGRESS: &str = "EVERBURN_PROGRESS";

/// Writes a line every two seconds, and one at the end of each split, with the metrics so far. On the terminal of a launcher a
/// bar stays in place during a split. Other terminals have lines, too: `mpirun` gives rank 0 one whose output goes to a file.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn_train::logger::TrainingProgressLogger;
///
/// let mut lines = everburn::train::renderer::Lines::new(Box::new(std::io::sink()));
/// lines.start(3, 1, None, None);
/// lines.start_split("train", 100);
/// lines.update_split(64);
/// lines.end_split();
/// ```
pub struct Lines {
    output: Box<dyn Write + Send + Sync>,
    names: HashMap<MetricId, String>,
    /// Newest text of each metric, in the order of registration.
    metrics: Vec<(String, String)>,
    epoch: usize,
    epochs: usize,
    split: String,
    processed: usize,
    total: usize,
    /// The last line of the split has been written.
    ended: bool,
    last: Instant,
    /// Since the first samples of the split, which a resumed epoch begins with.
    pace: Option<Pace>,
    /// How many samples per second there were lately; `None` in the last line of a split, which has the mean.
    rate: Option<f64>,
    /// The last line, where lines stay.
    written: String,
    /// A launcher writes to a terminal, on which the next line replaces one of progress.
    in_place: bool,
}

/// How many samples were processed when: two marks, so that the newest rate is that of at least [`INTERVAL`].
#[derive(Debug, Clone, Copy)]
struct Pace {
    since: (Instant, usize),
    next: (Instant, usize),
}

impl Pace {
    fn begin(now: Instant, processed: usize) -> Self {
        Self {
            since: (now, processed),
            next: (now, processed),
        }
    }

    /// How many samples per second there were between the line before and now; `None` in the first line, where the clock
    /// has just begun.
    fn rate(&mut self, now: Instant, processed: usize) -> Option<f64> {
        if now.duration_since(self.next.0) >= INTERVAL {
            self.since = std::mem::replace(&mut self.next, (now, processed));
        }
        let (at, before) = self.since;
        let seconds = now.duration_since(at).as_secs_f64();
        let samples = processed.checked_sub(before)?;
        (seconds > 0.0 && samples > 0).then(|| samples as f64 / seconds)
    }
}

impl Lines {
    /// Writes to `output`.
    pub fn new(output: Box<dyn Write + Send + Sync>) -> Self {
        Self {
            output,
            in_place: false,
            names: HashMap::new(),
            metrics: Vec::new(),
            epoch: 0,
            epochs: 0,
            split: String::new(),
            processed: 0,
            total: 0,
            ended: true,
            last: Instant::now(),
            pace: None,
            rate: None,
            written: String::new(),
        }
    }

    /// Writes to standard output.
    pub fn stdout() -> Self {
        Self {
            in_place: std::env::var_os(PROGRESS).is_some_and(|value| value == "1"),
            ..Self::new(Box::new(std::io::stdout()))
        }
    }

    fn update(&mut self, state: &MetricState) {
        let (MetricState::Generic(entry) | MetricState::Numeric(entry, _)) = state;
        let name = self.names.get(&entry.metric_id);
        let Some(name) = name.filter(|name| !COSTS.contains(&name.as_str())) else {
            return;
        };
        // burn-train formats "epoch A - batch B": the mean so far is what a reader wants.
        let text = &entry.serialized_entry.formatted;
        let text = text.strip_prefix("epoch ").unwrap_or(text);
        let text = text.split(" - batch").next().unwrap_or(text).to_string();
        match self.metrics.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = text,
            None => self.metrics.push((name.clone(), text)),
        }
    }

    /// The metrics so far, each as it is in a line.
    fn metrics(&self) -> impl Iterator<Item = String> {
        let rate = self.rate.map(units::rate);
        let of_metric = move |(name, text): &(String, String)| match name.as_str() {
            "Samples per second" => format!("  {} samples/s", rate.as_ref().unwrap_or(text)),
            name => format!("  {} {text}", name.to_lowercase()),
        };
        self.metrics.iter().map(of_metric)
    }

    fn whole_line(&self) -> String {
        let Self { epoch, epochs, .. } = self;
        let (processed, total, split) = (self.processed, self.total, &self.split);
        let metrics = self.metrics().collect::<String>();
        format!("epoch {epoch}/{epochs}  {split:<5}  {processed}/{total}{metrics}")
    }

    /// A bar, and the metrics that fit.
    fn bar(&self) -> String {
        let done = (BAR * self.processed.min(self.total))
            .checked_div(self.total)
            .unwrap_or(0);
        let (done, left) = ("#".repeat(done), "-".repeat(BAR - done));
        let (epoch, epochs, split) = (self.epoch, self.epochs, &self.split);
        let mut line = format!("epoch {epoch}/{epochs} {split} [{done}{left}]");
        for metric in self.metrics() {
            if line.chars().count() + metric.chars().count() <= COLUMNS {
                line.push_str(&metric);
            }
        }
        line
    }

    /// Writes the line of now. `stays` is false for one that the next line replaces, where that is possible.
    fn write_line(&mut self, stays: bool) {
        self.last = Instant::now();
        let (now, processed) = (self.last, self.processed);
        let pace = self.pace.as_mut().filter(|_| !stays);
        self.rate = pace.and_then(|pace| pace.rate(now, processed));
        let is_replaced = self.in_place && !stays;
        let line = match is_replaced {
            true => self.bar(),
            false => self.whole_line(),
        };
        // A limit of steps ends a split where a line may just have been written.
        if !self.in_place && self.written == line {
            return;
        }
        self.written.clone_from(&line);
        let end = if is_replaced { "\r\n" } else { "\n" };
        // An error means that standard output is closed; the training continues.
        let _ = self
            .output
            .write_all(format!("{line}{end}").as_bytes())
            .and_then(|()| self.output.flush());
    }
}

impl MetricsRendererTraining for Lines {
    fn update_train(&mut self, state: MetricState) {
        self.update(&state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update(&state);
    }

    fn on_train_end(
        &mut self,
        _summary: Option<LearnerSummary>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for Lines {
    fn update_test(&mut self, _name: EvaluationName, state: MetricState) {
        self.update(&state);
    }
}

impl MetricsRenderer for Lines {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names
            .insert(definition.metric_id, definition.name.to_string());
    }
}

impl TrainingProgressLogger for Lines {
    fn start(
        &mut self,
        total_epochs: usize,
        starting_epoch: usize,
        _total_items: Option<usize>,
        _label: Option<&str>,
    ) {
        self.epochs = total_epochs;
        self.epoch = starting_epoch;
    }

    fn update_epoch(&mut self, epoch: usize) {
        self.epoch = epoch + 1;
    }

    fn start_split(&mut self, split: &str, total_items: usize) {
        self.split = split.to_string();
        self.total = total_items;
        self.processed = 0;
        self.ended = false;
        (self.pace, self.rate) = (None, None);
        self.metrics.clear();
    }

    fn update_split(&mut self, items_processed: usize) {
        self.processed = items_processed;
        let begin = || Pace::begin(Instant::now(), items_processed);
        self.pace.get_or_insert_with(begin);
        let interval = match self.in_place {
            true => INTERVAL_IN_PLACE,
            false => INTERVAL,
        };
        if self.last.elapsed() >= interval && items_processed < self.total {
            self.write_line(false);
        }
    }

    /// May be called twice: a limit of steps ends a split within.
    fn end_split(&mut self) {
        // A stop between two splits leaves one without samples.
        if !std::mem::replace(&mut self.ended, true) && self.processed > 0 {
            self.write_line(true);
        }
    }

    fn end(&mut self) {}

    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for Lines {
    fn start_global_progress(&mut self, _total_tests: usize) {}

    fn start_test(&mut self, name: &str, total_items: usize) {
        self.start_split(name, total_items);
    }

    fn update_test_progress(&mut self, items_processed: usize) {
        self.update_split(items_processed);
    }

    fn end_test(&mut self) {
        self.end_split();
    }

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}

#[cfg(test)]
pub(super) mod tests;
