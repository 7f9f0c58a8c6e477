//! The map of ranks and time: one row per rank, one column per step or for several.

use everburn_record::units;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Widget};

use super::RanksView;
use crate::state::{RankState, RunState};

/// From short to long, for eyes that see no colours and for screens that show none.
const SHADES: [&str; 5] = ["·", "░", "▒", "▓", "█"];

/// The same for those that do: from a calm colour to a warning one.
const COLOURS: [Color; 5] = [
    Color::Indexed(31),
    Color::Indexed(37),
    Color::Indexed(142),
    Color::Indexed(172),
    Color::Indexed(160),
];

/// A few steps may take very long, the first ones say: they do not set the scale.
const OUTLIERS: f64 = 0.02;

/// Below that spread all steps count as equal: differences that nobody needs to see.
const EVEN: f64 = 1.15;

/// The width of a rank's number.
const LABEL: u16 = 6;

pub(super) fn draw(
    state: &RunState,
    view: RanksView,
    ranks: &[RankState],
    area: Rect,
    buffer: &mut Buffer,
) {
    let what = if view.work { "own work" } else { "step time" };
    let width = area.width.saturating_sub(LABEL + 3);
    let columns = match view.whole {
        true => state.history.whole(usize::from(width)),
        false => state.history.newest(usize::from(width)),
    };
    let values: Vec<_> = columns
        .iter()
        .map(|column| match view.work {
            true => &column.work,
            false => &column.seconds,
        })
        .collect();
    let all = values.iter().flat_map(|values| values.values().copied());
    let (shortest, longest) = scale(all.collect());
    let mut block = Block::bordered().title(format!(" {what} of each rank "));
    if let (Some(first), Some(last)) = (columns.first(), columns.last()) {
        let steps = format!(" steps {} to {} ", first.step, last.step);
        let legend = format!(
            " {} {} {} ",
            units::seconds(shortest),
            SHADES.concat(),
            units::seconds(longest)
        );
        block = block
            .title_top(Line::from(legend).right_aligned())
            .title_bottom(Line::from(steps).right_aligned());
    }
    let inner = block.inner(area);
    block.render(area, buffer);
    let rows = inner.rows();
    for (rank, row) in ranks.iter().zip(rows) {
        let label = format!("{:>4} ", rank.rank);
        buffer.set_stringn(row.x, row.y, label, row.width.into(), Style::new());
        // The newest is at the right edge while there are few.
        for (place, values) in values.iter().take(usize::from(width)).enumerate() {
            let Some(seconds) = values.get(&rank.rank) else {
                continue;
            };
            let level = level(*seconds, shortest, longest);
            let x = row.x + LABEL + place as u16;
            let style = Style::new().fg(COLOURS[level]);
            buffer.set_stringn(x, row.y, SHADES[level], 1, style);
        }
    }
}

/// What counts as short and as long.
fn scale(mut values: Vec<f64>) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    let at = |share: f64| values[((last as f64) * share).round() as usize];
    (at(OUTLIERS), at(1.0 - OUTLIERS))
}

fn level(seconds: f64, shortest: f64, longest: f64) -> usize {
    if longest < EVEN * shortest && seconds < EVEN * longest {
        return 0;
    }
    let share = (seconds - shortest) / (longest - shortest).max(f64::MIN_POSITIVE);
    ((share * SHADES.len() as f64).max(0.0) as usize).min(SHADES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_looks_alike_and_an_outlier_does_not_hide_the_rest() {
        assert_eq!(level(1.05, 1.0, 1.1), 0);
        assert_eq!(level(5.0, 1.0, 1.1), 4);
        assert_eq!(
            [1.0, 1.5, 2.0].map(|seconds| level(seconds, 1.0, 2.0)),
            [0, 2, 4]
        );
        let mut values = vec![1.0; 99];
        values.push(900.0);
        assert_eq!(scale(values), (1.0, 1.0));
        assert_eq!(scale(Vec::new()), (0.0, 0.0));
    }
}
