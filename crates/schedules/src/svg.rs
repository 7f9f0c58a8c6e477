//! A timeline as a drawing that any browser shows.

use std::fmt::Write;

use everburn_record::svg::{Axis, Element, Font, Key, legend};
use everburn_record::units::{bytes, percent, seconds};

use crate::{Pass, Span, Timeline};

/// Left of the boxes, for the names of ranks.
const LEFT: f64 = 72.0;

/// Right of the boxes, for the figures of ranks.
const RIGHT: f64 = 190.0;

/// Above the boxes, for the headline and the legend.
const TOP: f64 = 86.0;

/// Below the boxes, for the axis.
const BOTTOM: f64 = 46.0;

/// From one rank to the next, and the height of a box.
const ROW: f64 = 34.0;
const BOX: f64 = 28.0;

/// The width of the boxes' area, from what is pleasant on a screen to what can still be scrolled.
const MIN_WIDTH: f64 = 640.0;
const MAX_WIDTH: f64 = 6000.0;

/// The size of letters, and what stays free around a box's number.
const LETTERS: f64 = 12.0;
const MARGIN: f64 = 6.0;

/// How many numbers the axis has, about.
const TICKS: f64 = 10.0;

/// Colours for light pages, and for dark ones. Boxes keep theirs, with dark numbers.
const STYLE: &str = "\
    .page{fill:#ffffff}.ink{fill:#1f2328}.faint{fill:#59636e}.rule{stroke:#d1d9e0}\
    .idle{fill:#eff2f5}.number{fill:#111111;text-anchor:middle}\
    @media (prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#e6edf3}.faint{fill:#9198a1}\
    .rule{stroke:#3d444d}.idle{fill:#1c2129}}";

impl Timeline {
    /// The timeline as an SVG file that needs nothing else: one row per rank, the number of the
    /// micro-batch in each box, a colour for each pass (a lighter one for each further chunk), an
    /// axis of time, and each rank's figures. It suits light and dark pages, and has a title and a
    /// description for those who do not see it. A box shows more when pointed at.
    ///
    /// ```
    /// # mod everburn { pub use everburn_schedules as schedules; }
    /// use everburn::schedules::{Costs, Schedule, ScheduleKind, simulate};
    ///
    /// let schedule = Schedule::new(ScheduleKind::ZeroBubbleH1, 4, 8, 1)?;
    /// let svg = simulate(&schedule, &Costs::equal(4))?.to_svg();
    /// assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_svg(&self) -> String {
        let ranks = self.schedule().ranks();
        let width = self.width();
        let height = TOP + ROW * ranks as f64 + BOTTOM;
        let mut drawing = Drawing {
            timeline: self,
            axis: Axis::of_seconds(self.makespan(), TICKS.min(width / 80.0)),
            width,
            svg: Element::file(LEFT + width + RIGHT, height, Font::Sans, LETTERS),
        };
        drawing.open(LEFT + width + RIGHT, height);
        drawing.legend();
        drawing.axis();
        for rank in 0..ranks {
            drawing.rank(rank);
        }
        format!("{}\n", drawing.svg)
    }

    /// So wide that the shortest box can show its number.
    fn width(&self) -> f64 {
        let needed = self
            .all_spans()
            .filter(|span| span.seconds() > 0.0)
            .map(|span| number_width(&self.label(span)) * self.makespan() / span.seconds())
            .fold(MIN_WIDTH, f64::max);
        needed.min(MAX_WIDTH).round()
    }
}

struct Drawing<'a> {
    timeline: &'a Timeline,
    axis: Axis,
    /// The width of the boxes' area.
    width: f64,
    svg: Element,
}

impl Drawing<'_> {
    /// Where a time is.
    fn x(&self, seconds: f64) -> f64 {
        LEFT + self.width * self.axis.place(seconds)
    }

    fn open(&mut self, width: f64, height: f64) {
        let headline = self.timeline.headline();
        let svg = std::mem::replace(&mut self.svg, Element::new("svg"));
        self.svg = svg
            .with("role", "img")
            .with("aria-labelledby", "title description")
            .line(Element::new("title").with("id", "title").text(&headline))
            .line(
                Element::new("desc")
                    .with("id", "description")
                    .text(&self.description()),
            )
            .line(Element::new("style").verbatim(STYLE))
            .line(Element::rect(0, 0, width, height).with("class", "page"))
            .line(
                Element::label(16, 28, &headline)
                    .with("class", "ink")
                    .with("font-size", 16)
                    .with("font-weight", "bold"),
            );
    }

    fn description(&self) -> String {
        let (timeline, schedule) = (self.timeline, self.timeline.schedule());
        let mut text = "A row for each rank, time from left to right.".to_owned();
        for rank in 0..schedule.ranks() {
            let idle = percent(timeline.idle_share_of(rank), 1);
            let live = timeline.peak_live(rank);
            let _ = write!(
                text,
                " Rank {rank} is idle for {idle}, with at most {live} live."
            );
        }
        text
    }

    fn legend(&mut self) {
        let passes = self.timeline.passes().into_iter().map(|pass| Key {
            attribute: "fill",
            look: colour(pass, 0),
            name: pass.to_string(),
        });
        let idle = Key {
            attribute: "class",
            look: "idle".to_owned(),
            name: "idle".to_owned(),
        };
        let (keys, end) = legend(passes.chain([idle]), 16.0, 46.0, "faint");
        for key in keys {
            self.svg.put_line(key);
        }
        let numbers = if self.timeline.schedule().chunks() > 1 {
            "number: micro-batch; letter and shade: chunk"
        } else {
            "number: micro-batch"
        };
        self.svg
            .put_line(Element::label(end, 56, numbers).with("class", "faint"));
    }

    fn axis(&mut self) {
        let (top, bottom) = (
            TOP - 6.0,
            TOP + ROW * self.timeline.schedule().ranks() as f64,
        );
        for (value, label) in &self.axis.ticks {
            let x = round(self.x(*value));
            let rule = Element::new("line")
                .with("class", "rule")
                .with("x1", x)
                .with("x2", x)
                .with("y1", top)
                .with("y2", bottom);
            let label = Element::label(x, bottom + 18.0, label)
                .with("class", "faint")
                .with("text-anchor", "middle");
            self.svg.put(rule);
            self.svg.put_line(label);
        }
    }

    fn rank(&mut self, rank: usize) {
        let timeline = self.timeline;
        let y = TOP + ROW * rank as f64;
        let baseline = y + BOX / 2.0 + 4.0;
        let name = Element::label(16, baseline, &format!("rank {rank}"));
        self.svg.put(name.with("class", "ink"));
        let idle = Element::rect(LEFT, y, self.width, BOX);
        self.svg.put_line(idle.with("class", "idle").with("rx", 2));
        for span in timeline.spans(rank) {
            let span = self.span(span, y);
            self.svg.put_line(span);
        }
        let idle = percent(timeline.idle_share_of(rank), 1);
        let mut figures = format!("idle {idle}, {} live", timeline.peak_live(rank));
        if timeline.peak_activation_bytes(rank) > 0 {
            let kept = bytes(timeline.peak_activation_bytes(rank));
            let _ = write!(figures, ", {kept}");
        }
        let figures = Element::label(LEFT + self.width + 10.0, baseline, &figures);
        self.svg.put_line(figures.with("class", "faint"));
    }

    fn span(&self, span: &Span, y: f64) -> Element {
        let x = round(self.x(span.start));
        // A gap of half a pixel on the right keeps neighbours apart.
        let width = round((self.x(span.end) - self.x(span.start) - 0.5).max(0.0));
        let chunk = span.action.stage() / self.timeline.schedule().ranks();
        let (action, start, end) = (span.action, seconds(span.start), seconds(span.end));
        let title = format!("{action}, {start} to {end}");
        let mut drawn = Element::new("g")
            .child(Element::new("title").text(&title))
            .child(
                Element::rect(x, y, width, BOX)
                    .with("fill", colour(span.action.pass(), chunk))
                    .with("rx", 2),
            );
        let label = self.timeline.label(span);
        if number_width(&label) <= width + 1.0 {
            let (middle, baseline) = (round(x + width / 2.0), y + BOX / 2.0 + 4.0);
            drawn.put(Element::label(middle, baseline, &label).with("class", "number"));
        }
        drawn
    }
}

/// What a number needs in its box, in pixels.
fn number_width(label: &str) -> f64 {
    Font::Sans.width(label, LETTERS) + MARGIN
}

/// Colours that also those tell apart who see few (Okabe and Ito, "Color universal design", 2008),
/// nearer to white for each further chunk.
fn colour(pass: Pass, chunk: usize) -> String {
    let (red, green, blue) = match pass {
        Pass::Forward => (0x56, 0xb4, 0xe9),
        Pass::Backward | Pass::BackwardInput => (0xe6, 0x9f, 0x00),
        Pass::BackwardWeight => (0x35, 0xb8, 0x91),
    };
    // Half of the way for the second chunk, two thirds for the third, and so on.
    let white = chunk as f64 / (chunk as f64 + 1.0) * 0.9;
    let lighter = |part: i32| (f64::from(part) + f64::from(0xff - part) * white).round() as u8;
    format!(
        "#{:02x}{:02x}{:02x}",
        lighter(red),
        lighter(green),
        lighter(blue)
    )
}

/// Two digits after the point are enough for pixels.
fn round(pixels: f64) -> f64 {
    (pixels * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_differ_in_shade_and_never_turn_white() {
        let shades: Vec<String> = (0..4).map(|chunk| colour(Pass::Forward, chunk)).collect();
        assert_eq!(shades[0], "#56b4e9");
        assert!(shades.windows(2).all(|pair| pair[0] != pair[1]));
        assert_ne!(colour(Pass::Forward, 1000), "#ffffff");
    }
}
