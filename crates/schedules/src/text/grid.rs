//! How time becomes columns, and lines of a page.

use std::ops::Range;

use everburn_record::units;

use crate::{Pass, Span, Timeline};

/// Where no box is.
pub(super) const IDLE: char = '·';

/// How many lines per rank may have. Of what is longer, the middle is left out: there a pipeline does
/// the same again and again.
const MAX_PANELS: usize = 8;

/// The widest drawing before its middle is left out. Only a step of very unequal passes gets here.
const MAX_COLUMNS: f64 = 1e5;

/// What may be filled of a box after its number, at most, on the shortest one.
const FILLED: usize = 3;

/// What a box of this kind is filled with, after its number.
pub(super) const fn fill(pass: Pass) -> char {
    match pass {
        Pass::Forward => ' ',
        Pass::Backward => '=',
        Pass::BackwardInput => '-',
        Pass::BackwardWeight => '_',
    }
}

/// A scale, and where the drawing continues below.
pub(super) struct Grid {
    columns_per_second: f64,
    columns: usize,
    /// The first column of each line, then the column after the last.
    breaks: Vec<usize>,
    /// Whether some boxes are too narrow for their numbers.
    pub(super) leaves_out: bool,
}

impl Grid {
    /// The widest scale at which all fits into `room` columns; if numbers would not fit their boxes
    /// at that one, the narrowest at which they do; if that is too long, one at which most of them do.
    pub(super) fn fitting(timeline: &Timeline, room: usize) -> Self {
        let makespan = timeline.makespan();
        let mut lengths: Vec<f64> = timeline
            .all_spans()
            .map(Span::seconds)
            .filter(|seconds| *seconds > 0.0)
            .collect();
        lengths.sort_unstable_by(f64::total_cmp);
        let Some(&shortest) = lengths.first() else {
            return Self::at(timeline, room, 0.0);
        };
        let page = room as f64 / makespan;
        let label = 1 + timeline
            .all_spans()
            .map(|span| timeline.label(span).len())
            .max()
            .unwrap_or(0);
        // Whole columns for the shortest pass: where the others are multiples of it, so are theirs.
        let start = ((page * shortest).floor() as usize).clamp(1, label + FILLED);
        for columns in start..=label + FILLED + 1 {
            let scale = columns as f64 / shortest;
            if makespan * scale > (room * MAX_PANELS) as f64 {
                break;
            }
            let grid = Self::at(timeline, room, scale);
            if !grid.leaves_out {
                return grid;
            }
        }
        // The shortest of those that are no exception.
        let median = lengths[lengths.len() / 2];
        let usual = lengths.iter().find(|length| **length >= median / 8.0);
        let scale = (label as f64 / usual.unwrap_or(&median))
            .max(page)
            .min(MAX_COLUMNS / makespan);
        Self::at(timeline, room, scale)
    }

    fn at(timeline: &Timeline, room: usize, columns_per_second: f64) -> Self {
        let mut grid = Self {
            columns_per_second,
            columns: (timeline.makespan() * columns_per_second).round() as usize,
            breaks: Vec::new(),
            leaves_out: false,
        };
        grid.leaves_out = timeline.all_spans().any(|span| {
            let box_of = grid.place(span);
            span.seconds() > 0.0 && box_of.len() < 1 + timeline.label(span).len()
        });
        grid.breaks = grid.break_up(timeline, room);
        grid
    }

    /// The columns of each line: all, or as many of the first and of the last as there may be.
    pub(super) fn panels(&self) -> Vec<Range<usize>> {
        let panels = self.breaks.iter().zip(self.breaks.iter().skip(1));
        let panels = panels.map(|(from, to)| *from..*to);
        // A step that takes no time has no line.
        let mut panels: Vec<Range<usize>> = panels.filter(|panel| !panel.is_empty()).collect();
        if panels.len() > MAX_PANELS {
            let shown = MAX_PANELS / 2;
            panels.drain(shown..panels.len() - shown);
        }
        panels
    }

    /// When a column begins.
    pub(super) fn time(&self, column: usize) -> String {
        let seconds = column as f64 / self.columns_per_second;
        units::seconds_beside(seconds, seconds)
    }

    /// The times at both ends of a line.
    pub(super) fn axis(&self, panel: &Range<usize>) -> String {
        let (start, end) = (self.time(panel.start), self.time(panel.end));
        let gap = panel
            .len()
            .saturating_sub(start.chars().count() + end.chars().count())
            .max(1);
        format!("{start}{:gap$}{end}", "")
    }

    /// What `rank` does during `panel`.
    pub(super) fn line(&self, timeline: &Timeline, rank: usize, panel: &Range<usize>) -> String {
        let mut line = vec![IDLE; panel.len()];
        let mut put = |column: usize, shown: char| {
            let place = column.checked_sub(panel.start);
            if let Some(place) = place.and_then(|place| line.get_mut(place)) {
                *place = shown;
            }
        };
        for span in timeline.spans(rank) {
            let columns = self.place(span);
            if columns.start >= panel.end || columns.end <= panel.start {
                continue;
            }
            let pass = span.action.pass();
            columns.clone().for_each(|column| put(column, fill(pass)));
            let text = format!("{}{}", pass.letter(), timeline.label(span));
            let at = self.place_of_text(&columns, text.len());
            if at + text.len() <= columns.end {
                let letters = text.chars().enumerate();
                letters.for_each(|(index, letter)| put(at + index, letter));
            } else {
                put(columns.start, pass.letter());
            }
        }
        line.into_iter().collect()
    }

    /// The columns of a box.
    fn place(&self, span: &Span) -> Range<usize> {
        let column = |time: f64| (time * self.columns_per_second).round() as usize;
        column(span.start).min(self.columns)..column(span.end).min(self.columns)
    }

    /// Where the text of a box begins: with the box, or, if a break would cut the text, after it.
    fn place_of_text(&self, columns: &Range<usize>, length: usize) -> usize {
        let cutting =
            |column: &&usize| columns.start < **column && **column < columns.start + length;
        self.breaks
            .iter()
            .find(cutting)
            .copied()
            .unwrap_or(columns.start)
    }

    /// The columns at which the drawing begins, continues below, and ends: lines of about the same
    /// length, each break where it cuts the fewest numbers.
    fn break_up(&self, timeline: &Timeline, room: usize) -> Vec<usize> {
        // How many numbers a break before a column would cut.
        let mut cut = vec![0_usize; self.columns + 1];
        for span in timeline.all_spans() {
            let columns = self.place(span);
            let text_end = columns.start + 1 + timeline.label(span).len();
            let text_end = text_end.min(columns.end);
            for cut in cut.iter_mut().take(text_end).skip(columns.start + 1) {
                *cut += 1;
            }
        }
        let mut breaks = vec![0];
        let mut from = 0;
        while self.columns - from > room {
            let left = self.columns - from;
            let even = left.div_ceil(left.div_ceil(room));
            let nearest = from + even - even / 8..=from + room;
            let distance = |column: &usize| (cut[*column], column.abs_diff(from + even));
            from = nearest.min_by_key(distance).unwrap_or(from + room);
            breaks.push(from);
        }
        breaks.push(self.columns);
        breaks
    }
}
