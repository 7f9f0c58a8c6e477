//! A timeline as text.
//!
//! A box is a letter (`F`, `B`, `W`), the number of the micro-batch, and filling to its end. Because
//! every box begins with its letter, numbers of any length cannot be read wrongly. Time runs to the
//! right, at one scale for the whole drawing; what is wider than the page continues below.

mod grid;

use std::fmt::Write;

use everburn_record::units::{bytes, counted, percent, seconds};

use self::grid::{Grid, IDLE, fill};
use crate::{Pass, Span, Timeline};

/// The narrowest drawing: below that, nothing could be read.
const MIN_WIDTH: usize = 40;

impl Timeline {
    /// The timeline as text of at most `width` columns (at least 40): a line a rank, a legend, and a
    /// summary.
    ///
    /// A step that is too long for one line a rank continues in further lines below. Of one that would go
    /// on for too long the middle is left out, and boxes that are much shorter than the others show
    /// their letter only.
    ///
    /// ```
    /// # mod everburn { pub use everburn_schedules as schedules; }
    /// use everburn::schedules::{Costs, Schedule, ScheduleKind, simulate};
    ///
    /// let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 2, 1)?;
    /// let text = simulate(&schedule, &Costs::equal(2))?.to_text(80);
    /// let line = text.lines().find(|line| line.starts_with("rank 1")).unwrap();
    /// assert_eq!(line, "rank 1  ·····F0   B0========F1   B1========··········");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_text(&self, width: usize) -> String {
        let width = width.max(MIN_WIDTH);
        let mut text = self.headline();
        text.push('\n');
        let ranks = self.schedule().ranks();
        // The names to the left of the lines, with the space after them.
        let names = format!("rank {}  ", ranks.saturating_sub(1)).len();
        let room = width.saturating_sub(names).max(MIN_WIDTH / 2);
        let grid = Grid::fitting(self, room);
        let mut shown_to = 0;
        for panel in grid.panels() {
            text.push('\n');
            // Writing to a string does not fail.
            if panel.start > shown_to {
                let (from, to) = (grid.time(shown_to), grid.time(panel.start));
                let _ = writeln!(text, "(from {from} to {to} left out)\n");
            }
            let _ = writeln!(text, "{:<names$}{}", "time", grid.axis(&panel));
            for rank in 0..ranks {
                let line = grid.line(self, rank, &panel);
                let _ = writeln!(text, "{:<names$}{line}", format!("rank {rank}"));
            }
            shown_to = panel.end;
        }
        text.push('\n');
        text.push_str(&self.legend(&grid, width));
        text.push_str(&self.figures(width));
        text
    }

    /// The first line: what it is, how long it takes and how idle it is.
    pub(crate) fn headline(&self) -> String {
        let schedule = self.schedule();
        let ranks = counted(schedule.ranks(), "rank");
        let micro_batches = counted(schedule.micro_batches(), "micro-batch");
        let mut text = format!("{}: {ranks}", schedule.name());
        if schedule.chunks() > 1 {
            let _ = write!(text, " of {} chunks", schedule.chunks());
        }
        let (makespan, idle) = (seconds(self.makespan()), percent(self.idle_share(), 1));
        let _ = write!(text, ", {micro_batches}, {makespan}, idle {idle}");
        text
    }

    fn legend(&self, grid: &Grid, width: usize) -> String {
        let chunks = self.schedule().chunks() > 1;
        let label = if chunks { "0a" } else { "0" };
        let mut entries = vec![format!("{IDLE} idle")];
        entries.extend(self.passes().into_iter().map(|pass| {
            let filling = String::from(fill(pass)).repeat(2);
            let sample = format!("{}{label}{filling}", pass.letter());
            format!("{} {pass}", sample.trim_end())
        }));
        entries.push("0: the micro-batch".to_owned());
        if chunks {
            entries.push("a: the chunk".to_owned());
        }
        let mut text = wrapped(&entries, "   ", width);
        if grid.leaves_out {
            let note = "A box that is too narrow for its number shows none.";
            text += &wrapped(&words(note), " ", width);
        }
        text
    }

    /// How idle each rank is, and how much it keeps.
    fn figures(&self, width: usize) -> String {
        let ranks = 0..self.schedule().ranks();
        let idle = ranks
            .clone()
            .map(|rank| percent(self.idle_share_of(rank), 1));
        let live = ranks.clone().map(|rank| self.peak_live(rank).to_string());
        let counted = if self.schedule().chunks() > 1 {
            "most live micro-batches, each chunk counted"
        } else {
            "most live micro-batches"
        };
        let mut text = row("idle", &idle.collect::<Vec<_>>(), width);
        text += &row(counted, &live.collect::<Vec<_>>(), width);
        if ranks
            .clone()
            .any(|rank| self.peak_activation_bytes(rank) > 0)
        {
            let kept = ranks.map(|rank| bytes(self.peak_activation_bytes(rank)));
            text += &row("most activations", &kept.collect::<Vec<_>>(), width);
        }
        text
    }

    /// What is in a box: the micro-batch, and a letter for the chunk where there are several.
    pub(crate) fn label(&self, span: &Span) -> String {
        let (micro_batch, schedule) = (span.action.micro_batch(), self.schedule());
        if schedule.chunks() == 1 {
            return micro_batch.to_string();
        }
        let chunk = span.action.stage() / schedule.ranks();
        match u8::try_from(chunk) {
            Ok(letter @ 0..26) => format!("{micro_batch}{}", char::from(b'a' + letter)),
            // No letters are left.
            _ => format!("{micro_batch}.{chunk}"),
        }
    }

    pub(crate) fn passes(&self) -> Vec<Pass> {
        let has = |pass: &Pass| self.all_spans().any(|span| span.action.pass() == *pass);
        Pass::ALL.into_iter().filter(has).collect()
    }

    pub(crate) fn all_spans(&self) -> impl Iterator<Item = &Span> {
        (0..self.schedule().ranks()).flat_map(|rank| self.spans(rank))
    }
}

/// The values of all ranks, from rank 0 on, in lines of at most `width` columns; one value if all
/// have the same.
fn row(name: &str, values: &[String], width: usize) -> String {
    let first = values.first().map_or("", String::as_str);
    let same = values.iter().all(|value| value == first);
    let whose = if same { "" } else { ", from rank 0 on" };
    let mut entries = words(&format!("{name}{whose}:"));
    if same {
        entries.push(first.to_owned());
        entries.extend((values.len() > 1).then(|| "on every rank".to_owned()));
    } else {
        entries.extend(values.iter().map(|value| format!("{value},")));
        if let Some(last) = entries.last_mut() {
            last.pop();
        }
    }
    wrapped(&entries, " ", width)
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// `entries` in lines of at most `width` columns.
fn wrapped(entries: &[String], separator: &str, width: usize) -> String {
    let length = |text: &str| text.chars().count();
    let mut text = String::new();
    let mut column = 0;
    for entry in entries {
        if column > 0 && column + length(separator) + length(entry) > width {
            text.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            text.push_str(separator);
            column += length(separator);
        }
        text.push_str(entry);
        column += length(entry);
    }
    text.push('\n');
    text
}
