//! A comparison as a page: the table, and the curves of all runs laid over each other.

use std::collections::BTreeSet;

use everburn_record::plain;

use super::Comparison;
use crate::Series;
use crate::chart::{Chart, Detail, Line, Style};
use crate::page::markup::{Html, text};
use crate::page::{Data, MIB, Section, page, within_bounds};
use crate::run::{Curve, Run};

/// Which of a run's series a chart shows.
type Choice = fn(&Run) -> &Series;

impl Comparison {
    /// The runs as one HTML file, in the manner of [`Run::to_html`]: the table, and their curves in the same charts.
    #[must_use]
    pub fn to_html(&self) -> String {
        within_bounds(|detail| {
            let mut data = Data::default();
            let sections = [self.table(), self.curves(detail, &mut data), self.notes()];
            let title = plain::line(&self.names.join(", "), 200);
            let count = format!("{} runs", self.runs.len());
            page(&title, &count, sections.into_iter().flatten(), &data)
        })
    }

    fn table(&self) -> Option<Section> {
        let mut section = Section::new("comparison", "Comparison");
        let html = &mut section.html;
        html.put(format_args!(
            "<div class=\"scroll\"><table class=\"compare\"><thead><tr><th></th>"
        ));
        for (index, name) in self.names.iter().enumerate() {
            let colour = index % crate::chart::COLOURS;
            html.put(format_args!(
                "<th scope=\"col\">{} {}</th>",
                crate::chart::line_sample(&format!("c{colour}")),
                text(name)
            ));
        }
        html.put(format_args!("</tr></thead>"));
        for part in self.parts() {
            let columns = self.runs.len() + 1;
            html.put(format_args!(
                "<tbody><tr><th class=\"text part\" scope=\"rowgroup\" colspan=\"{columns}\">{}</th></tr>",
                text(part.title)
            ));
            for row in &part.rows {
                html.put(format_args!(
                    "<tr><th class=\"text\" scope=\"row\">{}</th>",
                    text(row.name.trim())
                ));
                for cell in &row.cells {
                    match cell {
                        None => html.put(format_args!("<td>–</td>")),
                        Some((value, None)) => html.put(format_args!("<td>{}</td>", text(value))),
                        Some((value, Some(change))) => html.put(format_args!(
                            "<td>{} <small class=\"faint\">{}</small></td>",
                            text(value),
                            text(change)
                        )),
                    }
                }
                html.put(format_args!("</tr>"));
            }
            html.put(format_args!("</tbody>"));
        }
        html.put(format_args!("</table></div>\n"));
        Some(section)
    }

    /// The line of each run that has the series.
    fn lines<'a>(
        &'a self,
        series: impl Fn(&'a Run) -> Option<&'a Series>,
    ) -> impl Iterator<Item = Line<'a>> {
        let runs = self.names.iter().zip(&self.runs).enumerate();
        runs.filter_map(move |(index, (name, run))| Some(Line::new(name, series(run)?, index)))
    }

    fn curves(&self, detail: Detail, data: &mut Data) -> Option<Section> {
        let of_loss = |id, title| Chart::new(id, title, "nats a prediction").or_logarithmic();
        let of_accuracy = |id, title| Chart::new(id, title, "% of predictions");
        let throughput = Chart::new("throughput", "Throughput", "samples per second, all ranks");
        let memory = Chart::new("memory", "Peak memory", "MiB, of the rank that uses most");
        let rate = Chart::new("learning-rate", "Learning rate", "per step");
        let curves: [(Chart, f64, Choice); 7] = [
            (of_loss("training-loss", "Training loss"), 1.0, |run| {
                of_training(&run.metrics.loss)
            }),
            (of_loss("validation-loss", "Validation loss"), 1.0, |run| {
                &run.metrics.loss.validation
            }),
            (
                of_accuracy("training-accuracy", "Training accuracy"),
                100.0,
                |run| of_training(&run.metrics.accuracy),
            ),
            (
                of_accuracy("validation-accuracy", "Validation accuracy"),
                100.0,
                |run| &run.metrics.accuracy.validation,
            ),
            (throughput.with_zero(), 1.0, |run| {
                &run.metrics.samples_per_second
            }),
            (memory.with_zero(), 1.0 / MIB, |run| {
                &run.metrics.peak_memory
            }),
            (rate.with_zero(), 1.0, |run| &run.metrics.learning_rate),
        ];
        let mut charts = Vec::new();
        for (chart, factor, series) in curves {
            let is_noisy = !["memory", "learning-rate"].contains(&chart.id.as_str());
            let lines = self.lines(|run| Some(series(run))).map(|line| Line {
                style: match line.series.count() {
                    ..=60 => Style::Dotted,
                    _ => Style::Solid,
                },
                is_noisy,
                factor,
                ..line
            });
            charts.push(chart.with(lines, detail));
        }
        let mut by_time = of_loss("loss-by-time", "Training loss over time").over_time();
        for (index, run) in self.runs.iter().enumerate() {
            if let Some(start) = crate::page::start(run) {
                let line = Line::new(&self.names[index], &run.metrics.loss_by_time.step, index);
                by_time = by_time.with([line.noisy().since(start)], detail);
            }
        }
        charts.push(by_time);
        charts.extend(self.named(detail));
        Section::of_charts("curves", "Curves", &charts, data)
    }

    /// The objectives' other metrics, in training and validation.
    fn named(&self, detail: Detail) -> Vec<Chart> {
        let names = self.runs.iter().flat_map(|run| run.metrics.named.keys());
        let names: BTreeSet<&String> = names.collect();
        let charts = names.into_iter().enumerate().flat_map(|(number, name)| {
            let chart = |id: &str, title: &str| {
                Chart::new(
                    &format!("{id}-metric-{number}"),
                    &format!("{title} {name}"),
                    "mean",
                )
            };
            let training = self.lines(|run| run.metrics.named.get(name).map(of_training));
            let validation = self.lines(|run| Some(&run.metrics.named.get(name)?.validation));
            [
                chart("training", "Training").with(training.map(Line::noisy), detail),
                chart("validation", "Validation").with(validation.map(Line::dotted), detail),
            ]
        });
        charts.collect()
    }

    /// What could not be read of each run.
    fn notes(&self) -> Option<Section> {
        let mut section = Section::new("notes", "What could not be read");
        let mut list = Html::default();
        for (name, run) in self.names.iter().zip(&self.runs) {
            for note in run.notes.iter().take(20) {
                let (file, what) = (plain::line(&note.file, 200), plain::line(&note.what, 500));
                list.put(format_args!(
                    "<li>{}, <code>{}</code>: {}</li>",
                    text(name),
                    text(&file),
                    text(&what)
                ));
            }
        }
        if list.as_str().is_empty() {
            return None;
        }
        section.html.put(format_args!(
            "<div class=\"notes\"><ul>{}</ul></div>\n",
            list.as_str()
        ));
        Some(section)
    }
}

/// Single steps, where they were recorded.
fn of_training(curve: &Curve) -> &Series {
    if curve.step.count() > 1 {
        &curve.step
    } else {
        &curve.epoch
    }
}
