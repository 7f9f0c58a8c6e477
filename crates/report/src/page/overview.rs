//! The top of a report: how the run stands, its figures, and what could not be read.

use everburn_record::{EventKind, plain, units};

use super::Section;
use super::markup::{Html, text};
use crate::clock;
use crate::run::{Note, Run};

/// How many notes are shown.
const MOST_NOTES: usize = 40;

/// What the page is called.
pub(super) fn title(run: &Run) -> String {
    let of_config = || run.config.get("model").map(str::to_owned);
    let model = run
        .results
        .as_ref()
        .and_then(|results| results.model.clone())
        .or_else(of_config);
    let data = run
        .results
        .as_ref()
        .and_then(|results| results.dataset.clone());
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
    let started = run
        .environment
        .as_ref()
        .and_then(|environment| environment.started_unix_ms);
    let started = started
        .and_then(clock::utc)
        .map(|time| format!(" · started {time} UTC"));
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

fn tiles(run: &Run) -> Vec<Tile> {
    let results = run.results.clone().unwrap_or_default();
    let metrics = &run.metrics;
    let mut tiles = Vec::new();
    let mut add = |label: &str, value: Option<String>, detail: String| {
        if let Some(value) = value {
            tiles.push(Tile {
                label: label.to_owned(),
                value,
                detail,
            });
        }
    };
    let count = |number: Option<u64>| number.map(units::count);
    let number = |value: f64| units::significant(value, 4);
    let plural = |count: u64, noun: &str| {
        let ending = if count == 1 { "" } else { "s" };
        format!("{} {noun}{ending}", units::count(count))
    };
    let samples = results.test_samples.map_or(String::new(), |samples| {
        format!("of {}", plural(samples, "sample"))
    });
    add(
        "test accuracy",
        results.test_accuracy.map(|share| units::percent(share, 2)),
        samples.clone(),
    );
    add(
        "test loss",
        results.test_loss.map(number),
        "nats a prediction".to_owned(),
    );
    for (name, mean) in results.named() {
        add(&format!("test {name}"), Some(number(mean)), samples.clone());
    }
    let lowest = metrics.loss.validation.lowest();
    match (results.best(), lowest) {
        (Some((name, value, epoch)), _) => {
            add(&name, Some(number(value)), format!("epoch {epoch}"));
        }
        (None, Some(low)) => {
            let step = format!("step {}", units::count(low.x));
            add("best validation loss", Some(number(low.y)), step);
        }
        (None, None) => {}
    }
    if results.test_loss.is_none() {
        let last = metrics.loss.step.last().or(metrics.loss.epoch.last());
        add(
            "last training loss",
            last.map(|last| number(last.y)),
            "nats a prediction".to_owned(),
        );
    }
    let rate = results.samples_per_second.or_else(|| mean_rate(run));
    let ranks = results
        .world_size
        .or_else(|| run.ranks_at_start())
        .map(|ranks| ranks as u64);
    let on = ranks.map_or(String::new(), |ranks| {
        format!("on {}", plural(ranks, "rank"))
    });
    add(
        "samples per second",
        rate.map(|rate| number(rate.round())),
        on,
    );
    let steps = results
        .steps
        .or((metrics.last_step > 0).then_some(metrics.last_step));
    let epochs = results.epochs.map_or(String::new(), |epochs| {
        format!("{} finished", plural(epochs, "epoch"))
    });
    add("steps", count(steps), epochs);
    let train = results
        .train_seconds
        .or((metrics.train_seconds > 0.0).then_some(metrics.train_seconds));
    let in_steps = train.map(units::seconds);
    match results.seconds {
        Some(seconds) => {
            let detail = in_steps.map_or(String::new(), |steps| {
                format!("{steps} of it in training steps")
            });
            add("time", Some(units::seconds(seconds)), detail);
        }
        None => add(
            "time in training steps",
            in_steps,
            "of the epochs that have ended".to_owned(),
        ),
    }
    let peak = results
        .peak_memory
        .map(|bytes| bytes as f64)
        .or(metrics.peak_memory.highest().map(|peak| peak.y));
    add(
        "peak memory",
        peak.map(|bytes| units::bytes(bytes as u64)),
        "of a rank, in a step".to_owned(),
    );
    if let Some(sharding) = &results.sharding
        && let Some((rank, held)) = sharding.most()
    {
        let detail = format!(
            "of gradients {}, of the optimizer {}; rank {rank}, --shard {}",
            units::bytes(held.gradients),
            units::bytes(held.optimizer),
            plain::line(&sharding.stage, 40)
        );
        add(
            "parameters kept by a rank",
            Some(units::bytes(held.parameters)),
            detail,
        );
    }
    if let (Some(exposed), Some(train)) = (
        results.exposed_seconds,
        results.train_seconds.filter(|train| *train > 0.0),
    ) {
        let sent = results.gradient_bytes.map(units::bytes);
        let detail = sent.map_or(String::new(), |sent| {
            format!("of a step; {sent} of gradients")
        });
        add(
            "waiting for gradients",
            Some(units::percent(exposed / train, 2)),
            detail,
        );
    }
    let told = [
        (EventKind::Loss, "lost", "lost"),
        (EventKind::Restart, "restarted", "restarted"),
        (EventKind::Stall, "stall", "stalls"),
        (EventKind::Divergence, "divergence", "divergences"),
    ];
    let told = told.map(|(kind, one, many)| match run.events.count(kind) {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{} {many}", units::count(count))),
    });
    let mut told = told.into_iter().flatten();
    add("ranks", told.next(), told.collect::<Vec<_>>().join(", "));
    tiles
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
