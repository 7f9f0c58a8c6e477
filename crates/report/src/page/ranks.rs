//! What each rank did.

use everburn_record::units;

use super::markup::{Html, or_dash, text};
use super::{Data, Section, heat_map, lanes};
use crate::run::{Quantity, RankTimes, RankTotal, Run};

/// How many rows a map has: more are thinner than a line.
const MOST_ROWS: usize = 64;

/// How many ranks are in the table.
const MOST_RANKS: usize = 64;

pub(super) fn section(run: &Run, data: &mut Data) -> Option<Section> {
    let mut section = Section::new("ranks", "Ranks");
    let html = &mut section.html;
    match &run.ranks {
        Some(times) => {
            maps(times, data, html);
            table(times, html);
        }
        None if run.ranks_at_start().unwrap_or(1) > 1 => {
            html.put(format_args!(
                "<p class=\"faint\">The times of single ranks are not known: there is no <code>ranks.jsonl</code>."
            ));
            if !run.metrics.seconds.is_empty() {
                html.put(format_args!(
                    " Those of rank 0 are under <a href=\"#speed\">Speed</a>."
                ));
            }
            html.put(format_args!("</p>\n"));
        }
        None => {}
    }
    lanes::html(run, html);
    (!section.html.as_str().is_empty()).then_some(section)
}

/// A map for each quantity, of which one is shown; the reader chooses, which needs no script.
fn maps(times: &RankTimes, data: &mut Data, html: &mut Html) {
    let quantities = [
        ("work", "own work", Quantity::Work),
        ("waited", "waiting for ranks", Quantity::Waited),
        ("step", "whole step", Quantity::Step),
    ];
    html.put(format_args!(
        "<figure class=\"maps\"><figcaption><h3>Time of a step, by rank</h3><span class=\"choice\" role=\"radiogroup\" aria-label=\"time\">"
    ));
    for (number, (id, name, _)) in quantities.iter().enumerate() {
        let checked = if number == 0 { " checked" } else { "" };
        html.put(format_args!(
            "<label><input type=\"radio\" name=\"map\" value=\"{id}\"{checked}><span>{name}</span></label>"
        ));
    }
    html.put(format_args!("</span></figcaption>"));
    html.put(format_args!(
        "<p class=\"faint\">Ranks wait for each other, so all steps take as long as the slowest rank's. Own work shows which rank that is.</p>"
    ));
    for (id, name, quantity) in quantities {
        let grid = times.grid(quantity, MOST_ROWS);
        html.put(format_args!("<div class=\"pane {id}\">"));
        data.maps
            .insert(id.to_owned(), heat_map::html(id, name, &grid, html));
        html.put(format_args!("</div>"));
    }
    html.put(format_args!("</figure>\n"));
}

/// The parts of a step, in the order in which they are made; what is left is other work.
fn parts(total: &RankTotal) -> Vec<(&'static str, f64)> {
    let known = [
        ("data", total.data),
        ("forward", total.forward),
        ("backward", total.backward),
        ("optimizer", total.optimizer),
        ("waiting", total.waited),
    ];
    let sum: f64 = known.iter().map(|(_, seconds)| seconds).sum();
    let mut parts: Vec<_> = known
        .into_iter()
        .filter(|(_, seconds)| *seconds > 0.0)
        .collect();
    let name = if parts.iter().any(|(name, _)| *name != "waiting") {
        "other"
    } else {
        "work"
    };
    if total.seconds > sum {
        parts.push((name, total.seconds - sum));
    }
    parts
}

/// The ranks with what their steps are spent on, the slowest marked.
fn table(times: &RankTimes, html: &mut Html) {
    let slow = times.slow();
    let mut ranks: Vec<_> = times.totals().collect();
    let count = ranks.len();
    if count > MOST_RANKS {
        ranks.sort_by(|one, other| other.1.work().total_cmp(&one.1.work()));
        ranks.truncate(MOST_RANKS);
        ranks.sort_by_key(|(rank, _)| *rank);
    }
    let longest = ranks
        .iter()
        .map(|(_, total)| total.seconds / total.steps.max(1) as f64)
        .fold(0.0, f64::max);
    html.put(format_args!("<figure class=\"phases\"><figcaption><h3>Where the time of a step goes</h3></figcaption><div class=\"keys\">"));
    for name in [
        "data",
        "forward",
        "backward",
        "optimizer",
        "work",
        "other",
        "waiting",
    ] {
        if ranks
            .iter()
            .any(|(_, total)| parts(total).iter().any(|(part, _)| *part == name))
        {
            html.put(format_args!(
                "<span class=\"key\"><i class=\"p-{name}\"></i>{name}</span>"
            ));
        }
    }
    html.put(format_args!(
        "</div><div class=\"scroll\"><table><thead><tr><th>rank</th><th class=\"wide\">mean step</th><th>step</th>\
         <th>own work</th><th>waiting</th><th>memory</th><th>steps</th></tr></thead><tbody>"
    ));
    for (rank, total) in ranks {
        let steps = total.steps.max(1) as f64;
        let slower = slow.iter().find(|(other, _)| *other == rank);
        let mark = slower
            .map(|(_, times)| format!("<em>{times:.1}× the median</em>"))
            .unwrap_or_default();
        html.put(format_args!(
            "<tr><th scope=\"row\">{rank}</th><td class=\"wide\"><div class=\"bar\">"
        ));
        for (name, seconds) in parts(total) {
            let share = if longest > 0.0 {
                100.0 * seconds / steps / longest
            } else {
                0.0
            };
            let title = format!("{name}: {} per step", units::seconds(seconds / steps));
            html.put(format_args!(
                "<i class=\"p-{name}\" style=\"width:{share:.2}%\" title=\"{}\"></i>",
                text(&title)
            ));
        }
        html.put(format_args!(
            "</div></td><td>{}</td><td>{}{mark}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            units::seconds(total.seconds / steps),
            units::seconds(total.work()),
            units::seconds(total.waited / steps),
            or_dash(total.peak_memory, units::bytes),
            units::count(total.steps)
        ));
    }
    html.put(format_args!("</tbody></table></div>"));
    if count > MOST_RANKS {
        let count = units::count(count as u64);
        html.put(format_args!(
            "<p class=\"faint\">the {MOST_RANKS} slowest of {count} ranks</p>"
        ));
    }
    html.put(format_args!("</figure>\n"));
}
