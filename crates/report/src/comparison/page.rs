//! A comparison as a page: the table, and the curves of all runs laid over each other.

use std::collections::BTreeSet;

use everburn_record::plain;

use super::Comparison;
use crate::Series;
use crate::chart::{Chart, Detail, Line};
use crate::page::markup::{Html, text};
use crate::page::{Data, Section, page, within_bounds};
use crate::run::Run;

/// Which of a run's series a chart shows.
type Choice = fn(&Run) -> &Series;

const MIB: f64 = (1 << 20) as f64;

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

    fn curves(&self, detail: Detail, data: &mut Data) -> Option<Section> {
        let mut section = Section::new("curves", "Curves");
        let steps = [
            Chart::new("training-loss", "Training loss", "nats a prediction").or_logarithmic(),
            Chart::new("validation-loss", "Validation loss", "nats a prediction").or_logarithmic(),
            Chart::new("training-accuracy", "Training accuracy", "% of predictions"),
            Chart::new(
                "validation-accuracy",
                "Validation accuracy",
                "% of predictions",
            ),
            Chart::new("throughput", "Throughput", "samples per second, all ranks").with_zero(),
            Chart::new("memory", "Peak memory", "MiB, of the rank that uses most").with_zero(),
            Chart::new("learning-rate", "Learning rate", "per step").with_zero(),
        ];
        let curves: [(Choice, f64); 7] = [
            (
                |run| first_of(&run.metrics.loss.step, &run.metrics.loss.epoch),
                1.0,
            ),
            (|run| &run.metrics.loss.validation, 1.0),
            (
                |run| first_of(&run.metrics.accuracy.step, &run.metrics.accuracy.epoch),
                100.0,
            ),
            (|run| &run.metrics.accuracy.validation, 100.0),
            (|run| &run.metrics.samples_per_second, 1.0),
            (|run| &run.metrics.peak_memory, 1.0 / MIB),
            (|run| &run.metrics.learning_rate, 1.0),
        ];
        let mut charts = steps;
        for (chart, (series, factor)) in charts.iter_mut().zip(curves) {
            for (index, run) in self.runs.iter().enumerate() {
                let line = Line::new(&self.names[index], series(run), index);
                let smooth = ["memory", "learning-rate"].contains(&chart.id.as_str());
                let line = if smooth { line } else { line.noisy() };
                let line = line.times(factor);
                let few = series(run).count() <= 60;
                chart.add(&if few { line.dotted() } else { line }, detail);
            }
        }
        let named = self.named(detail);
        let mut by_time = Chart::new(
            "loss-by-time",
            "Training loss over time",
            "nats a prediction",
        )
        .or_logarithmic()
        .over_time();
        for (index, run) in self.runs.iter().enumerate() {
            if let Some(start) = crate::page::start(run) {
                let line = Line::new(&self.names[index], &run.metrics.loss_by_time.step, index);
                by_time.add(&line.noisy().since(start), detail);
            }
        }
        if charts.iter().all(Chart::is_empty) {
            return None;
        }
        section.html.put(format_args!("<div class=\"charts\">\n"));
        for chart in charts.iter().chain([&by_time]).chain(&named) {
            data.chart(chart, &mut section.html);
        }
        section.html.put(format_args!("</div>\n"));
        Some(section)
    }

    /// The objectives' other metrics, in training and validation.
    fn named(&self, detail: Detail) -> Vec<Chart> {
        let names = self.runs.iter().flat_map(|run| run.metrics.named.keys());
        let names: BTreeSet<&String> = names.collect();
        let mut charts = Vec::new();
        for (number, name) in names.into_iter().enumerate() {
            let (id, title) = (
                format!("training-metric-{number}"),
                format!("Training {name}"),
            );
            let mut training = Chart::new(&id, &title, "mean");
            let (id, title) = (
                format!("validation-metric-{number}"),
                format!("Validation {name}"),
            );
            let mut validation = Chart::new(&id, &title, "mean");
            for (index, run) in self.runs.iter().enumerate() {
                let Some(curve) = run.metrics.named.get(name) else {
                    continue;
                };
                let series = first_of(&curve.step, &curve.epoch);
                let line = Line::new(&self.names[index], series, index);
                training.add(&line.noisy(), detail);
                let line = Line::new(&self.names[index], &curve.validation, index);
                validation.add(&line.dotted(), detail);
            }
            charts.extend([training, validation]);
        }
        charts
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
fn first_of<'a>(steps: &'a Series, epochs: &'a Series) -> &'a Series {
    if steps.count() > 1 { steps } else { epochs }
}
