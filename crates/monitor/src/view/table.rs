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

/// Which columns there are.
#[derive(Clone, Copy)]
struct Columns {
    /// There is room for all of them, and for the last collective in words.
    wide: bool,
    /// The times of recent steps: where a narrow terminal shows a run that is held up, who waits for whom has their room.
    times: bool,
    gpus: bool,
}

impl Columns {
    fn bar_width(self) -> u16 {
        if self.wide { 60 } else { 24 }
    }

    fn named(self) -> (Vec<&'static str>, Vec<Constraint>) {
        let mut columns = vec![
            ("rank", Constraint::Length(4)),
            ("state", Constraint::Length(6)),
            ("step", Constraint::Length(7)),
        ];
        if self.times {
            columns.extend([
                ("time", Constraint::Length(7)),
                ("spent on", Constraint::Length(self.bar_width())),
                ("samples/s", Constraint::Length(9)),
            ]);
        }
        columns.push(("memory", Constraint::Length(8)));
        if self.gpus {
            columns.extend([
                ("GPU", Constraint::Length(5)),
                ("°C", Constraint::Length(3)),
                ("GPU mem.", Constraint::Length(8)),
            ]);
        }
        columns.push(("last collective", Constraint::Fill(1)));
        columns.into_iter().unzip()
    }
}

/// Draws the ranks that are visible, of `all` from number `scrolled` on. `awaited` are those that keep the others waiting, where
/// the run is held up.
pub(super) fn draw(
    ranks: &[RankState],
    awaited: Option<&[usize]>,
    (scrolled, all): (usize, usize),
    area: Rect,
    buffer: &mut Buffer,
) {
    let wide = area.width >= WIDE;
    let columns = Columns {
        wide,
        times: wide || awaited.is_none(),
        gpus: ranks
            .iter()
            .any(|rank| rank.process_metrics.gpu_percent.is_some()),
    };
    let (names, widths) = columns.named();
    let title = match ranks.len() < all {
        true => format!(
            " ranks {scrolled} to {} of {all} ",
            scrolled + ranks.len() - 1
        ),
        false => " ranks ".to_string(),
    };
    let mut block = Block::bordered().title(title);
    if columns.times {
        block = block.title_bottom(legend());
    }
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let rows = ranks.iter().map(|rank| {
        let is_awaited = awaited.is_some_and(|awaited| awaited.contains(&rank.rank));
        row(rank, is_awaited, columns)
    });
    let table = Table::new(rows, widths)
        .header(Row::new(names).style(bold))
        .column_spacing(1)
        .block(block);
    Widget::render(table, area, buffer);
}

fn row(rank: &RankState, is_awaited: bool, columns: Columns) -> Row<'static> {
    let right = |text: String| Cell::new(Text::from(text).right_aligned());
    let state = Cell::new(rank.status.word()).style(style(rank.status));
    let about = if rank.step_by_heartbeat { "~" } else { "" };
    let step = rank.step;
    let step = step.map_or(String::new(), |step| format!("{about}{step}"));
    let times = rank.times.as_ref();
    let peak = times.and_then(|times| times.peak_memory);
    let memory = rank
        .process_metrics
        .memory_bytes
        .or(peak)
        .map_or(String::new(), units::bytes);
    let mut cells = vec![right(rank.rank.to_string()), state, right(step)];
    if columns.times {
        let time = times.map_or(String::new(), |times| units::seconds(times.seconds));
        let spent = times.map_or(Line::default(), |times| bar(times, columns.bar_width()));
        let speed = times.and_then(|times| {
            let samples = times.samples? as f64;
            (times.seconds > 0.0).then(|| units::rate(samples / times.seconds))
        });
        cells.extend([
            right(time),
            Cell::new(spent),
            right(speed.unwrap_or_default()),
        ]);
    }
    cells.push(right(memory));
    if columns.gpus {
        let metrics = &rank.process_metrics;
        let percent = metrics.gpu_percent.map(|percent| format!("{percent} %"));
        let celsius = metrics.gpu_celsius.map(|celsius| celsius.to_string());
        let memory = metrics.gpu_memory_bytes.map(units::bytes);
        cells.extend([percent, celsius, memory].map(|text| right(text.unwrap_or_default())));
    }
    cells.push(Cell::new(doing(rank, is_awaited, columns.wide)));
    Row::new(cells)
}

/// What a rank does, or lacks: what matters in a hang comes first.
fn doing(rank: &RankState, is_awaited: bool, wide: bool) -> String {
    if let Some(process) = rank.stopped {
        return format!("stopped: kill -CONT {process}");
    }
    let process = rank.process.as_deref();
    let doing = match &rank.doing {
        Some(doing) if wide && rank.waiting_for.is_empty() => doing.clone(),
        Some(doing) => shortened(doing),
        None => String::new(),
    };
    match (rank.silent_seconds, process) {
        (Some(seconds), _) if rank.status == RankStatus::Silent => {
            let process = process.map_or(String::new(), |process| format!("; {process}"));
            format!("no heartbeat for {seconds:.0} s{process}")
        }
        (_, Some(process)) if is_awaited => format!("{process}; {doing}"),
        _ => doing,
    }
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

    fn shown(rank: RankState, width: u16) -> String {
        let area = Rect::new(0, 0, width, 5);
        let mut buffer = Buffer::empty(area);
        draw(&[rank], None, (0, 1), area, &mut buffer);
        let cells = buffer.content.iter();
        cells.map(ratatui::buffer::Cell::symbol).collect()
    }

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
            shown(rank, 100)
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
            shown(rank, 200)
        };
        let waits = drawn(&[1]);
        let short = "under way for 9.4 s, wartet auf 1: barrier";
        assert!(waits.contains(short), "{waits}");
        let whole = drawn(&[]);
        assert!(whole.contains(doing), "{whole}");
    }
}
