//! Which ranks took part when, and what befell them: one lane per rank.

use everburn_record::svg::{Axis, Labels};
use everburn_record::{Event, EventKind, plain, units};

use super::markup::{Html, text};
use crate::run::{Events, Run};

/// How many lanes are drawn.
const MOST_LANES: usize = 64;

/// How many signs are in the lanes: more would be on each other.
const MOST_SIGNS: usize = 300;

/// A rank and the steps that it took part in, as (first, last).
type Lane = (usize, Vec<(u64, u64)>);

/// The lanes of `ranks` ranks over `last` steps.
fn lanes(events: &Events, ranks: usize, last: u64) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = (0..ranks).map(|rank| (rank, Vec::new())).collect();
    // Where groups begin: all ranks at first, then those of each new group, from its first step on.
    let mut groups: Vec<(u64, Vec<usize>)> = vec![(0, (0..ranks).collect())];
    groups.extend(
        events
            .memberships()
            .map(|(step, ranks)| (step.saturating_sub(1), ranks.to_vec())),
    );
    for (number, (from, members)) in groups.iter().enumerate() {
        let until = groups.get(number + 1).map_or(last, |(step, _)| *step);
        for (rank, spans) in &mut lanes {
            if !members.contains(rank) {
                continue;
            }
            match spans.last_mut() {
                Some((_, end)) if *end >= *from => *end = until.max(*end),
                _ => spans.push((*from, until)),
            }
        }
    }
    lanes
}

/// Draws the lanes of a run that has several ranks and events; nothing for others.
pub(super) fn html(run: &Run, html: &mut Html) {
    let ranks = run.ranks_at_start().unwrap_or(1);
    let of_ranks = |event: &&Event| event.rank.is_some() && event.step.is_some();
    let signs: Vec<&Event> = run
        .events
        .iter()
        .filter(of_ranks)
        .take(MOST_SIGNS)
        .collect();
    let last = run.metrics.last_step.max(
        signs
            .iter()
            .filter_map(|event| event.step)
            .max()
            .unwrap_or(0),
    );
    if ranks < 2 || last == 0 || (signs.is_empty() && run.events.memberships().next().is_none()) {
        return;
    }
    let lanes = lanes(&run.events, ranks.min(MOST_LANES), last);
    let axis = Axis::between(0.0, last as f64, Labels::Steps);
    html.put(format_args!(
        "<figure class=\"lanes\"><figcaption><h3>Who took part</h3></figcaption><div class=\"keys\">"
    ));
    keys(&signs, html);
    html.put(format_args!("</div><div class=\"table\">"));
    for (rank, spans) in &lanes {
        let signs = signs.iter().filter(|event| event.rank == Some(*rank));
        html.put(format_args!(
            "<div class=\"lane\"><span>rank {rank}</span><div>"
        ));
        lane(spans, signs.copied(), &axis, html);
        html.put(format_args!("</div></div>"));
    }
    html.put(format_args!("<div class=\"lane\"><span></span>"));
    html.ticks(&axis);
    html.put(format_args!("</div></div><p class=\"axis\">step</p>"));
    if ranks > MOST_LANES {
        html.put(format_args!(
            "<p class=\"faint\">the first {MOST_LANES} of {} ranks</p>",
            units::count(ranks as u64)
        ));
    }
    html.put(format_args!("</figure>\n"));
}

/// Explains the signs.
fn keys(signs: &[&Event], html: &mut Html) {
    let mut kinds: Vec<EventKind> = signs.iter().map(|event| event.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    html.put(format_args!(
        "<span class=\"key\"><i class=\"span\"></i>makes steps</span>"
    ));
    for kind in kinds {
        html.put(format_args!("<span class=\"key\">"));
        html.kind(kind);
        html.put(format_args!("</span>"));
    }
}

fn lane<'a>(
    spans: &[(u64, u64)],
    signs: impl Iterator<Item = &'a Event>,
    axis: &Axis,
    html: &mut Html,
) {
    for (from, until) in spans {
        let (left, right) = (axis.place(*from as f64), axis.place(*until as f64));
        html.put(format_args!(
            "<i class=\"span\" style=\"left:{:.2}%;width:{:.2}%\"></i>",
            100.0 * left,
            100.0 * (right - left)
        ));
    }
    let (mut last, mut behind) = (f64::NEG_INFINITY, 0);
    for event in signs {
        let place = 100.0 * axis.place(event.step.unwrap_or(0) as f64);
        // What happened at the same place is in a row.
        behind = if place - last < 1.5 { behind + 1 } else { 0 };
        last = place;
        sign(event, place, behind, html);
    }
}

/// The sign of an event at `place` in percent, after this many others.
fn sign(event: &Event, place: f64, behind: usize, html: &mut Html) {
    let step = units::count(event.step.unwrap_or(0));
    // At the right end a row grows to the left.
    let sign = if place > 85.0 { "-" } else { "" };
    let what = plain::line(&event.text, 200);
    let title = format!("{}, after step {step}: {what}", event.kind.label());
    html.put(format_args!(
        "<b class=\"sign e-{}\" style=\"left:{place:.2}%;--n:{sign}{behind}\" title=\"{}\">{}</b>",
        event.kind.name(),
        text(&title),
        event.kind.sign()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_ends_where_its_rank_was_lost_and_goes_on_where_it_came_back() {
        let formed = |step, ranks: &[usize]| Event {
            step: Some(step),
            ranks: Some(ranks.to_vec()),
            ..Event::new(EventKind::Regroup, "")
        };
        let events = Events::new(vec![
            formed(60, &[0, 1]),
            formed(97, &[0, 1, 2]),
            formed(120, &[0, 2]),
        ]);
        let lanes = lanes(&events, 3, 171);
        assert_eq!(lanes[0].1, [(0, 171)]);
        assert_eq!(lanes[1].1, [(0, 119)]);
        assert_eq!(lanes[2].1, [(0, 59), (96, 171)]);
    }
}
