use everburn_record::EventKind;

use super::*;
use crate::page::markup::Html;

fn series(points: &[(u64, f64)]) -> Series {
    let mut series = Series::new(512);
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
    let mut chart = Chart::new("loss", "Loss", "nats").or_logarithmic();
    let training = series(&[(10, 2.0), (20, 1.0), (30, 0.5)]);
    chart.add(&Line::new("training <1>", &training, 0), Detail::FULL);
    chart.add(
        &Line::new("validation", &series(&[(30, 0.75)]), 1).dotted(),
        Detail::FULL,
    );
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
    let mut chart = Chart::new("accuracy", "Accuracy", "%").with_zero();
    chart.add(
        &Line::new("validation", &series(&[(7, 0.5)]), 1).times(100.0),
        Detail::FULL,
    );
    insta::assert_snapshot!(drawn(&chart));
}

#[test]
fn a_noisy_curve_has_its_mean_before_it() {
    let noise: Vec<_> = (1..=5000)
        .map(|step| (step, if step % 2 == 0 { 1.0 } else { 3.0 }))
        .collect();
    let mut chart = Chart::new("loss", "Loss", "nats");
    chart.add(
        &Line::new("training", &series(&noise), 0).noisy(),
        Detail::FULL,
    );
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
    let mut chart = Chart::new("loss", "Loss", "nats").over_time();
    let times = series(&[(1_795_300_855_000, 2.0), (1_795_300_915_000, 1.0)]);
    chart.add(
        &Line::new("training", &times, 0).since(1_795_300_795_000),
        Detail::FULL,
    );
    assert_eq!(chart.curves[0].points, [(60.0, 2.0), (120.0, 1.0)]);
    assert!(drawn(&chart).contains(">2 min</span>"));
}

#[test]
fn nothing_is_no_chart() {
    let mut chart = Chart::new("loss", "Loss", "nats");
    chart.add(&Line::new("training", &series(&[]), 0), Detail::FULL);
    assert!(chart.is_empty());
}

#[test]
fn numbers_without_a_plain_range_are_drawn() {
    let mut chart = Chart::new("loss", "Loss", "nats").or_logarithmic();
    let wild = series(&[(0, 1e300), (1, f64::MIN_POSITIVE), (u64::MAX, -1e300)]);
    chart.add(&Line::new("training", &wild, 0), Detail::FULL);
    let html = drawn(&chart);
    assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
}
