//! The ranks view. Drawing is a pure function of what is known and of how it is looked at, so that each picture is a test.

mod events;
mod header;
mod heat_map;
mod phases;
mod table;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};

use crate::state::RunState;

/// Less than that is no use to anybody.
const SMALLEST: (u16, u16) = (40, 12);

/// How the ranks are looked at: what keys change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RanksView {
    /// How many ranks are above the first one that is shown.
    pub scrolled: usize,
    /// The map shows the whole run, not the newest steps one by one.
    pub whole: bool,
    /// The map shows each rank's own work, not its step time.
    pub work: bool,
    /// There is burn-train's dashboard to go back to.
    pub dashboard: bool,
    /// Leaving ends what is looked at: the training itself shows this view.
    pub training: bool,
}

/// Draws the ranks of a run.
pub fn draw_ranks(state: &RunState, view: RanksView, area: Rect, buffer: &mut Buffer) {
    let area = area.intersection(buffer.area);
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (width, height) = SMALLEST;
        let text = format!("{width} x {height} at least");
        Paragraph::new(text).render(area, buffer);
        return;
    }
    let ranks = state.ranks();
    let tall = area.height >= 40;
    let header = if tall { 6 } else { 4 };
    // Map and table have a row for each rank, and the events what is left: at least 4 of them.
    let rest = area.height - header - 1;
    let room = (rest.saturating_sub(4 + 2 + 2 + 3) / 2).max(1) as usize;
    let shown = ranks.len().clamp(1, room);
    let scrolled = view.scrolled.min(ranks.len().saturating_sub(shown));
    let rows = shown as u16;
    let [top, map, table, events, footer] = Layout::vertical([
        Constraint::Length(header),
        Constraint::Length(rows + 2),
        Constraint::Length(rows + 3),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let visible: Vec<_> = ranks.iter().skip(scrolled).take(shown).cloned().collect();
    header::draw(state, &ranks, top, buffer);
    heat_map::draw(state, view, &visible, map, buffer);
    let awaited = state.awaited_ranks(&ranks);
    table::draw(
        &visible,
        awaited.as_deref(),
        (scrolled, ranks.len()),
        table,
        buffer,
    );
    events::draw(state, events, buffer);
    keys(view, ranks.len() > shown).render(footer, buffer);
}

fn keys(view: RanksView, scrolls: bool) -> Paragraph<'static> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    if view.dashboard {
        keys.push(("r", "dashboard"));
    }
    keys.push(("w", if view.work { "step time" } else { "own work" }));
    keys.push((
        "z",
        if view.whole {
            "newest steps"
        } else {
            "whole run"
        },
    ));
    if scrolls {
        keys.push(("↑ ↓", "more ranks"));
    }
    keys.push(("q", if view.training { "stop" } else { "leave" }));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let spans = keys.into_iter().flat_map(|(key, what)| {
        [
            Span::styled(format!(" {key} "), bold),
            Span::raw(format!("{what}  ")),
        ]
    });
    Paragraph::new(Line::from_iter(spans))
}
