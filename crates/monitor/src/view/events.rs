//! What has happened, the newest last.

use everburn_record::units::clock;
use everburn_record::{Event, EventKind};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Widget};

use crate::state::RunState;

pub(super) fn draw(state: &RunState, area: Rect, buffer: &mut Buffer) {
    let mut block = Block::bordered().title(" events ");
    if let Some(left_out) = state.left_out() {
        let warning = Span::styled(format!(" {left_out} "), Style::new().fg(Color::Yellow));
        block = block.title_bottom(warning);
    }
    let inner = block.inner(area);
    block.render(area, buffer);
    let room = usize::from(inner.height);
    let first = state.events.len().saturating_sub(room);
    let lines = state.events.iter().skip(first);
    let lines: Vec<Line> = lines.map(|event| line(event, state.now_ms)).collect();
    Paragraph::new(lines).render(inner, buffer);
}

fn line(event: &Event, now_ms: u64) -> Line<'static> {
    let ago = event.unix_time_ms.map_or(String::new(), |at| {
        let seconds = now_ms.saturating_sub(at) as f64 / 1e3;
        format!("{} ago", clock(seconds))
    });
    let step = event
        .step
        .map_or(String::new(), |step| format!("step {step}"));
    let rank = event
        .rank
        .map_or(String::new(), |rank| format!("rank {rank}"));
    let dim = Style::new().fg(Color::DarkGray);
    Line::from(vec![
        Span::styled(format!("{ago:>12} "), dim),
        Span::styled(
            format!("{:<10} ", event.kind.label()),
            Style::new().fg(colour(event.kind)),
        ),
        Span::raw(format!("{step:<12}{rank:<8}")),
        Span::raw(event.text.clone()),
    ])
}

fn colour(kind: EventKind) -> Color {
    match kind {
        EventKind::Start | EventKind::Resume | EventKind::Checkpoint => Color::Green,
        EventKind::Regroup => Color::Cyan,
        EventKind::Restart
        | EventKind::Skip
        | EventKind::Stop
        | EventKind::Warning
        | EventKind::Fault => Color::Yellow,
        EventKind::CheckpointFailed
        | EventKind::Loss
        | EventKind::Stall
        | EventKind::Divergence
        | EventKind::Failure => Color::Red,
    }
}
