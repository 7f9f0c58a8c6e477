//! A chart as a figure of a page.

use everburn_record::svg::{Axis, Element, Labels};
use everburn_record::units;
use serde::Serialize;

use super::{Chart, Curve, Mark, Style};
use crate::page::markup::{Html, text};

/// The units of a drawing, which is stretched to the room that there is.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 300.0;

/// What the page's script knows of a chart: what to show when it is pointed at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Figures {
    unit: String,
    x: &'static str,
    lines: Vec<LineFigures>,
    marks: Vec<(f64, &'static str, String)>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct LineFigures {
    name: String,
    colour: usize,
    x: Vec<f64>,
    y: Vec<f64>,
}

/// A number with few digits: more would not be seen, and have to be stored.
pub(crate) fn plain_number(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(0.0)
}

/// Draws the chart, and yields the figures for the page's script.
pub(crate) fn html(chart: &Chart, html: &mut Html) -> Figures {
    let points = || chart.curves.iter().flat_map(|curve| &curve.points);
    let (xs, ys) = (
        || points().map(|point| point.0),
        || points().map(|point| point.1),
    );
    let low_of = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let high_of = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
    let x = Axis::between(low_of(&mut xs()), high_of(&mut xs()), chart.x_labels);
    let (low, high) = (low_of(&mut ys()), high_of(&mut ys()));
    let y = Axis::around(if chart.from_zero { low.min(0.0) } else { low }, high);
    // What is not positive is at the bottom; so does what is less than a millionth of the highest.
    let positive = low_of(&mut ys().filter(|y| *y > 0.0)).max(high / 1e6);
    let logarithmic =
        (chart.can_be_logarithmic && positive < high).then(|| Axis::logarithmic(positive, high));

    html.put(format_args!(
        r#"<figure class="chart" data-chart="{}">"#,
        text(&chart.id)
    ));
    html.put(format_args!("<figcaption><h3>{}</h3>", text(&chart.title)));
    if logarithmic.is_some() {
        scales(&chart.id, html);
    }
    html.put(format_args!("</figcaption>"));
    legend(chart, html);
    html.put(format_args!(r#"<p class="unit">{}</p>"#, text(&chart.unit)));
    frame(chart, &x, &y, html);
    if let Some(y) = logarithmic {
        frame(chart, &x, &y, html);
    }
    html.put(format_args!("</figure>\n"));
    figures(chart)
}

fn figures(chart: &Chart) -> Figures {
    let line = |curve: &Curve| LineFigures {
        name: curve.name.clone(),
        colour: curve.colour,
        x: curve
            .points
            .iter()
            .map(|point| (point.0 * 1e3).round() / 1e3)
            .collect(),
        y: curve
            .points
            .iter()
            .map(|point| plain_number(point.1))
            .collect(),
    };
    let marks = chart
        .marks
        .iter()
        .map(|mark| (mark.x, mark.kind, mark.text.clone()));
    Figures {
        unit: chart.unit.clone(),
        x: match chart.x_labels {
            Labels::Durations => "time",
            _ => "step",
        },
        lines: chart.curves.iter().map(line).collect(),
        marks: marks.collect(),
    }
}

/// The choice between a linear and a logarithmic axis, which needs no script.
fn scales(id: &str, html: &mut Html) {
    html.put(format_args!(
        r#"<span class="choice" role="radiogroup" aria-label="scale">"#
    ));
    for (name, checked) in [("linear", " checked"), ("log", "")] {
        html.put(format_args!(
            r#"<label><input type="radio" name="scale-{}" value="{name}"{checked}><span>{name}</span></label>"#,
            text(id)
        ));
    }
    html.put(format_args!("</span>"));
}

fn legend(chart: &Chart, html: &mut Html) {
    html.put(format_args!(r#"<div class="keys">"#));
    for (index, curve) in chart.curves.iter().enumerate() {
        // A faint line is drawn behind its mean and has no name to itself.
        if curve.style == Style::Faint {
            continue;
        }
        let behind = index.checked_sub(1).map(|before| &chart.curves[before]);
        let lines = match behind.is_some_and(|behind| behind.style == Style::Faint) {
            true => format!("{},{index}", index - 1),
            false => index.to_string(),
        };
        let mut sample = line_sample(&class(curve));
        if curve.style == Style::Dotted {
            sample.put(path_of("dots", "M13 5h0"));
        }
        html.put(format_args!(
            r#"<span class="key" data-lines="{lines}">{sample}{}</span>"#,
            text(&curve.name)
        ));
    }
    if !chart.marks.is_empty() {
        let sample = sample("marks", 10, 12).child(path("M5 0V12"));
        html.put(format_args!(r#"<span class="key">{sample}events</span>"#));
    }
    html.put(format_args!("</div>"));
}

/// The look of a line that a legend names.
pub(crate) fn line_sample(class: &str) -> Element {
    sample(class, 26, 10).child(path("M1 5H25"))
}

fn sample(class: &str, width: u32, height: u32) -> Element {
    Element::new("svg")
        .with("class", class)
        .with("width", width)
        .with("height", height)
        .with("aria-hidden", true)
}

fn path(course: &str) -> Element {
    Element::new("path").with("d", course)
}

fn path_of(class: &str, course: &str) -> Element {
    Element::new("path").with("class", class).with("d", course)
}

fn class(curve: &Curve) -> String {
    let style = match curve.style {
        Style::Solid => "solid",
        Style::Faint => "faint",
        Style::Dotted => "dotted",
    };
    format!("{style} c{}", curve.colour)
}

/// The drawing between its two axes.
fn frame(chart: &Chart, x: &Axis, y: &Axis, html: &mut Html) {
    let scale = if y.logarithmic { "log" } else { "linear" };
    let widest = y
        .ticks
        .iter()
        .map(|(_, label)| label.chars().count())
        .max()
        .unwrap_or(1);
    html.put(format_args!(
        r#"<div class="frame {scale}" style="--y:{widest}ch"><div class="y" aria-hidden="true">"#
    ));
    for (value, label) in &y.ticks {
        html.put(format_args!(
            r#"<span style="bottom:{:.2}%">{}</span>"#,
            100.0 * y.place(*value),
            text(label)
        ));
    }
    html.put(format_args!(
        r#"</div><div class="plot" tabindex="0" role="img" aria-label="{}" data-x0="{:e}" data-x1="{:e}" data-y0="{:e}" data-y1="{:e}">"#,
        text(&description(chart)),
        x.low,
        x.high,
        y.low,
        y.high
    ));
    html.put(format_args!("{}</div>", svg(chart, x, y)));
    html.ticks(x);
    html.put(format_args!(
        r#"<p class="axis">{}</p></div>"#,
        text(&chart.x_title)
    ));
}

/// The chart in words, for those who do not see it.
fn description(chart: &Chart) -> String {
    let curves = chart.curves.iter().filter_map(|curve| {
        let (first, last) = (curve.points.first()?, curve.points.last()?);
        let number = |value: f64| units::significant(value, 4);
        let (from, to) = (number(first.1), number(last.1));
        Some(match curve.points.len() {
            1 => format!("{}: {from}", curve.name),
            _ => format!("{}: from {from} to {to}", curve.name),
        })
    });
    let curves: Vec<_> = curves.collect();
    format!(
        "{} in {} over {}. {}",
        chart.title,
        chart.unit,
        chart.x_title,
        curves.join("; ")
    )
}

/// The drawing itself.
fn svg(chart: &Chart, x: &Axis, y: &Axis) -> Element {
    let mut svg = Element::new("svg")
        .with("viewBox", format_args!("0 0 {WIDTH} {HEIGHT}"))
        .with("preserveAspectRatio", "none")
        .with("aria-hidden", true);
    let rules = y.ticks.iter();
    let rules = rules.map(|(value, _)| format!("M0 {}h{WIDTH}", upright(y, *value)));
    svg.put(path_of("rule", &rules.collect::<String>()));
    if !chart.marks.is_empty() {
        let is_inside = |mark: &&Mark| (x.low..=x.high).contains(&mark.x);
        let inside = chart.marks.iter().filter(is_inside);
        let marks = inside.map(|mark| format!("M{} 0v{HEIGHT}", across(x, mark.x)));
        svg.put(path_of("marks", &marks.collect::<String>()));
    }
    for (index, curve) in chart.curves.iter().enumerate() {
        let places: Vec<_> = curve
            .points
            .iter()
            .map(|point| (across(x, point.0), upright(y, point.1)))
            .collect();
        let mut line = Element::new("g")
            .with("class", class(curve))
            .with("data-line", index);
        if places.len() > 1 {
            let course = places
                .iter()
                .enumerate()
                .map(|(number, (x, y))| match number {
                    0 => format!("M{x} {y}"),
                    1 => format!("L{x} {y}"),
                    _ => format!(" {x} {y}"),
                });
            line.put(path(&course.collect::<String>()));
        }
        if places.len() == 1 || curve.style == Style::Dotted {
            // A line without length and with round ends: it stays round when the drawing is stretched.
            let dots = places.iter().map(|(x, y)| format!("M{x} {y}h0"));
            line.put(path_of("dots", &dots.collect::<String>()));
        }
        svg.put(line);
    }
    svg
}

fn across(axis: &Axis, value: f64) -> String {
    short(WIDTH * axis.place(value))
}

fn upright(axis: &Axis, value: f64) -> String {
    short(HEIGHT * (1.0 - axis.place(value)))
}

fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}
