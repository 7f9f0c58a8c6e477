//! A drawing of lines on two logarithmic axes, as SVG that any browser shows.

use everburn_record::svg::{Axis, Element, Font};

use super::quantity::Bytes;

/// Colours that also those tell apart who see few (Okabe and Ito, "Color universal design", 2008).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// Of the peers, which are drawn below ours.
const PEERS_COLOURS: [&str; 2] = ["#777777", "#b0b0b0"];

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
    let (axes, names) = (Axes::around(panels), names(panels));
    let panel_width = LEFT + WIDTH + RIGHT;
    let width = panel_width * panels.len().max(1) as f64;
    let per_row = ((width / 220.0) as usize).max(1);
    let rows = names.len().div_ceil(per_row) as f64;
    let height = TOP + HEIGHT + BOTTOM + LEGEND_LINE * rows + 12.0;
    let title = Element::label(20, 30, title).with("font-size", 18);
    let mut file = Element::file(width, height, Font::Sans, 12.0)
        .with("fill", "#222222")
        .line(Element::rect(0, 0, "100%", "100%").with("fill", "#ffffff"))
        .line(title.with("font-weight", "bold"))
        .line(Element::label(20, 50, subtitle).with("fill", "#555555"));
    for (index, panel) in panels.iter().enumerate() {
        let left = panel_width * index as f64 + LEFT;
        let mut group = axes.frame(&panel.title);
        // The peers first, so that ours are above them.
        for peer in [true, false] {
            for curve in panel.curves.iter().filter(|curve| curve.peer == peer) {
                axes.put_curve(&mut group, curve, colour(&names, curve));
            }
        }
        file.put_line(group.with("transform", format_args!("translate({left} {TOP})")));
    }
    for (index, curve) in names.iter().enumerate() {
        let column = width / per_row as f64;
        let x = 24.0 + column * (index % per_row) as f64;
        let y = TOP + HEIGHT + BOTTOM + LEGEND_LINE * (index / per_row) as f64 + 8.0;
        let sample = Element::new("path").with("d", format_args!("M{x} {y}h32"));
        file.put(drawn(sample, curve, colour(&names, curve)));
        file.put_line(Element::label(x + 40.0, y + 4.0, &curve.name));
    }
    format!("{file}\n")
}

/// A curve of each name, in order of appearance and the peers' last.
fn names(panels: &[Panel]) -> Vec<&Curve> {
    let mut names: Vec<&Curve> = Vec::new();
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if names.iter().all(|other| other.name != curve.name) {
            names.push(curve);
        }
    }
    names.sort_by_key(|curve| curve.peer);
    names
}

/// A name has the same colour in every panel.
fn colour(names: &[&Curve], curve: &Curve) -> &'static str {
    let mut alike = names.iter().filter(|other| other.peer == curve.peer);
    let at = alike.position(|other| other.name == curve.name);
    let colours: &[&'static str] = if curve.peer { &PEERS_COLOURS } else { &COLOURS };
    colours[at.unwrap_or_default() % colours.len()]
}

/// A line in the looks of a curve.
fn drawn(line: Element, curve: &Curve, colour: &str) -> Element {
    let line = line.with("fill", "none").with("stroke", colour);
    let line = line.with("stroke-width", 2.5);
    match curve.peer {
        true => line.with("stroke-dasharray", "6 4"),
        false => line,
    }
}

/// What bytes and GB/s are on the drawing.
struct Axes {
    /// The sizes that were measured.
    sizes: Vec<u64>,
    x: Axis,
    /// From a power of ten to another.
    y: Axis,
}

impl Axes {
    fn around(panels: &[Panel]) -> Self {
        let curves = panels.iter().flat_map(|panel| &panel.curves);
        let points: Vec<_> = curves.flat_map(|curve| &curve.points).collect();
        let mut sizes: Vec<u64> = points.iter().map(|(bytes, _)| *bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let ends = [sizes.first(), sizes.last()].map(|size| size.map_or(1.0, |size| *size as f64));
        let exponents = || points.iter().map(|(_, rate)| rate.log10());
        let low = exponents().reduce(f64::min).unwrap_or(-1.0).floor();
        let high = exponents().reduce(f64::max).unwrap_or(1.0).ceil();
        let [low, high] = [low, high.max(low + 1.0)].map(|exponent| 10_f64.powf(exponent));
        Self {
            sizes,
            x: Axis::logarithmic(ends[0], ends[1]),
            y: Axis::logarithmic(low, high),
        }
    }

    fn x(&self, bytes: u64) -> f64 {
        // A little room at both sides.
        WIDTH * (0.03 + 0.94 * self.x.place(bytes as f64))
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT * (1.0 - self.y.place(rate))
    }

    /// The axes of a panel, and its title.
    fn frame(&self, title: &str) -> Element {
        let title = Element::label(0, -14, title).with("font-size", 14);
        let mut group = Element::new("g").child(title.with("font-weight", "bold"));
        let mut put_tick = |path: String, label: Element, anchor: &str| {
            let grid = Element::new("path").with("d", path);
            group.put(grid.with("stroke", "#dddddd"));
            group.put(label.with("text-anchor", anchor));
        };
        for (rate, label) in &self.y.ticks {
            let y = self.y(*rate);
            let label = Element::label(-8, y + 4.0, label);
            put_tick(format!("M0 {y:.1}h{WIDTH}"), label, "end");
        }
        for &bytes in &self.sizes {
            let x = self.x(bytes);
            let label = Element::label(x, HEIGHT + 18.0, &Bytes(bytes).to_string());
            put_tick(format!("M{x:.1} 0v{HEIGHT}"), label, "middle");
        }
        let border = Element::rect(0, 0, WIDTH, HEIGHT).with("fill", "none");
        let below = Element::label(WIDTH / 2.0, HEIGHT + 40.0, "bytes of the message");
        let beside = Element::label(0, 0, "bytes / median time, GB/s");
        let turned = format!("translate(-50 {}) rotate(-90)", HEIGHT / 2.0);
        group
            .child(border.with("stroke", "#888888"))
            .child(below.with("text-anchor", "middle"))
            .child(
                beside
                    .with("transform", turned)
                    .with("text-anchor", "middle"),
            )
    }

    fn put_curve(&self, group: &mut Element, curve: &Curve, colour: &str) {
        let at = |(bytes, rate): &(u64, f64)| (self.x(*bytes), self.y(*rate));
        let path = curve.points.iter().map(at);
        let path = path.map(|(x, y)| format!("{x:.1},{y:.1}"));
        let path = path.collect::<Vec<_>>().join(" ");
        let line = Element::new("polyline").with("points", path);
        group.put(drawn(line, curve, colour));
        for point in &curve.points {
            let ((x, y), (bytes, rate)) = (at(point), point);
            let what = format!("{}: {} bytes, {rate:.3} GB/s", curve.name, Bytes(*bytes));
            let dot = Element::new("circle")
                .with("cx", format_args!("{x:.1}"))
                .with("cy", format_args!("{y:.1}"))
                .with("r", 3.5)
                .with("fill", "#ffffff")
                .with("stroke", colour)
                .with("stroke-width", 2.5);
            group.put(dot.child(Element::new("title").text(&what)));
        }
    }
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

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

    #[test]
    fn a_drawing_names_what_it_shows() {
        let curves = [("shm", false), ("tcp", false), ("gloo <2>", true)];
        let panels = [panel("2 ranks", &curves), panel("4 ranks", &curves[..2])];
        let text = svg("all_reduce & others", "on 2 cores", &panels);
        text.assert_contains([
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
        ]);
        assert_eq!(text.matches("<polyline").count(), 5);
        assert_eq!(text.matches("<circle").count(), 15);
        // One line each in the legend, the peer's dashed.
        assert_eq!(text.matches("h32\"").count(), 3);
        assert_eq!(text.matches("dasharray").count(), 2);
        assert_eq!(text.matches(">tcp</text>").count(), 1);
    }

    #[test]
    fn each_peer_has_its_colour() {
        let curves = [("gloo", true), ("shm", false), ("mpi", true)];
        let panels = [panel("2 ranks", &curves)];
        let names = names(&panels);
        let colours: Vec<_> = names.iter().map(|curve| colour(&names, curve)).collect();
        assert_eq!(colours, [COLOURS[0], PEERS_COLOURS[0], PEERS_COLOURS[1]]);
    }

    #[test]
    fn axes_hold_all_points() {
        let axes = Axes::around(&[panel("", &[("a", false)])]);
        let ends = |axis: &Axis| (axis.low, axis.high);
        assert_eq!(ends(&axes.x), (1024.0, f64::from(25 << 20)));
        assert_eq!(ends(&axes.y), (0.001, 10.0));
        assert!(axes.y(1.0) < axes.y(0.1));
        assert_eq!(axes.y(0.001), HEIGHT);
    }

    #[test]
    fn little_is_drawn_of_little() {
        let one = Panel {
            title: "one".into(),
            curves: vec![Curve {
                name: "a".into(),
                peer: false,
                points: vec![(4, 1.0)],
            }],
        };
        for panels in [&[][..], &[one]] {
            let text = svg("one", "", panels);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
