//! A row for each rank: how it stands, what its steps are spent on, what it has, and what it does.

use everburn_record::units;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Row, Table, Widget};

use super::phases::{bar, legend};
use crate::state::{RankState, RankStatus};

/// From that width on there is room for the last collective as it is told.
const WIDE: u16 = 150;

pub(super) fn draw(
    ranks: &[RankState],
    (scrolled, all): (usize, usize),
    area: Rect,
    buffer: &mut Buffer,
) {
    let wide = area.width >= WIDE;
    let gpus = ranks
        .iter()
        .any(|rank| rank.process_metrics.gpu_percent.is_some());
    let bar_width = if wide { 60 } else { 24 };
    let mut widths = vec![
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(bar_width),
        Constraint::Length(9),
        Constraint::Length(8),
    ];
    let mut names = vec![
        "rank",
        "state",
        "step",
        "time",
        "spent on",
        "samples/s",
        "memory",
    ];
    if gpus {
        names.extend(["GPU", "°C", "GPU mem."]);
        widths.extend([
            Constraint::Length(5),
            Constraint::Length(3),
            Constraint::Length(8),
        ]);
    }
    names.push("last collective");
    widths.push(Constraint::Fill(1));
    let title = match ranks.len() < all {
        true => format!(
            " ranks {scrolled} to {} of {all} ",
            scrolled + ranks.len() - 1
        ),
        false => " ranks ".to_string(),
    };
    let block = Block::bordered().title(title).title_bottom(legend());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let rows = ranks.iter().map(|rank| row(rank, bar_width, (gpus, wide)));
    let table = Table::new(rows, widths)
        .header(Row::new(names).style(bold))
        .column_spacing(1)
        .block(block);
    Widget::render(table, area, buffer);
}

fn row(rank: &RankState, bar_width: u16, (gpus, wide): (bool, bool)) -> Row<'static> {
    let right = |text: String| Cell::new(Text::from(text).right_aligned());
    let state = Cell::new(rank.status.word()).style(style(rank.status));
    let about = if rank.step_by_heartbeat { "~" } else { "" };
    let step = rank.step;
    let step = step.map_or(String::new(), |step| format!("{about}{step}"));
    let times = rank.times.as_ref();
    let time = times.map_or(String::new(), |times| units::seconds(times.seconds));
    let spent = times.map_or(Line::default(), |times| bar(times, bar_width));
    let speed = times.and_then(|times| {
        let samples = times.samples? as f64;
        (times.seconds > 0.0).then(|| units::rate(samples / times.seconds))
    });
    let peak = times.and_then(|times| times.peak_memory);
    let memory = rank
        .process_metrics
        .memory_bytes
        .or(peak)
        .map_or(String::new(), units::bytes);
    let mut cells = vec![
        right(rank.rank.to_string()),
        state,
        right(step),
        right(time),
        Cell::new(spent),
        right(speed.unwrap_or_default()),
        right(memory),
    ];
    if gpus {
        let metrics = &rank.process_metrics;
        let percent = metrics.gpu_percent.map(|percent| format!("{percent} %"));
        let celsius = metrics.gpu_celsius.map(|celsius| celsius.to_string());
        let memory = metrics.gpu_memory_bytes.map(units::bytes);
        cells.extend([percent, celsius, memory].map(|text| right(text.unwrap_or_default())));
    }
    let doing = match (rank.silent_seconds, &rank.doing) {
        _ if rank.stopped.is_some() => rank.continued_by().unwrap_or_default(),
        (Some(seconds), _) if rank.status == RankStatus::Silent => {
            let process = rank.process.as_ref();
            let process = process.map_or(String::new(), |process| format!("; {process}"));
            format!("no heartbeat for {seconds:.0} s{process}")
        }
        (_, Some(doing)) if wide && rank.waiting_for.is_empty() => doing.clone(),
        (_, Some(doing)) => shortened(doing),
        (_, None) => String::new(),
    };
    cells.push(Cell::new(doing));
    Row::new(cells)
}

/// A collective as a rank tells it, with what matters in a hang first: how it stands and for whom it waits. Its number in
/// its group is left out.
fn shortened(doing: &str) -> String {
    let numbers = [" (collective ", " (after collective "];
    let parts = numbers.iter().find_map(|number| {
        let (operation, rest) = doing.split_once(number)?;
        Some((operation, rest.split_once("), ")?.1))
    });
    let Some((operation, state)) = parts else {
        return doing.to_owned();
    };
    format!("{state}: {operation}")
}

fn style(status: RankStatus) -> Style {
    let colour = match status {
        RankStatus::Working => Color::Green,
        RankStatus::Straggling => Color::Yellow,
        RankStatus::Silent | RankStatus::Lost => Color::Red,
        RankStatus::Unknown | RankStatus::Ended => Color::DarkGray,
    };
    Style::new().fg(colour).add_modifier(Modifier::BOLD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_collective_stands_comes_first() {
        let number = "(collective 1889 of the gradients group, step 681, label 0)";
        let told = |state: &str| shortened(&format!("all_reduce(i64[1], sum) {number}, {state}"));
        assert_eq!(
            told("under way for 9.4 s, waiting for rank 1"),
            "under way for 9.4 s, waiting for rank 1: all_reduce(i64[1], sum)"
        );
        assert_eq!(
            told("done 0.1 s ago after 0.0 s"),
            "done 0.1 s ago after 0.0 s: all_reduce(i64[1], sum)"
        );
        assert_eq!(
            shortened("what an older run says"),
            "what an older run says"
        );
    }

    #[test]
    fn a_step_of_a_heartbeat_is_marked() {
        let drawn = |step_by_heartbeat| {
            let rank = RankState {
                step: Some(121),
                step_by_heartbeat,
                ..RankState::default()
            };
            let area = Rect::new(0, 0, 100, 5);
            let mut buffer = Buffer::empty(area);
            draw(&[rank], (0, 1), area, &mut buffer);
            let cells = buffer.content.iter();
            cells.map(ratatui::buffer::Cell::symbol).collect::<String>()
        };
        assert!(drawn(true).contains(" ~121 "));
        assert!(drawn(false).contains("  121 "));
    }

    #[test]
    fn a_rank_waits_by_the_field_and_not_by_the_words() {
        let doing = "barrier (collective 3, step 4), under way for 9.4 s, wartet auf 1";
        let drawn = |waiting_for: &[usize]| {
            let rank = RankState {
                doing: Some(doing.to_owned()),
                waiting_for: waiting_for.to_vec(),
                ..RankState::default()
            };
            let area = Rect::new(0, 0, 200, 5);
            let mut buffer = Buffer::empty(area);
            draw(&[rank], (0, 1), area, &mut buffer);
            let cells = buffer.content.iter();
            cells.map(ratatui::buffer::Cell::symbol).collect::<String>()
        };
        let waits = drawn(&[1]);
        let short = "under way for 9.4 s, wartet auf 1: barrier";
        assert!(waits.contains(short), "{waits}");
        let whole = drawn(&[]);
        assert!(whole.contains(doing), "{whole}");
    }
}
