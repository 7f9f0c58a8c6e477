//! What run it is, how far it has come, what it learns, and when it will be over.

use everburn_record::{MetricLine, Phase, units};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline, Widget};

use crate::state::{RankState, RankStatus, RunState};

pub(super) fn draw(state: &RunState, ranks: &[RankState], area: Rect, buffer: &mut Buffer) {
    let title = match (state.model.as_str(), state.name.as_str()) {
        ("", "") => " run ".to_string(),
        (model, name) => format!(" {model} · {name} "),
    };
    let doing = format!(" {} ", state.doing());
    let colour = match state.goes_on() {
        true if state.silence().or(state.stall()).is_some()
            || state.reached == Some(false)
            || state.stopped_ranks().is_some() =>
        {
            Color::Red
        }
        true => Color::Green,
        false => Color::Gray,
    };
    let block = Block::bordered()
        .title(Span::styled(
            title,
            Style::new().add_modifier(Modifier::BOLD),
        ))
        .title(Span::styled(doing, Style::new().fg(colour)))
        .title_top(Line::from(left(state)).right_aligned());
    let inner = block.inner(area);
    block.render(area, buffer);
    let [progress, numbers, curve] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
    ])
    .areas(inner);
    draw_progress(state, ranks, progress, buffer);
    Paragraph::new(numbers_of(state, ranks)).render(numbers, buffer);
    if curve.height > 0 {
        draw_losses(state, curve, buffer);
    }
}

fn left(state: &RunState) -> String {
    match state.seconds_left() {
        Some(seconds) if state.live.step > 0 && state.live.phase != Phase::Ended => {
            format!(" {} left ", units::clock(seconds))
        }
        _ => String::new(),
    }
}

fn draw_progress(state: &RunState, ranks: &[RankState], area: Rect, buffer: &mut Buffer) {
    let live = &state.live;
    let counted = state.step.as_ref().map_or(0, |line| line.step as u64);
    let step = live.step.max(counted);
    let here =
        |rank: &&RankState| matches!(rank.status, RankStatus::Working | RankStatus::Straggling);
    let present = match state.goes_on() {
        true => format!(
            "{} of {}",
            ranks.iter().filter(here).count(),
            units::counted(ranks.len(), "rank")
        ),
        false => units::counted(ranks.len(), "rank"),
    };
    let epoch = match live.epochs {
        0 => String::new(),
        epochs => format!("epoch {}/{epochs}  ", live.epoch),
    };
    let text = match live.steps {
        Some(steps) => format!(" {present}  {epoch}step {step}/{steps} "),
        None => format!(" {present}  {epoch}step {step} "),
    };
    let width = (text.chars().count() as u16).min(area.width);
    let [words, bar] =
        Layout::horizontal([Constraint::Length(width), Constraint::Fill(1)]).areas(area);
    Paragraph::new(text).render(words, buffer);
    if let Some(steps) = live.steps.filter(|steps| *steps > 0) {
        let ratio = (step as f64 / steps as f64).clamp(0.0, 1.0);
        Gauge::default()
            .ratio(ratio)
            .use_unicode(true)
            .gauge_style(Style::new().fg(Color::Cyan))
            .render(bar, buffer);
    }
}

fn numbers_of(state: &RunState, ranks: &[RankState]) -> Line<'static> {
    let mut parts: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        parts.extend(value.map(|value| (name.to_owned(), value)));
    };
    let percent = |share: f64| units::percent(share, 1);
    let others = |line: &MetricLine| -> Vec<(String, Option<String>)> {
        let others = line.metrics.iter().filter(|(_, mean)| mean.is_finite());
        others
            .map(|(name, mean)| (name.clone(), Some(units::significant(*mean, 4))))
            .collect()
    };
    if let Some(line) = &state.step {
        add("loss", line.known_loss().map(|loss| units::fixed(loss, 4)));
        add("accuracy", line.accuracy.map(percent));
        for (name, mean) in others(line) {
            add(&name, mean);
        }
    }
    if let Some(line) = &state.validation {
        add(
            "validation",
            line.known_loss().map(|loss| units::fixed(loss, 4)),
        );
    }
    if let Some(line) = &state.test {
        let loss = line.known_loss().map(|loss| units::fixed(loss, 4));
        add("test", line.accuracy.map(percent).or(loss));
        for (name, mean) in others(line) {
            add(&format!("test {name}"), mean);
        }
    }
    if let Some(line) = &state.step {
        let speed = line.samples_per_second();
        add("samples/s", speed.map(units::rate));
    }
    let longest = ranks.iter().filter_map(|rank| Some(rank.times?.seconds));
    let longest = longest.reduce(f64::max);
    add("step", longest.map(units::seconds));
    if let Some(line) = &state.step {
        add(
            "rate",
            line.learning_rate.map(|rate| units::significant(rate, 3)),
        );
        add("norm", line.gradient_norm.map(|norm| units::fixed(norm, 3)));
    }
    let dim = Style::new().fg(Color::DarkGray);
    let spans = parts.into_iter().flat_map(|(name, value)| {
        [
            Span::styled(format!(" {name} "), dim),
            Span::raw(format!("{value} ")),
        ]
    });
    Line::from_iter(spans)
}

/// The loss over the run, a column a piece of it.
fn draw_losses(state: &RunState, area: Rect, buffer: &mut Buffer) {
    let losses = &state.losses;
    if losses.is_empty() {
        return;
    }
    let [label, curve] =
        Layout::horizontal([Constraint::Length(14), Constraint::Fill(1)]).areas(area);
    let columns = usize::from(curve.width).min(losses.len()).max(1);
    let mean = |column: usize| {
        let piece = &losses[column * losses.len() / columns..(column + 1) * losses.len() / columns];
        piece.iter().map(|(_, loss)| loss).sum::<f64>() / piece.len().max(1) as f64
    };
    let means: Vec<f64> = (0..columns).map(mean).collect();
    let highest = means.iter().copied().fold(f64::MIN, f64::max);
    let lowest = means.iter().copied().fold(f64::MAX, f64::min);
    let [highest_text, lowest_text] = [highest, lowest].map(|loss| units::fixed(loss, 3));
    let text = format!(" loss {highest_text}\n   to {lowest_text}");
    let dim = Style::new().fg(Color::DarkGray);
    Paragraph::new(text).style(dim).render(label, buffer);
    let scale = 800.0 / (highest - lowest).max(f64::MIN_POSITIVE);
    let heights = means
        .iter()
        .map(|loss| 1 + ((loss - lowest) * scale) as u64);
    Sparkline::default()
        .data(heights.collect::<Vec<_>>())
        .max(801)
        .style(Style::new().fg(Color::Yellow))
        .render(curve, buffer);
}
