//! What was learnt, and how fast: charts of one run.

use everburn_record::{Event, EventKind};

use super::{Data, Section};
use crate::Series;
use crate::chart::{Chart, Detail, Line};
use crate::run::{Curve, Run};

pub(crate) const MIB: f64 = (1 << 20) as f64;

/// What is marked in the charts: what may have bent a curve.
fn bends(run: &Run) -> impl Iterator<Item = &Event> {
    let bends = [
        EventKind::Resume,
        EventKind::Loss,
        EventKind::Regroup,
        EventKind::Stall,
        EventKind::Divergence,
    ];
    run.events
        .iter()
        .filter(move |event| bends.contains(&event.kind))
}

/// Loss, accuracy and other metrics, learning rate and gradients.
pub(super) fn learning(run: &Run, detail: Detail, data: &mut Data) -> Option<Section> {
    let metrics = &run.metrics;
    let loss = Chart::new("loss", "Loss", "nats a prediction").or_logarithmic();
    let accuracy = Chart::new("accuracy", "Accuracy", "% of predictions");
    let mut charts = vec![
        loss.with(both(&metrics.loss, 1.0), detail),
        accuracy.with(both(&metrics.accuracy, 100.0), detail),
    ];
    for (number, (name, curve)) in metrics.named.iter().enumerate() {
        let named = Chart::new(&format!("metric-{number}"), name, "mean");
        charts.push(named.with(both(curve, 1.0), detail));
    }
    let rate = Chart::new("learning-rate", "Learning rate", "per step").with_zero();
    let line = Line::new("learning rate", &metrics.learning_rate, 2);
    charts.push(rate.with([line], detail));
    let norm = Chart::new("gradient-norm", "Norm of all gradients", "before clipping");
    let line = Line::new("gradient norm", &metrics.gradient_norm, 3).noisy();
    charts.push(norm.or_logarithmic().with([line], detail));
    for chart in &mut charts {
        chart.mark(bends(run));
    }
    if let Some(start) = start(run) {
        let by_time = Chart::new("loss-by-time", "Loss over time", "nats a prediction");
        let curve = &metrics.loss_by_time;
        let lines = [
            Line::new("training", &curve.step, 0).noisy().since(start),
            Line::new("validation", &curve.validation, 1)
                .dotted()
                .since(start),
        ];
        charts.push(by_time.or_logarithmic().over_time().with(lines, detail));
    }
    Section::of_charts("learning", "Learning", &charts, data)
}

/// When the run began, where lines have a time: milliseconds since 1970.
pub(crate) fn start(run: &Run) -> Option<u64> {
    let first = run.metrics.loss_by_time.step.first()?.x;
    let said = run.environment.as_ref().and_then(|it| it.started_unix_ms);
    Some(said.filter(|said| *said <= first).unwrap_or(first))
}

/// Training and validation; where no single steps were recorded, the epochs.
fn both(curve: &Curve, factor: f64) -> [Line<'_>; 2] {
    let training = match curve.step.count() {
        0 | 1 => Line::new("training, mean of an epoch", &curve.epoch, 0).dotted(),
        _ => Line::new("training", &curve.step, 0).noisy(),
    };
    let validation = Line::new("validation", &curve.validation, 1).dotted();
    [training, validation].map(|line| line.times(factor))
}

/// Throughput, what a step is spent on, memory and bytes.
pub(super) fn speed(run: &Run, detail: Detail, data: &mut Data) -> Option<Section> {
    let metrics = &run.metrics;
    let is_positive = |series: &Series| series.highest().is_some_and(|highest| highest.y > 0.0);
    let rate = Chart::new("throughput", "Throughput", "samples per second, all ranks");
    let line = Line::new("throughput", &metrics.samples_per_second, 0).noisy();
    let mut charts = vec![rate.with_zero().with([line], detail)];

    let longest = metrics.seconds.highest().map_or(0.0, |highest| highest.y);
    let (factor, unit) = match longest {
        1.0.. => (1.0, "s, on rank 0"),
        0.001.. => (1e3, "ms, on rank 0"),
        _ => (1e6, "µs, on rank 0"),
    };
    let line = |name, series, colour| Line::new(name, series, colour).noisy().times(factor);
    let time = Chart::new("step-time", "Time of a step", unit)
        .with_zero()
        .or_logarithmic();
    let mut time = time.with([line("whole step", &metrics.seconds, 0)], detail);
    if is_positive(&metrics.waited) {
        let parts = [
            line("waiting for ranks", &metrics.waited, 1),
            line("gradients on their way", &metrics.communication, 2),
        ];
        time = time.with(parts, detail.less().less());
    }
    charts.push(time);

    let memory = Chart::new("memory", "Peak memory", "MiB, of the rank that uses most");
    let line = Line::new("peak memory", &metrics.peak_memory, 4).times(1.0 / MIB);
    charts.push(memory.with_zero().with([line], detail));
    if is_positive(&metrics.gradient_bytes) {
        let bytes = Chart::new("bytes", "Gradients sent in a step", "MiB, by rank 0");
        let line = Line::new("gradients", &metrics.gradient_bytes, 5).times(1.0 / MIB);
        charts.push(bytes.with_zero().with([line], detail));
    }
    for chart in &mut charts {
        chart.mark(bends(run));
    }
    Section::of_charts("speed", "Speed", &charts, data)
}
