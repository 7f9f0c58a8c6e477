use everburn_record::EventKind;

use super::*;
use crate::page::markup::Html;

fn series(points: &[(u64, f64)]) -> Series {
    let mut series = Series::default();
    for (x, y) in points {
        series.push(*x, *y);
    }
    series
}

fn drawn(chart: &Chart) -> String {
    let mut drawn = Html::default();
    html(chart, &mut drawn);
    // A line for each element.
    drawn.into_string().replace("><", ">\n<")
}

#[test]
fn a_chart_of_two_curves() {
    let chart = Chart::new("loss", "Loss", "nats").or_logarithmic();
    let training = series(&[(10, 2.0), (20, 1.0), (30, 0.5)]);
    let validation = series(&[(30, 0.75)]);
    let lines = [
        Line::new("training <1>", &training, 0),
        Line::new("validation", &validation, 1).dotted(),
    ];
    let mut chart = chart.with(lines, Detail::FULL);
    let lost = Event {
        step: Some(20),
        ..Event::new(EventKind::Loss, "rank 1")
    };
    let before = Event {
        step: Some(5),
        ..lost.clone()
    };
    chart.mark([lost, before].iter());
    insta::assert_snapshot!(drawn(&chart));
}

#[test]
fn a_chart_of_one_point_has_axes() {
    let chart = Chart::new("accuracy", "Accuracy", "%").with_zero();
    let series = series(&[(7, 0.5)]);
    let line = Line::new("validation", &series, 1).times(100.0);
    insta::assert_snapshot!(drawn(&chart.with([line], Detail::FULL)));
}

#[test]
fn a_noisy_curve_has_its_mean_before_it() {
    let noise: Vec<_> = (1..=5000)
        .map(|step| (step, if step % 2 == 0 { 1.0 } else { 3.0 }))
        .collect();
    let series = series(&noise);
    let line = Line::new("training", &series, 0).noisy();
    let chart = Chart::new("loss", "Loss", "nats").with([line], Detail::FULL);
    let [raw, mean] = &chart.curves[..] else {
        panic!("{} curves", chart.curves.len())
    };
    assert_eq!((raw.style, mean.style), (Style::Faint, Style::Solid));
    assert_eq!(mean.name, "training, mean of 128 steps");
    assert!(mean.points.iter().all(|(_, y)| (1.8..2.2).contains(y)));
    assert!(raw.points.iter().any(|(_, y)| *y == 3.0));
    // The two have one name in the legend, and are shown and hidden together.
    let html = drawn(&chart);
    assert_eq!(html.matches("data-lines=\"0,1\"").count(), 1);
    assert_eq!(html.matches("class=\"key\"").count(), 1);
}

#[test]
fn time_is_told_in_seconds_since_the_start() {
    let times = series(&[(1_795_300_855_000, 2.0), (1_795_300_915_000, 1.0)]);
    let line = Line::new("training", &times, 0).since(1_795_300_795_000);
    let chart = Chart::new("loss", "Loss", "nats").over_time();
    let chart = chart.with([line], Detail::FULL);
    assert_eq!(chart.curves[0].points, [(60.0, 2.0), (120.0, 1.0)]);
    assert!(drawn(&chart).contains(">2 min</span>"));
}

#[test]
fn nothing_is_no_chart() {
    let line = series(&[]);
    let chart = Chart::new("loss", "Loss", "nats");
    let chart = chart.with([Line::new("training", &line, 0)], Detail::FULL);
    assert!(chart.is_empty());
}

#[test]
fn numbers_without_a_plain_range_are_drawn() {
    let chart = Chart::new("loss", "Loss", "nats").or_logarithmic();
    let wild = series(&[(0, 1e300), (1, f64::MIN_POSITIVE), (u64::MAX, -1e300)]);
    let chart = chart.with([Line::new("training", &wild, 0)], Detail::FULL);
    let html = drawn(&chart);
    assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
}
