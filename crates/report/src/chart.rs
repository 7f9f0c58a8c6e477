//! Curves on two axes. The drawing is stretched to the width that there is, and its numbers stand beside it in the page:
//! so they have one size on a phone and on a wide screen.

mod drawing;

pub(crate) use drawing::{Figures, html, line_sample, plain_number};

use everburn_record::svg::Labels;
use everburn_record::{Event, units};

use crate::decimation::Series;

/// How many colours there are, each with dashes of its own.
pub(crate) const COLOURS: usize = 8;

/// How many events are marked in a chart: more would hide it.
const MOST_MARKS: usize = 80;

/// A mean of fewer steps looks like the steps.
const LEAST_MEAN: u64 = 4;

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Solid,
    /// After the others.
    Faint,
    /// With a dot for each point.
    Dotted,
}

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) colour: usize,
    pub(crate) style: Style,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Something that happened, at its place on the axis.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mark {
    pub(crate) x: f64,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// How much of each curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Detail {
    pub(crate) buckets: usize,
    pub(crate) means: usize,
}

impl Detail {
    pub(crate) const FULL: Self = Self {
        buckets: 512,
        means: 64,
    };

    /// Half as much.
    pub(crate) fn less(self) -> Self {
        Self {
            buckets: (self.buckets / 2).max(8),
            means: (self.means / 2).max(8),
        }
    }
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    /// A name without spaces, the only one of its page.
    pub(crate) id: String,
    pub(crate) title: String,
    /// What the numbers of the upright axis are.
    pub(crate) unit: String,
    /// What the other axis is.
    pub(crate) x_title: String,
    pub(crate) x_labels: Labels,
    pub(crate) curves: Vec<Curve>,
    pub(crate) marks: Vec<Mark>,
    /// The upright axis begins at zero.
    pub(crate) from_zero: bool,
    /// The reader can choose a logarithmic axis.
    pub(crate) can_be_logarithmic: bool,
}

impl Chart {
    /// A chart over steps without curves.
    pub(crate) fn new(id: &str, title: &str, unit: &str) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            unit: unit.to_owned(),
            x_title: "step".to_owned(),
            x_labels: Labels::Steps,
            curves: Vec::new(),
            marks: Vec::new(),
            from_zero: false,
            can_be_logarithmic: false,
        }
    }

    /// With the upright axis from zero.
    pub(crate) fn with_zero(mut self) -> Self {
        self.from_zero = true;
        self
    }

    /// With a choice of axes.
    pub(crate) fn or_logarithmic(mut self) -> Self {
        self.can_be_logarithmic = true;
        self
    }

    /// Over seconds since the beginning.
    pub(crate) fn over_time(mut self) -> Self {
        self.x_title = "time since the start".to_owned();
        self.x_labels = Labels::Durations;
        self
    }

    /// With the lines that have points, and of a noisy one that has many also its mean.
    pub(crate) fn with<'a>(
        mut self,
        lines: impl IntoIterator<Item = Line<'a>>,
        detail: Detail,
    ) -> Self {
        for line in lines {
            self.add(&line, detail);
        }
        self
    }

    fn add(&mut self, line: &Line<'_>, detail: Detail) {
        if line.series.is_empty() {
            return;
        }
        let at = |point: crate::decimation::Point| {
            (
                (point.x.saturating_sub(line.from)) as f64 / line.x_unit,
                point.y * line.factor,
            )
        };
        let points = line.series.points(detail.buckets);
        let points: Vec<_> = points.into_iter().map(at).collect();
        let (means, width) = line.series.means(detail.means);
        let per_mean = line.series.count() / means.len().max(1) as u64;
        let curve = |name, style, points| Curve {
            name,
            colour: line.colour % COLOURS,
            style,
            points,
        };
        if !line.is_noisy || per_mean < LEAST_MEAN {
            self.curves
                .push(curve(line.name.to_owned(), line.style, points));
            return;
        }
        let means = means.into_iter().map(at).collect();
        let of = match line.x_unit == 1.0 {
            true => format!("{}, mean of {} steps", line.name, units::count(width)),
            false => format!("{}, mean", line.name),
        };
        self.curves
            .push(curve(line.name.to_owned(), Style::Faint, points));
        self.curves.push(curve(of, Style::Solid, means));
    }

    /// Marks events at their steps, those of the fewest kinds first.
    pub(crate) fn mark<'a>(&mut self, events: impl Iterator<Item = &'a Event>) {
        let marks = events.filter_map(|event| {
            Some(Mark {
                x: event.step? as f64,
                kind: event.kind.name(),
                text: everburn_record::plain::line(&event.text, 160),
            })
        });
        self.marks = marks.take(MOST_MARKS).collect();
    }

    /// Whether there is anything to see.
    pub(crate) fn is_empty(&self) -> bool {
        self.curves.is_empty()
    }
}

/// A series as a line of a chart.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) series: &'a Series,
    pub(crate) colour: usize,
    pub(crate) style: Style,
    /// Its noise hides its course: its mean is drawn, too.
    pub(crate) is_noisy: bool,
    /// By which values are multiplied, to have the chart's unit.
    pub(crate) factor: f64,
    /// Where the axis begins, and what it is divided by.
    pub(crate) from: u64,
    pub(crate) x_unit: f64,
}

impl<'a> Line<'a> {
    /// The series as it is, over steps.
    pub(crate) fn new(name: &'a str, series: &'a Series, colour: usize) -> Self {
        Self {
            name,
            series,
            colour,
            style: Style::Solid,
            is_noisy: false,
            factor: 1.0,
            from: 0,
            x_unit: 1.0,
        }
    }

    pub(crate) fn times(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    pub(crate) fn noisy(self) -> Self {
        Self {
            is_noisy: true,
            ..self
        }
    }

    pub(crate) fn dotted(self) -> Self {
        Self {
            style: Style::Dotted,
            ..self
        }
    }

    /// Over seconds since `from`, of a series over milliseconds.
    pub(crate) fn since(self, from: u64) -> Self {
        Self {
            from,
            x_unit: 1000.0,
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
