//! A drawing of lines on two logarithmic axes, as SVG that any browser shows.

use std::fmt::Write;

use super::quantity::Bytes;

/// Colours that also those tell apart who see few (Okabe and Ito, "Color universal design", 2008).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// Of the peer, which stays behind ours.
const PEERS_COLOUR: &str = "#777777";

/// The plot of a panel, in pixels.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 300.0;

/// Around each plot: for the numbers of the axes and the panel's title.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 60.0;

/// A line of the legend.
const LEGEND_LINE: f64 = 22.0;

/// One measured curve.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    pub(super) name: String,
    /// Drawn dashed and grey, after the others.
    pub(super) peer: bool,
    /// Bytes and GB/s, by bytes; both positive.
    pub(super) points: Vec<(u64, f64)>,
}

/// Curves that share axes.
#[derive(Debug, Clone)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) curves: Vec<Curve>,
}

/// The drawing: a panel beside the other, all with the same axes, and one legend below.
pub(super) fn svg(title: &str, subtitle: &str, panels: &[Panel]) -> String {
    let axes = Axes::around(panels);
    let names = legend_names(panels);
    let panel_width = LEFT + WIDTH + RIGHT;
    let width = panel_width * panels.len().max(1) as f64;
    let legend_rows = names.len().div_ceil(per_row(width));
    let height = TOP + HEIGHT + BOTTOM + LEGEND_LINE * legend_rows as f64 + 12.0;
    let mut text = String::new();
    let mut line = |content: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = text.write_fmt(content);
        text.push('\n');
    };
    line(format_args!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222222">"##
    ));
    line(format_args!(
        r##"<rect width="{width}" height="{height}" fill="#ffffff"/>"##
    ));
    line(format_args!(
        r#"<text x="20" y="30" font-size="18" font-weight="bold">{}</text>"#,
        escaped(title)
    ));
    line(format_args!(
        r##"<text x="20" y="50" fill="#555555">{}</text>"##,
        escaped(subtitle)
    ));
    for (index, panel) in panels.iter().enumerate() {
        let left = panel_width * index as f64 + LEFT;
        line(format_args!(r#"<g transform="translate({left} {TOP})">"#));
        axes.draw(&panel.title, &mut line);
        // The peer first, so that ours are above it.
        for peer in [true, false] {
            for curve in panel.curves.iter().filter(|curve| curve.peer == peer) {
                axes.draw_curve(curve, &style(&names, &curve.name), &mut line);
            }
        }
        line(format_args!("</g>"));
    }
    for (index, (name, _)) in names.iter().enumerate() {
        let column = width / per_row(width) as f64;
        let x = 24.0 + column * (index % per_row(width)) as f64;
        let y = TOP + HEIGHT + BOTTOM + LEGEND_LINE * (index / per_row(width)) as f64 + 8.0;
        let (stroke, dashes) = style(&names, name);
        line(format_args!(
            r#"<path d="M{x} {y}h32" fill="none" {stroke}{dashes}/><text x="{}" y="{}">{}</text>"#,
            x + 40.0,
            y + 4.0,
            escaped(name)
        ));
    }
    line(format_args!("</svg>"));
    text
}

/// How many names of the legend fit beside each other.
fn per_row(width: f64) -> usize {
    ((width / 220.0) as usize).max(1)
}

/// Each name once, in order of appearance and the peer's last, and whether it is the peer's.
fn legend_names(panels: &[Panel]) -> Vec<(String, bool)> {
    let mut names: Vec<(String, bool)> = Vec::new();
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if names.iter().all(|(name, _)| *name != curve.name) {
            names.push((curve.name.clone(), curve.peer));
        }
    }
    names.sort_by_key(|(_, peer)| *peer);
    names
}

/// A stroke, and whether it is dashed.
type Style = (String, &'static str);

/// A name has the same looks in every panel.
fn style(names: &[(String, bool)], name: &str) -> Style {
    let is_peer = names.iter().any(|(other, peer)| other == name && *peer);
    if is_peer {
        let stroke = format!(r#"stroke="{PEERS_COLOUR}" stroke-width="2""#);
        return (stroke, r#" stroke-dasharray="6 4""#);
    }
    let ours = names.iter().filter(|(_, peer)| !peer);
    let at = ours.map(|(other, _)| other).position(|other| other == name);
    let colour = COLOURS[at.unwrap_or_default() % COLOURS.len()];
    (format!(r#"stroke="{colour}" stroke-width="2.5""#), "")
}

/// What bytes and GB/s are on the drawing.
struct Axes {
    /// The sizes that were measured.
    sizes: Vec<u64>,
    /// Powers of ten.
    lowest: i32,
    highest: i32,
}

impl Axes {
    fn around(panels: &[Panel]) -> Self {
        let curves = || panels.iter().flat_map(|panel| &panel.curves);
        let points = || curves().flat_map(|curve| &curve.points);
        let mut sizes: Vec<u64> = points().map(|(bytes, _)| *bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let exponents = points().map(|(_, rate)| rate.log10());
        let (low, high) = exponents.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), e| {
            (low.min(e), high.max(e))
        });
        let (lowest, highest) = match low.is_finite() && high.is_finite() {
            true => (low.floor() as i32, high.ceil() as i32),
            false => (-1, 1),
        };
        Self {
            sizes,
            lowest,
            highest: highest.max(lowest + 1),
        }
    }

    fn x(&self, bytes: u64) -> f64 {
        let (Some(&first), Some(&last)) = (self.sizes.first(), self.sizes.last()) else {
            return 0.0;
        };
        if first == last {
            return WIDTH / 2.0;
        }
        let log = |bytes: u64| (bytes as f64).ln();
        // A little room at both sides.
        let share = (log(bytes) - log(first)) / (log(last) - log(first));
        WIDTH * (0.03 + 0.94 * share)
    }

    fn y(&self, rate: f64) -> f64 {
        let decades = f64::from(self.highest - self.lowest);
        HEIGHT * (1.0 - (rate.log10() - f64::from(self.lowest)) / decades)
    }

    fn draw(&self, title: &str, line: &mut impl FnMut(std::fmt::Arguments<'_>)) {
        line(format_args!(
            r#"<text x="0" y="-14" font-size="14" font-weight="bold">{}</text>"#,
            escaped(title)
        ));
        for exponent in self.lowest..=self.highest {
            for digit in 1..=9 {
                let rate = f64::from(digit) * 10f64.powi(exponent);
                if rate > 10f64.powi(self.highest) * 1.0001 {
                    break;
                }
                let y = self.y(rate);
                let (colour, width) = if digit == 1 {
                    ("#bbbbbb", 1.0)
                } else {
                    ("#eeeeee", 0.7)
                };
                line(format_args!(
                    r#"<path d="M0 {y:.1}h{WIDTH}" stroke="{colour}" stroke-width="{width}"/>"#
                ));
                // With few decades there is room for more numbers.
                let numbered =
                    digit == 1 || (self.highest - self.lowest <= 3 && (digit == 2 || digit == 5));
                if numbered {
                    line(format_args!(
                        r#"<text x="-8" y="{:.1}" text-anchor="end">{}</text>"#,
                        y + 4.0,
                        number(rate)
                    ));
                }
            }
        }
        for &bytes in &self.sizes {
            let x = self.x(bytes);
            line(format_args!(
                r##"<path d="M{x:.1} 0v{HEIGHT}" stroke="#dddddd"/><text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"##,
                HEIGHT + 18.0,
                Bytes(bytes)
            ));
        }
        line(format_args!(
            r##"<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888888"/>"##
        ));
        line(format_args!(
            r#"<text x="{}" y="{}" text-anchor="middle">bytes of the message</text>"#,
            WIDTH / 2.0,
            HEIGHT + 40.0
        ));
        line(format_args!(
            r#"<text transform="translate(-50 {}) rotate(-90)" text-anchor="middle">bytes / median time, GB/s</text>"#,
            HEIGHT / 2.0
        ));
    }

    fn draw_curve(
        &self,
        curve: &Curve,
        (stroke, dashes): &Style,
        line: &mut impl FnMut(std::fmt::Arguments<'_>),
    ) {
        let points: Vec<_> = curve
            .points
            .iter()
            .map(|&(bytes, rate)| (self.x(bytes), self.y(rate)))
            .collect();
        let path = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
        line(format_args!(
            r#"<polyline points="{}" fill="none" {stroke}{dashes}/>"#,
            path.collect::<Vec<_>>().join(" ")
        ));
        for ((x, y), (bytes, rate)) in points.iter().zip(&curve.points) {
            line(format_args!(
                r##"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="#ffffff" {stroke}><title>{}: {} bytes, {rate:.3} GB/s</title></circle>"##,
                escaped(&curve.name),
                Bytes(*bytes)
            ));
        }
    }
}

/// A number of an axis, without the noise of binary fractions.
fn number(value: f64) -> String {
    match value {
        ..1.0 => format!("{value:.6}").trim_end_matches('0').to_owned(),
        _ => format!("{value:.0}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(title: &str, curves: &[(&str, bool)]) -> Panel {
        let curve = |&(name, peer): &(&str, bool)| Curve {
            name: name.into(),
            peer,
            points: vec![(1024, 0.002), (1 << 20, 1.5), (25 << 20, 3.0)],
        };
        Panel {
            title: title.into(),
            curves: curves.iter().map(curve).collect(),
        }
    }

    fn last_word(text: &str) -> &str {
        text.rsplit([' ', '"']).next().unwrap_or(text)
    }

    /// Names of elements that are opened and not closed, in order.
    fn unclosed(text: &str) -> Vec<&str> {
        let mut open = Vec::new();
        for tag in text.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap();
            let mut attributes: Vec<_> = tag.split("=\"").map(last_word).collect();
            attributes.pop();
            let all = attributes.len();
            attributes.sort_unstable();
            attributes.dedup();
            assert_eq!(
                attributes.len(),
                all,
                "an attribute stands twice in <{tag}>"
            );
            let name = tag
                .trim_start_matches('/')
                .split_whitespace()
                .next()
                .unwrap();
            match (tag.starts_with('/'), tag.ends_with('/')) {
                (true, _) => assert_eq!(open.pop(), Some(name)),
                (false, false) => open.push(name),
                (false, true) => {}
            }
        }
        open
    }

    #[test]
    fn a_drawing_names_what_it_shows() {
        let curves = [("shm", false), ("tcp", false), ("gloo <2>", true)];
        let panels = [panel("2 ranks", &curves), panel("4 ranks", &curves[..2])];
        let text = svg("all_reduce & others", "on 2 cores", &panels);
        assert_eq!(unclosed(&text), Vec::<&str>::new());
        for shown in [
            ">all_reduce &amp; others<",
            ">on 2 cores<",
            ">2 ranks<",
            ">4 ranks<",
            ">1K<",
            ">25M<",
            ">0.001<",
            ">10<",
            ">gloo &lt;2&gt;<",
            "bytes of the message",
            "GB/s",
        ] {
            assert!(text.contains(shown), "{shown} is missing");
        }
        assert_eq!(text.matches("<polyline").count(), 5);
        assert_eq!(text.matches("<circle").count(), 15);
        // One line each in the legend, the peer's dashed.
        assert_eq!(text.matches("h32\"").count(), 3);
        assert_eq!(text.matches(">tcp</text>").count(), 1);
    }

    #[test]
    fn axes_hold_all_points() {
        let axes = Axes::around(&[panel("", &[("a", false)])]);
        assert_eq!((axes.lowest, axes.highest), (-3, 1));
        for (bytes, rate) in [(1024, 0.002), (25 << 20, 3.0)] {
            assert!((0.0..=WIDTH).contains(&axes.x(bytes)));
            assert!((0.0..=HEIGHT).contains(&axes.y(rate)));
        }
        assert!(axes.y(1.0) < axes.y(0.1));
        assert_eq!(axes.y(0.001), HEIGHT);
    }

    #[test]
    fn little_is_drawn_of_little() {
        assert_eq!(unclosed(&svg("none", "", &[])), Vec::<&str>::new());
        let one = Panel {
            title: "one".into(),
            curves: vec![Curve {
                name: "a".into(),
                peer: false,
                points: vec![(4, 1.0)],
            }],
        };
        let text = svg("one", "", &[one]);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
