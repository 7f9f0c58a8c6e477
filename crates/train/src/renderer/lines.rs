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

/// How often a line is written while a split goes on.
const INTERVAL: Duration = Duration::from_secs(2);

/// Writes a line every two seconds, and one at the end of each split, with the metrics so far.
///
/// ```
/// use burn_train::logger::TrainingProgressLogger;
///
/// let mut lines = everburn_train::renderer::Lines::new(Box::new(std::io::sink()));
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
    last: Instant,
}

impl Lines {
    /// Writes to `output`.
    pub fn new(output: Box<dyn Write + Send + Sync>) -> Self {
        Self {
            output,
            names: HashMap::new(),
            metrics: Vec::new(),
            epoch: 0,
            epochs: 0,
            split: String::new(),
            processed: 0,
            total: 0,
            last: Instant::now(),
        }
    }

    /// Writes to standard output.
    pub fn stdout() -> Self {
        Self::new(Box::new(std::io::stdout()))
    }

    fn update(&mut self, state: &MetricState) {
        let (MetricState::Generic(entry) | MetricState::Numeric(entry, _)) = state;
        let Some(name) = self.names.get(&entry.metric_id) else {
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

    fn write_line(&mut self) {
        self.last = Instant::now();
        let metrics = self
            .metrics
            .iter()
            .map(|(name, text)| format!("  {} {text}", name.to_lowercase()));
        let line = format!(
            "epoch {}/{}  {:<5}  {}/{}{}",
            self.epoch,
            self.epochs,
            self.split,
            self.processed,
            self.total,
            metrics.collect::<String>()
        );
        // Nobody is left to tell when standard output is closed; the training goes on.
        let _ = writeln!(self.output, "{line}").and_then(|()| self.output.flush());
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
        self.metrics.clear();
    }

    fn update_split(&mut self, items_processed: usize) {
        self.processed = items_processed;
        if self.last.elapsed() >= INTERVAL && items_processed < self.total {
            self.write_line();
        }
    }

    fn end_split(&mut self) {
        self.write_line();
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
        self.write_line();
    }

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}
