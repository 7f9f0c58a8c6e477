//! What was learnt, and how fast: charts of one run.

use everburn_record::{Event, EventKind};

use super::{Data, Section};
use crate::chart::{Chart, Detail, Line};
use crate::run::{Curve, Run};

const MIB: f64 = (1 << 20) as f64;

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
    let mut section = Section::new("learning", "Learning");
    let metrics = &run.metrics;
    let mut charts = Vec::new();

    let mut loss = Chart::new("loss", "Loss", "nats a prediction").or_logarithmic();
    add(&mut loss, &metrics.loss, 1.0, detail);
    charts.push(loss);
    let mut accuracy = Chart::new("accuracy", "Accuracy", "% of predictions");
    add(&mut accuracy, &metrics.accuracy, 100.0, detail);
    charts.push(accuracy);
    for (number, (name, curve)) in metrics.named.iter().enumerate() {
        let mut named = Chart::new(&format!("metric-{number}"), name, "mean");
        add(&mut named, curve, 1.0, detail);
        charts.push(named);
    }
    let series = &metrics.learning_rate;
    let mut rate = Chart::new("learning-rate", "Learning rate", "per step").with_zero();
    rate.add(&Line::new("learning rate", series, 2), detail);
    charts.push(rate);
    let mut norm =
        Chart::new("gradient-norm", "Norm of all gradients", "before clipping").or_logarithmic();
    norm.add(
        &Line::new("gradient norm", &metrics.gradient_norm, 3).noisy(),
        detail,
    );
    charts.push(norm);
    for chart in &mut charts {
        chart.mark(bends(run));
    }
    if let Some(start) = start(run) {
        let mut by_time = Chart::new("loss-by-time", "Loss over time", "nats a prediction")
            .or_logarithmic()
            .over_time();
        let curve = &metrics.loss_by_time;
        by_time.add(
            &Line::new("training", &curve.step, 0).noisy().since(start),
            detail,
        );
        by_time.add(
            &Line::new("validation", &curve.validation, 1)
                .dotted()
                .since(start),
            detail,
        );
        charts.push(by_time);
    }
    draw(&charts, &mut section, data)
}

/// When the run began, where lines have a time: milliseconds since 1970.
pub(crate) fn start(run: &Run) -> Option<u64> {
    let first = run.metrics.loss_by_time.step.first()?.x;
    let said = run
        .environment
        .as_ref()
        .and_then(|environment| environment.started_unix_ms);
    Some(said.filter(|said| *said <= first).unwrap_or(first))
}

/// Training and validation; where no single steps were recorded, the epochs.
fn add(chart: &mut Chart, curve: &Curve, factor: f64, detail: Detail) {
    match curve.step.count() {
        0 | 1 => chart.add(
            &Line::new("training, mean of an epoch", &curve.epoch, 0)
                .times(factor)
                .dotted(),
            detail,
        ),
        _ => chart.add(
            &Line::new("training", &curve.step, 0).noisy().times(factor),
            detail,
        ),
    }
    chart.add(
        &Line::new("validation", &curve.validation, 1)
            .times(factor)
            .dotted(),
        detail,
    );
}

/// Throughput, what a step is spent on, memory and bytes.
pub(super) fn speed(run: &Run, detail: Detail, data: &mut Data) -> Option<Section> {
    let mut section = Section::new("speed", "Speed");
    let metrics = &run.metrics;
    let mut charts = Vec::new();
    let series = &metrics.samples_per_second;
    let mut rate =
        Chart::new("throughput", "Throughput", "samples per second, all ranks").with_zero();
    rate.add(&Line::new("throughput", series, 0).noisy(), detail);
    charts.push(rate);

    let longest = metrics.seconds.highest().map_or(0.0, |highest| highest.y);
    let (factor, unit) = match longest {
        1.0.. => (1.0, "s, on rank 0"),
        0.001.. => (1e3, "ms, on rank 0"),
        _ => (1e6, "µs, on rank 0"),
    };
    let mut time = Chart::new("step-time", "Time of a step", unit)
        .with_zero()
        .or_logarithmic();
    time.add(
        &Line::new("whole step", &metrics.seconds, 0)
            .noisy()
            .times(factor),
        detail,
    );
    let several = metrics
        .waited
        .highest()
        .is_some_and(|highest| highest.y > 0.0);
    let coarse = detail.less().less();
    if several {
        time.add(
            &Line::new("waiting for ranks", &metrics.waited, 1)
                .noisy()
                .times(factor),
            coarse,
        );
        time.add(
            &Line::new("gradients on their way", &metrics.communication, 2)
                .noisy()
                .times(factor),
            coarse,
        );
    }
    charts.push(time);

    let mut memory =
        Chart::new("memory", "Peak memory", "MiB, of the rank that uses most").with_zero();
    memory.add(
        &Line::new("peak memory", &metrics.peak_memory, 4).times(1.0 / MIB),
        detail,
    );
    charts.push(memory);
    let sends = metrics
        .gradient_bytes
        .highest()
        .is_some_and(|highest| highest.y > 0.0);
    if sends {
        let mut bytes =
            Chart::new("bytes", "Gradients sent in a step", "MiB, by rank 0").with_zero();
        bytes.add(
            &Line::new("gradients", &metrics.gradient_bytes, 5).times(1.0 / MIB),
            detail,
        );
        charts.push(bytes);
    }
    for chart in &mut charts {
        chart.mark(bends(run));
    }
    draw(&charts, &mut section, data)
}

fn draw(charts: &[Chart], section: &mut Section, data: &mut Data) -> Option<Section> {
    if charts.iter().all(Chart::is_empty) {
        return None;
    }
    section.html.put(format_args!("<div class=\"charts\">\n"));
    for chart in charts {
        data.chart(chart, &mut section.html);
    }
    section.html.put(format_args!("</div>\n"));
    let drawn = Section::new(section.id, section.title);
    Some(std::mem::replace(section, drawn))
}
