//! A comparison as text.

use everburn_record::plain;

use super::Comparison;
use super::rows::Part;

/// How wide a column of a run may be, unless its name is wider.
const WIDEST: usize = 30;

impl Comparison {
    /// The runs as columns of text, without any character that could command a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let parts = self.parts();
        let rows = || parts.iter().flat_map(|part| &part.rows);
        let names = rows().map(|row| row.name.chars().count()).chain([12]);
        let first = names.max().unwrap_or(0).min(44);
        let widths: Vec<usize> = (0..self.runs.len())
            .map(|run| {
                let cells = rows().filter_map(|row| row.cells[run].as_ref());
                let widest = cells
                    .map(|cell| shown(Some(cell)).chars().count())
                    .max()
                    .unwrap_or(0);
                // Names are short, and a part of one may be that of another run.
                widest.min(WIDEST).max(self.names[run].chars().count())
            })
            .collect();
        let mut text = String::new();
        let mut line = |name: String, cells: &mut dyn Iterator<Item = String>| {
            let mut line = format!("{name:<first$}");
            for (cell, width) in cells.zip(&widths) {
                line.push_str(&format!("  {:>width$}", plain::line(&cell, *width)));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        };
        line(String::new(), &mut self.names.iter().cloned());
        for Part { title, rows } in &parts {
            line(String::new(), &mut std::iter::empty());
            line(format!("{title}:"), &mut std::iter::empty());
            for row in rows {
                line(
                    plain::line(&row.name, first),
                    &mut row.cells.iter().map(|cell| shown(cell.as_ref())),
                );
            }
        }
        text
    }
}

fn shown(cell: Option<&(String, Option<String>)>) -> String {
    match cell {
        None => "–".to_owned(),
        Some((value, None)) => value.clone(),
        Some((value, Some(change))) => format!("{value} ({change})"),
    }
}
