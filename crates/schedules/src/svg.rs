//! A timeline as a drawing that any browser shows.

use std::fmt::Write;

use everburn_record::units::{bytes, percent, seconds, seconds_beside};

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

/// What a character of a box's number takes, at its font size of 12, and what stays free around it.
const CHARACTER: f64 = 7.0;
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
    /// The timeline as an SVG file that needs nothing else: a row a rank, the number of the
    /// micro-batch in each box, a colour for each pass (a lighter one for each further chunk), an
    /// axis of time, and each rank's figures. It suits light and dark pages, and has a title and a
    /// description for those who do not see it. A box tells more when pointed at.
    ///
    /// ```
    /// use everburn_schedules::{Costs, Schedule, ScheduleKind, simulate};
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
        let mut drawing = Drawing {
            timeline: self,
            scale: if self.makespan() > 0.0 {
                width / self.makespan()
            } else {
                0.0
            },
            text: String::new(),
        };
        let height = TOP + ROW * ranks as f64 + BOTTOM;
        drawing.open(LEFT + width + RIGHT, height);
        drawing.legend();
        drawing.axis(width);
        for rank in 0..ranks {
            drawing.rank(rank, width);
        }
        drawing.line(format_args!("</svg>"));
        drawing.text
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
    /// Pixels a second.
    scale: f64,
    text: String,
}

impl Drawing<'_> {
    fn line(&mut self, content: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(content);
        self.text.push('\n');
    }

    fn open(&mut self, width: f64, height: f64) {
        let headline = self.timeline.headline();
        let description = self.description();
        self.line(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title description" font-family="Helvetica, Arial, sans-serif" font-size="12">"#
        ));
        self.line(format_args!(r#"<title id="title">{headline}</title>"#));
        self.line(format_args!(
            r#"<desc id="description">{description}</desc>"#
        ));
        self.line(format_args!("<style>{STYLE}</style>"));
        self.line(format_args!(
            r#"<rect class="page" width="{width}" height="{height}"/>"#
        ));
        self.line(format_args!(
            r#"<text class="ink" x="16" y="28" font-size="16" font-weight="bold">{headline}</text>"#
        ));
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
        let passes = self.timeline.passes();
        let entries: Vec<(String, String)> = passes
            .into_iter()
            .map(|pass| (colour(pass, 0), pass.to_string()))
            .collect();
        let mut x = 16.0;
        let y = 46.0;
        let mut entry = |drawing: &mut Self, look: &str, name: &str| {
            drawing.line(format_args!(
                r#"<rect {look} x="{x}" y="{y}" width="16" height="12" rx="2"/><text class="faint" x="{}" y="{}">{name}</text>"#,
                x + 22.0,
                y + 10.0
            ));
            x += 22.0 + name.len() as f64 * 6.5 + 18.0;
        };
        for (colour, name) in entries {
            entry(self, &format!(r#"fill="{colour}""#), &name);
        }
        entry(self, r#"class="idle""#, "idle");
        let numbers = if self.timeline.schedule().chunks() > 1 {
            "number: micro-batch; letter and shade: chunk"
        } else {
            "number: micro-batch"
        };
        self.line(format_args!(
            r#"<text class="faint" x="{x}" y="{}">{numbers}</text>"#,
            y + 10.0
        ));
    }

    fn axis(&mut self, width: f64) {
        let makespan = self.timeline.makespan();
        let (top, bottom) = (
            TOP - 6.0,
            TOP + ROW * self.timeline.schedule().ranks() as f64,
        );
        let step = tick_step(makespan, TICKS.min(width / 80.0));
        let ticks = if step > 0.0 {
            (makespan / step + 1e-9).floor() as usize
        } else {
            0
        };
        for tick in 0..=ticks {
            let seconds = tick as f64 * step;
            let x = round(LEFT + seconds * self.scale);
            let label = seconds_beside(seconds, makespan);
            self.line(format_args!(
                r#"<line class="rule" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/><text class="faint" x="{x}" y="{}" text-anchor="middle">{label}</text>"#,
                bottom + 18.0
            ));
        }
    }

    fn rank(&mut self, rank: usize, width: f64) {
        let timeline = self.timeline;
        let y = TOP + ROW * rank as f64;
        let baseline = y + BOX / 2.0 + 4.0;
        self.line(format_args!(
            r#"<text class="ink" x="16" y="{baseline}">rank {rank}</text><rect class="idle" x="{LEFT}" y="{y}" width="{width}" height="{BOX}" rx="2"/>"#
        ));
        for span in timeline.spans(rank) {
            self.span(span, y);
        }
        let idle = percent(timeline.idle_share_of(rank), 1);
        let mut figures = format!("idle {idle}, {} live", timeline.peak_live(rank));
        if timeline.peak_activation_bytes(rank) > 0 {
            let kept = bytes(timeline.peak_activation_bytes(rank));
            let _ = write!(figures, ", {kept}");
        }
        self.line(format_args!(
            r#"<text class="faint" x="{}" y="{baseline}">{figures}</text>"#,
            LEFT + width + 10.0
        ));
    }

    fn span(&mut self, span: &Span, y: f64) {
        let x = round(LEFT + span.start * self.scale);
        // A gap of half a pixel on the right keeps neighbours apart.
        let width = round((span.seconds() * self.scale - 0.5).max(0.0));
        let chunk = span.action.stage() / self.timeline.schedule().ranks();
        let fill = colour(span.action.pass(), chunk);
        let (action, start, end) = (span.action, seconds(span.start), seconds(span.end));
        let label = self.timeline.label(span);
        let number = if number_width(&label) <= width + 1.0 {
            let (middle, baseline) = (round(x + width / 2.0), y + BOX / 2.0 + 4.0);
            format!(r#"<text class="number" x="{middle}" y="{baseline}">{label}</text>"#)
        } else {
            String::new()
        };
        self.line(format_args!(
            r#"<g><title>{action}, {start} to {end}</title><rect fill="{fill}" x="{x}" y="{y}" width="{width}" height="{BOX}" rx="2"/>{number}</g>"#
        ));
    }
}

/// What a number needs in its box, in pixels.
fn number_width(label: &str) -> f64 {
    label.len() as f64 * CHARACTER + MARGIN
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

/// The distance of the axis' numbers: 1, 2 or 5 times a power of ten, about `ticks` of them.
fn tick_step(length: f64, ticks: f64) -> f64 {
    if length <= 0.0 {
        return 0.0;
    }
    let least = length / ticks;
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

/// Two digits behind the point are enough for pixels.
fn round(pixels: f64) -> f64 {
    (pixels * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_has_round_numbers() {
        assert_eq!(tick_step(33.0, 10.0), 5.0);
        assert_eq!(tick_step(57.0, 10.0), 10.0);
        assert!((tick_step(0.0123, 10.0) - 0.002).abs() < 1e-12);
        assert_eq!(tick_step(0.0, 10.0), 0.0);
    }

    #[test]
    fn chunks_differ_in_shade_and_never_turn_white() {
        let shades: Vec<String> = (0..4).map(|chunk| colour(Pass::Forward, chunk)).collect();
        assert_eq!(shades[0], "#56b4e9");
        assert!(shades.windows(2).all(|pair| pair[0] != pair[1]));
        assert_ne!(colour(Pass::Forward, 1000), "#ffffff");
    }
}
