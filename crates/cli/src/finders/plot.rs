//! The plot of a sweep over learning rates: loss by rate, on a logarithmic axis.

use everburn_record::svg::{Axis, Element, Font, Key, legend};
use everburn_train::LearningRateSweep;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;

/// Room for the labels: left, top, right, bottom.
const FRAME: [f64; 4] = [64.0, 56.0, 24.0, 44.0];

/// The plot shows losses up to this many times the first one.
const HEADROOM: f64 = 1.5;

/// Colours that colour-blind readers tell apart (Okabe and Ito).
const SMOOTHED: &str = "#0072b2";
const RAW: &str = "#b0b0b0";
const SUGGESTED: &str = "#d55e00";

pub(super) fn svg(sweep: &LearningRateSweep) -> String {
    let rates = || sweep.points.iter().map(|point| point.learning_rate);
    let smoothed = || sweep.points.iter().map(|point| point.smoothed);
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
    let x = Axis::logarithmic(least(&mut rates()), most(&mut rates()));
    // By the smoothed loss, and not by how it explodes: what is higher lies on the upper edge.
    let ceiling = smoothed().next().unwrap_or(f64::INFINITY) * HEADROOM;
    let y = Axis::around(least(&mut smoothed()), most(&mut smoothed()).min(ceiling));
    let [left, top, right, bottom] = FRAME;
    let at_x = |rate: f64| left + x.place(rate) * (WIDTH - left - right);
    let at_y = |loss: f64| HEIGHT - bottom - y.place(loss) * (HEIGHT - top - bottom);
    let mut file = Element::file(WIDTH, HEIGHT, Font::Sans, 12.0)
        .line(Element::rect(0, 0, "100%", "100%").with("fill", "white"))
        .line(Element::label(left, 22, "Loss by learning rate").with("font-size", 15));
    for (rate, label) in &x.ticks {
        let place = at_x(*rate);
        file.put_line(line([place, top, place, HEIGHT - bottom], "#e5e5e5"));
        let label = Element::label(place, HEIGHT - bottom + 18.0, label);
        file.put_line(label.with("text-anchor", "middle"));
    }
    for (loss, label) in &y.ticks {
        let place = at_y(*loss);
        file.put_line(line([left, place, WIDTH - right, place], "#e5e5e5"));
        let label = Element::label(left - 8.0, place + 4.0, label);
        file.put_line(label.with("text-anchor", "end"));
    }
    let curve = |value: fn(&everburn_train::SweepPoint) -> f64| {
        let points = sweep.points.iter();
        let points = points
            .map(|point| format!("{:.1},{:.1}", at_x(point.learning_rate), at_y(value(point))));
        let points: Vec<String> = points.collect();
        Element::new("polyline")
            .with("points", points.join(" "))
            .with("fill", "none")
    };
    file.put_line(curve(|point| point.loss).with("stroke", RAW));
    let smooth = curve(|point| point.smoothed).with("stroke", SMOOTHED);
    file.put_line(smooth.with("stroke-width", 2));
    let mut keys = vec![
        (SMOOTHED, "smoothed loss".to_string()),
        (RAW, "loss".to_string()),
    ];
    if let Some(rate) = sweep.suggestion() {
        let place = at_x(rate);
        let mark = line([place, top, place, HEIGHT - bottom], SUGGESTED);
        file.put_line(mark.with("stroke-width", 2).with("stroke-dasharray", "6 4"));
        keys.push((SUGGESTED, format!("suggested: {rate:.2e}")));
    }
    let keys = keys.into_iter().map(|(colour, name)| Key {
        attribute: "fill",
        look: colour.to_string(),
        name,
    });
    let (boxes, _) = legend(keys, left, 32.0, "key");
    boxes.into_iter().for_each(|element| file.put_line(element));
    format!("{file}\n")
}

fn line([x1, y1, x2, y2]: [f64; 4], colour: &str) -> Element {
    Element::new("line")
        .with("x1", x1)
        .with("y1", y1)
        .with("x2", x2)
        .with("y2", y2)
        .with("stroke", colour)
}

#[cfg(test)]
mod tests {
    use everburn_train::{LearningRateRange, SweepPoint};

    use super::*;

    #[test]
    fn a_plot_has_both_curves_and_the_suggestion() {
        let rates = LearningRateRange::default().rates();
        let points = rates.iter().enumerate().map(|(step, rate)| SweepPoint {
            learning_rate: *rate,
            loss: 2.0,
            smoothed: 3.0 - step as f64 / 100.0,
        });
        let sweep = LearningRateSweep {
            points: points.collect(),
            ..LearningRateSweep::default()
        };
        let text = svg(&sweep);
        assert!(
            text.starts_with("<svg ") && text.ends_with("</svg>\n"),
            "{text}"
        );
        assert_eq!(text.matches("<polyline").count(), 2);
        assert!(text.contains("suggested: "), "{text}");
        // Without a point there is a frame all the same, and no number that is none.
        let empty = svg(&LearningRateSweep::default());
        assert!(
            empty.starts_with("<svg ") && !empty.contains("NaN"),
            "{empty}"
        );
    }
}
