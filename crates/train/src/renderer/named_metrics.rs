//! The metrics whose names come with the first report.

use burn_train::LearnerSummary;
use burn_train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn_train::metric::{Metric, MetricDefinition, MetricEntry, MetricId, Numeric};
use burn_train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};

use crate::metrics::step_report::StepReport;
use crate::metrics::{NewestReport, RankMetric};

/// Shows what another renderer shows, and right after the loss the metrics of the objective. burn-train wants its
/// metrics registered before the training begins, when nobody knows what the objective will report: so these are
/// registered with the renderer when the first report is there, before the other metrics but the loss.
pub(crate) struct NamedMetrics {
    shown_by: Box<dyn MetricsRenderer>,
    newest: NewestReport,
    /// That of the loss, which is given each report before its state comes here.
    loss: MetricId,
    metrics: Vec<(String, RankMetric)>,
    /// What is to be registered after them; `None` once they are.
    waiting: Option<Vec<MetricDefinition>>,
}

impl NamedMetrics {
    pub(crate) fn on(shown_by: Box<dyn MetricsRenderer>, newest: &NewestReport) -> Self {
        Self {
            shown_by,
            newest: newest.clone(),
            loss: MetricId::new(RankMetric::loss().name()),
            metrics: Vec::new(),
            waiting: Some(Vec::new()),
        }
    }

    /// What comes after `state`.
    fn behind(&mut self, state: &MetricState) -> Vec<MetricState> {
        let (MetricState::Generic(entry) | MetricState::Numeric(entry, _)) = state;
        if entry.metric_id != self.loss {
            return Vec::new();
        }
        match self.newest.take() {
            Some(report) => self.update(&report),
            None => self.means(),
        }
    }

    fn update(&mut self, report: &StepReport) -> Vec<MetricState> {
        // A report of all ranks has nothing to read from a device.
        let Ok(sums) = report.sums() else {
            return Vec::new();
        };
        for name in sums.metrics.keys() {
            self.register(name);
        }
        for definition in self.waiting.take().into_iter().flatten() {
            self.shown_by.register_metric(definition);
        }
        let reported = self.metrics.iter_mut();
        let reported = reported.filter(|(name, _)| sums.metrics.contains_key(&**name));
        let states = reported.filter_map(|(_, metric)| metric.add(report));
        states.collect()
    }

    fn register(&mut self, name: &str) {
        if self.metrics.iter().any(|(known, _)| known == name) {
            return;
        }
        let metric = RankMetric::named(name);
        self.shown_by.register_metric(metric.definition());
        self.metrics.push((name.to_string(), metric));
    }

    /// The means of the split that ends, of the metrics that it had.
    fn means(&mut self) -> Vec<MetricState> {
        let states = self.metrics.iter_mut().filter_map(|(_, metric)| {
            let mean = metric.final_value();
            let entry = metric.compute().ok()?;
            let entry = MetricEntry::new(MetricId::new(metric.name()), entry);
            let is_there = !mean.current().is_nan();
            is_there.then_some(MetricState::Numeric(entry, Some(mean)))
        });
        states.collect()
    }
}

impl MetricsRendererTraining for NamedMetrics {
    fn update_train(&mut self, state: MetricState) {
        let behind = self.behind(&state);
        self.shown_by.update_train(state);
        for state in behind {
            self.shown_by.update_train(state);
        }
    }

    fn update_valid(&mut self, state: MetricState) {
        let behind = self.behind(&state);
        self.shown_by.update_valid(state);
        for state in behind {
            self.shown_by.update_valid(state);
        }
    }

    hand_on! { shown_by:
        fn on_train_end(summary: Option<LearnerSummary>) -> Result<(), Box<dyn std::error::Error>>;
    }
}

impl MetricsRenderer for NamedMetrics {
    fn register_metric(&mut self, definition: MetricDefinition) {
        match &mut self.waiting {
            Some(waiting) if definition.metric_id != self.loss => waiting.push(definition),
            _ => self.shown_by.register_metric(definition),
        }
    }

    hand_on! { shown_by:
        fn manual_close();
    }
}

impl TrainingProgressLogger for NamedMetrics {
    fn start_split(&mut self, split: &str, total_items: usize) {
        for (_, metric) in &mut self.metrics {
            metric.clear();
        }
        self.shown_by.start_split(split, total_items);
    }

    hand_on! { shown_by:
        fn start(total_epochs: usize, starting_epoch: usize, total_items: Option<usize>, label: Option<&str>);
        fn update_epoch(epoch: usize);
        fn update_split(items_processed: usize);
        fn end_split();
        fn end();
        fn log_event_training(event: String);
    }
}

hand_on_tests!(NamedMetrics, shown_by);
