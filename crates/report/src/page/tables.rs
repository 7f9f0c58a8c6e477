//! What is in tables: events, epochs, configuration, environment, files.

use everburn_record::{Event, EventKind, plain, units};

use super::Section;
use super::markup::{Html, or_dash, text};
use crate::clock;
use crate::run::results::{self, count, measured, of_steps};
use crate::run::{Events, Run};

/// How many events are listed, half of them from each end.
const MOST_EVENTS: usize = 400;

pub(super) fn events(events: &Events) -> Option<Section> {
    if events.iter().len() == 0 {
        return None;
    }
    let mut section = Section::new("events", "Events");
    let html = &mut section.html;
    html.put(format_args!("<p class=\"keys\">"));
    for kind in EventKind::ALL {
        let count = events.count(kind);
        if count > 0 {
            html.put(format_args!("<span class=\"key\">"));
            html.kind(kind);
            html.put(format_args!(" × {}</span>", units::count(count)));
        }
    }
    html.put(format_args!(
        "</p><div class=\"scroll tall\"><table class=\"events\"><thead><tr><th class=\"text\">what</th><th>after step</th><th>rank</th>\
         <th>time (UTC)</th><th class=\"text wide\"></th></tr></thead><tbody>"
    ));
    let (count, half) = (events.iter().len(), MOST_EVENTS / 2);
    for (number, event) in events.iter().enumerate() {
        if count > MOST_EVENTS && number == half {
            let more = units::count((count - MOST_EVENTS) as u64);
            html.put(format_args!(
                "<tr><td class=\"text faint\" colspan=\"5\">{more} more are not listed</td></tr>"
            ));
        }
        if count <= MOST_EVENTS || number < half || number >= count - half {
            row(event, html);
        }
    }
    html.put(format_args!("</tbody></table></div>\n"));
    Some(section)
}

fn row(event: &Event, html: &mut Html) {
    html.put(format_args!("<tr><td class=\"text\">"));
    html.kind(event.kind);
    html.put(format_args!("</td>"));
    // On a narrow screen a row becomes a paragraph, and its cells have their names before them.
    let cells = [
        ("after step ", event.step.map(units::count)),
        ("rank ", event.rank.map(|rank| rank.to_string())),
        ("", event.unix_time_ms.and_then(clock::utc)),
    ];
    for (name, value) in cells {
        match value {
            None => html.put(format_args!("<td class=\"none\">–</td>")),
            Some(value) => html.put(format_args!("<td data-l=\"{name}\">{}</td>", text(&value))),
        }
    }
    html.put(format_args!(
        "<td class=\"text wide\">{}</td></tr>",
        text(&plain::line(&event.text, 600))
    ));
}

/// A table of names and values.
fn pairs<'a>(pairs: impl Iterator<Item = (&'a str, String)>, html: &mut Html) {
    html.put(format_args!(
        "<div class=\"scroll\"><table class=\"pairs\"><tbody>"
    ));
    for (name, value) in pairs {
        html.put(format_args!("<tr><th scope=\"row\">"));
        // A long path breaks at its joints.
        for part in plain::line(name, 200).split_inclusive(['.', '_']) {
            html.put(format_args!("{}<wbr>", text(part)));
        }
        let value = plain::line(&value, 1000);
        html.put(format_args!("</th><td>{}</td></tr>", text(&value)));
    }
    html.put(format_args!("</tbody></table></div>\n"));
}

/// Configuration, with the results of each epoch before it.
pub(super) fn settings(run: &Run) -> Option<Section> {
    let mut section = Section::new("configuration", "Configuration and results");
    epochs(run, &mut section.html);
    results(run, &mut section.html);
    if !run.config.is_empty() {
        section.html.put(format_args!("<h3>Configuration</h3>\n"));
        let all = run.config.iter();
        pairs(
            all.map(|(name, value)| (name, value.to_owned())),
            &mut section.html,
        );
    }
    (!section.html.as_str().is_empty()).then_some(section)
}

fn epochs(run: &Run, html: &mut Html) {
    let epochs = &run.metrics.epochs;
    let Some(last) = epochs.back() else { return };
    let left_out = last.epoch.saturating_sub(epochs.len() as u64);
    html.put(format_args!(
        "<h3>Epochs</h3>\n<div class=\"scroll\"><table><thead><tr><th>epoch</th><th>step</th><th>loss</th><th>accuracy</th>\
         <th>validation loss</th><th>validation accuracy</th><th>time</th><th>samples/s</th></tr></thead><tbody>"
    ));
    for epoch in epochs {
        let number = |value| or_dash(value, |value| units::significant(value, 4));
        let share = |value| or_dash(value, |share| units::percent(share, 2));
        html.put(format_args!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            units::count(epoch.epoch),
            units::count(epoch.step),
            number(epoch.loss),
            share(epoch.accuracy),
            number(epoch.validation_loss),
            share(epoch.validation_accuracy),
            or_dash(epoch.seconds, units::seconds),
            or_dash(epoch.samples_per_second, |rate| units::count(rate.round() as u64))
        ));
    }
    html.put(format_args!("</tbody></table></div>\n"));
    if left_out > 0 {
        html.put(format_args!(
            "<p class=\"faint\">the last {} epochs</p>\n",
            epochs.len()
        ));
    }
}

fn results(run: &Run, html: &mut Html) {
    let Some(report) = &run.results else { return };
    let best = results::best(report);
    let named = results::named(report);
    let named: Vec<_> = named
        .map(|(name, mean)| (format!("test {name}"), mean))
        .collect();
    let mut rows: Vec<(&str, String)> = Vec::new();
    let mut add = |name, value: Option<String>| rows.extend(value.map(|value| (name, value)));
    let counted = |value: Option<u64>| value.map(units::count);
    let bytes = |value: Option<u64>| value.map(units::bytes);
    let seconds = |value: Option<f64>| value.map(units::seconds);
    let number = |value: Option<f64>, digits| Some(units::significant(value?, digits));
    let accuracy = report.test_accuracy.map(|share| units::percent(share, 2));
    add("model", results::text(&report.model));
    add("data", results::text(&report.dataset));
    add("data from", results::text(&report.dataset_origin));
    add("test accuracy", accuracy);
    add("test loss", number(report.test_loss, 6));
    for (name, mean) in &named {
        add(name, number(Some(*mean), 6));
    }
    let tested = (report.test_samples > 0).then_some(report.test_samples);
    add("test samples", counted(tested));
    let changed =
        "some may have been trained on: the run was resumed with other data than it had before";
    let warning = report.data_changed.then(|| changed.to_owned());
    add("warning of the test", warning);
    if let Some((name, value, epoch)) = &best {
        let value = units::significant(*value, 6);
        add(name, Some(format!("{value} (epoch {epoch})")));
    }
    add("epochs", counted(of_steps(report, report.epochs as u64)));
    add("steps", counted(count(report.steps)));
    let resumed = report.resumed_after_step().map(|step| step as u64);
    add("times and memory since step", counted(resumed));
    let ranks = count(report.world_size).map(|ranks| ranks.to_string());
    add("ranks at the end", ranks);
    add("global batch", counted(count(report.batch_size)));
    let rate = measured(report.samples_per_second);
    add("samples per second", number(rate, 5));
    add("time", seconds(measured(report.seconds)));
    let in_steps = seconds(measured(report.train_seconds));
    add("time in training steps", in_steps);
    let exposed = of_steps(report, report.exposed_seconds);
    let exposed = exposed.filter(|exposed| exposed.is_finite());
    add("waiting for gradients", seconds(exposed));
    add(
        "gradients sent by rank 0",
        bytes(of_steps(report, report.gradient_bytes)),
    );
    add("peak memory per rank", bytes(report.peak_memory));
    let resumed = report.resumed_after_epoch.map(|epoch| epoch as u64);
    add("resumed after epoch", counted(resumed));
    add("stopped", report.stopped.clone());
    html.put(format_args!("<h3>Results</h3>\n"));
    pairs(rows.into_iter(), html);
}

pub(super) fn environment(run: &Run) -> Option<Section> {
    let mut section = Section::new("environment", "Environment");
    let mut rows: Vec<(&str, String)> = Vec::new();
    let mut add = |name, value: Option<String>| rows.extend(value.map(|value| (name, value)));
    let none = everburn_record::Environment::default();
    let known = run.environment.as_ref().unwrap_or(&none);
    let started = known.started_unix_ms.and_then(clock::utc);
    add("started", started.map(|time| format!("{time} UTC")));
    add("command", known.command.clone());
    add("host", known.host.clone());
    add("system", known.system.clone());
    add("kernel", known.kernel.clone());
    add("processor", known.processor.clone());
    add("cores", known.cores.map(|cores| cores.to_string()));
    add("memory", known.memory_bytes.map(units::bytes));
    let accelerators = Some(known.accelerators.join(", "));
    add("accelerators", accelerators.filter(|all| !all.is_empty()));
    if let Some(report) = &run.results {
        add("Everburn", results::text(&report.versions.everburn));
        add("Burn", results::text(&report.versions.burn));
    }
    let more = known.versions.iter().chain(&known.variables).take(200);
    rows.extend(
        more.map(|(name, value)| (name.as_str(), plain::unless_secret(name, value).to_owned())),
    );
    if run.environment.is_none() {
        section.html.put(format_args!(
            "<p class=\"faint\">Where the run was made is not known: there is no <code>environment.json</code>.</p>\n"
        ));
    }
    pairs(rows.into_iter(), &mut section.html);
    Some(section)
}

pub(super) fn files(run: &Run) -> Option<Section> {
    let mut section = Section::new("files", "Files");
    let all = run.files.iter().take(200);
    let all = all.map(|(name, bytes)| (name.as_str(), units::bytes(*bytes)));
    pairs(all, &mut section.html);
    Some(section)
}
