//! The top of a report: how the run stands, its figures, and what could not be read.

use everburn_record::{EventKind, TrainingReport, plain, units};

use super::Section;
use super::markup::{Html, text};
use crate::clock;
use crate::run::results::{self, count, measured, of_steps};
use crate::run::{Note, Run};

/// How many notes are shown.
const MOST_NOTES: usize = 40;

/// What the page is called.
pub(super) fn title(run: &Run) -> String {
    let of_config = || run.config.get("model").map(str::to_owned);
    let report = run.results.as_ref();
    let model = report.and_then(|it| results::text(&it.model));
    let model = model.or_else(of_config);
    let data = report.and_then(|it| results::text(&it.dataset));
    let data = data.or_else(|| run.config.get("data.name").map(str::to_owned));
    let title = match (model, data) {
        (Some(model), Some(data)) => format!("{model} on {data}"),
        (Some(model), None) => model,
        _ => run.name(),
    };
    plain::line(&title, 120)
}

/// What is below it.
pub(super) fn subtitle(run: &Run) -> String {
    let started = run.environment.as_ref().and_then(|it| it.started_unix_ms);
    let started = started.and_then(clock::utc);
    let started = started.map(|time| format!(" · started {time} UTC"));
    let path = plain::line(&run.path.to_string_lossy(), 300);
    let state = plain::line(&run.state(), 200);
    format!("{path} · {state}{}", started.unwrap_or_default())
}

pub(super) fn section(run: &Run) -> Option<Section> {
    let mut section = Section::new("overview", "Overview");
    let html = &mut section.html;
    html.put(format_args!("<div class=\"tiles\">"));
    for tile in tiles(run) {
        tile.draw(html);
    }
    html.put(format_args!("</div>\n"));
    if let Some(failed_checkpoints) = run.events.failed_checkpoints() {
        html.put(format_args!(
            "<div class=\"notes\"><h3>Checkpoints that could not be written</h3><p>{}</p></div>\n",
            text(&plain::line(&failed_checkpoints, 1500))
        ));
    }
    notes(&run.notes, html);
    Some(section)
}

/// A figure of the run.
struct Tile {
    label: String,
    value: String,
    detail: String,
}

impl Tile {
    fn draw(&self, html: &mut Html) {
        html.put(format_args!(
            "<div class=\"tile\"><span>{}</span><strong>{}</strong><small>{}</small></div>",
            text(&self.label),
            text(&self.value),
            text(&self.detail)
        ));
    }
}

/// The tiles, of which those without a value are left out.
#[derive(Default)]
struct Tiles(Vec<Tile>);

impl Tiles {
    fn add(&mut self, label: &str, value: Option<String>, detail: impl Into<String>) {
        if let Some(value) = value {
            self.0.push(Tile {
                label: label.to_owned(),
                value,
                detail: detail.into(),
            });
        }
    }
}

fn tiles(run: &Run) -> Vec<Tile> {
    let report = run.results.clone().unwrap_or_default();
    let mut tiles = Tiles::default();
    losses(run, &report, &mut tiles);
    speed(run, &report, &mut tiles);
    memory(run, &report, &mut tiles);
    gradients(&report, &mut tiles);
    let events = [
        (EventKind::Loss, "lost", "lost"),
        (EventKind::Restart, "restarted", "restarted"),
        (EventKind::Stall, "stall", "stalls"),
        (EventKind::Divergence, "divergence", "divergences"),
    ];
    let events = events.map(|(kind, one, many)| match run.events.count(kind) {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{} {many}", units::count(count))),
    });
    let mut events = events.into_iter().flatten();
    let first = events.next();
    tiles.add("ranks", first, events.collect::<Vec<_>>().join(", "));
    tiles.0
}

fn number(value: f64) -> String {
    units::significant(value, 4)
}

/// `before`, `count` things of this name, `after`; nothing where the count is not known.
fn plural(before: &str, count: Option<u64>, noun: &str, after: &str) -> String {
    count.map_or(String::new(), |count| {
        let ending = if count == 1 { "" } else { "s" };
        format!("{before}{} {noun}{ending}{after}", units::count(count))
    })
}

fn losses(run: &Run, report: &TrainingReport, tiles: &mut Tiles) {
    let tested = (report.test_samples > 0).then_some(report.test_samples);
    let samples = plural("of ", tested, "sample", "");
    let accuracy = report.test_accuracy.map(|share| units::percent(share, 2));
    tiles.add("test accuracy", accuracy, samples.clone());
    let loss = report.test_loss.map(number);
    tiles.add("test loss", loss, "nats a prediction");
    for (name, mean) in results::named(report) {
        tiles.add(&format!("test {name}"), Some(number(mean)), samples.clone());
    }
    let losses = &run.metrics.loss;
    match (results::best(report), losses.validation.lowest()) {
        (Some((name, value, epoch)), _) => {
            tiles.add(&name, Some(number(value)), format!("epoch {epoch}"));
        }
        (None, Some(low)) => {
            let step = format!("step {}", units::count(low.x));
            tiles.add("best validation loss", Some(number(low.y)), step);
        }
        (None, None) => {}
    }
    if report.test_loss.is_none() {
        let last = losses.step.last().or(losses.epoch.last());
        let last = last.map(|last| number(last.y));
        tiles.add("last training loss", last, "nats a prediction");
    }
}

fn speed(run: &Run, report: &TrainingReport, tiles: &mut Tiles) {
    let metrics = &run.metrics;
    let rate = measured(report.samples_per_second).or_else(|| mean_rate(run));
    let rate = rate.map(|rate| number(rate.round()));
    let at_start = || run.ranks_at_start().map(|ranks| ranks as u64);
    let ranks = count(report.world_size).or_else(at_start);
    tiles.add("samples per second", rate, plural("on ", ranks, "rank", ""));
    let made = (metrics.last_step > 0).then_some(metrics.last_step);
    let steps = count(report.steps).or(made).map(units::count);
    let epochs = of_steps(report, report.epochs as u64);
    let epochs = plural("", epochs, "epoch", " finished");
    tiles.add("steps", steps, epochs);
    let trained = (metrics.train_seconds > 0.0).then_some(metrics.train_seconds);
    let in_steps = measured(report.train_seconds).or(trained);
    let in_steps = in_steps.map(units::seconds);
    match measured(report.seconds) {
        Some(seconds) => {
            let detail = in_steps.map(|steps| format!("{steps} of it in training steps"));
            let details = detail.into_iter().chain(since_resume(report));
            let detail = details.collect::<Vec<_>>().join(", ");
            tiles.add("time", Some(units::seconds(seconds)), detail);
        }
        None => tiles.add(
            "time in training steps",
            in_steps,
            "of the epochs that have ended",
        ),
    }
}

fn memory(run: &Run, report: &TrainingReport, tiles: &mut Tiles) {
    let recorded = run.metrics.peak_memory.highest();
    let peak = report
        .peak_memory
        .or(recorded.map(|peak| peak.y as u64))
        .map(units::bytes);
    let since = since_resume(report).map(|since| format!(", {since}"));
    let detail = format!("of a rank, in a step{}", since.unwrap_or_default());
    tiles.add("peak memory", peak, detail);
    if let Some(sharding) = &report.sharding
        && let Some((rank, held)) = sharding.fullest()
    {
        let detail = format!(
            "of gradients {}, of the optimizer {}; rank {rank}, --shard {}",
            units::bytes(held.gradients),
            units::bytes(held.optimizer),
            plain::line(&sharding.stage, 40)
        );
        let parameters = Some(units::bytes(held.parameters));
        tiles.add("parameters kept by a rank", parameters, detail);
    }
}

fn gradients(report: &TrainingReport, tiles: &mut Tiles) {
    let exposed = report.exposed_seconds;
    if let Some(train) = measured(report.train_seconds).filter(|_| exposed.is_finite()) {
        let sent = units::bytes(report.gradient_bytes);
        let share = Some(units::percent(exposed / train, 2));
        let detail = format!("of a step; {sent} of gradients");
        tiles.add("waiting for gradients", share, detail);
    }
}

/// Which steps times and memory are of, in a run that was resumed.
fn since_resume(report: &TrainingReport) -> Option<String> {
    let resumed = report.resumed_after_step()?;
    Some(format!(
        "since the resume at step {}",
        units::count(resumed as u64)
    ))
}

/// Samples per second, where there is no report yet.
fn mean_rate(run: &Run) -> Option<f64> {
    let (means, _) = run.metrics.samples_per_second.means(1);
    means.first().map(|mean| mean.y)
}

fn notes(notes: &[Note], html: &mut Html) {
    if notes.is_empty() {
        return;
    }
    html.put(format_args!(
        "<div class=\"notes\"><h3>What could not be read</h3><ul>"
    ));
    for note in notes.iter().take(MOST_NOTES) {
        let (file, what) = (plain::line(&note.file, 200), plain::line(&note.what, 500));
        html.put(format_args!(
            "<li><code>{}</code>: {}</li>",
            text(&file),
            text(&what)
        ));
    }
    if notes.len() > MOST_NOTES {
        html.put(format_args!(
            "<li>and {} more</li>",
            notes.len() - MOST_NOTES
        ));
    }
    html.put(format_args!("</ul></div>\n"));
}
