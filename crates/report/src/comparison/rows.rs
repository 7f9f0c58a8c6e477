//! What is compared.

use std::collections::BTreeSet;

use everburn_record::{EventKind, plain, units};

use super::Comparison;
use crate::Run;
use crate::run::results::{count, measured, named, of_steps, text};

/// Part of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub(super) title: &'static str,
    pub(super) rows: Vec<Row>,
}

/// One thing, of all runs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    /// What it is in each run, if it is known, and how it differs from the first.
    pub(super) cells: Vec<Option<(String, Option<String>)>>,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amount {
    Loss,
    /// A part of 1; shares differ by percentage points.
    Share,
    Count,
    Seconds,
    Bytes,
}

impl Amount {
    fn shown(self, number: f64) -> String {
        match self {
            Self::Loss => units::significant(number, 4),
            Self::Share => units::percent(number, 2),
            Self::Count => units::count(number.round().max(0.0) as u64),
            Self::Seconds => units::seconds(number),
            Self::Bytes => units::bytes(number as u64),
        }
    }

    fn change(self, first: f64, number: f64) -> Option<String> {
        match self {
            Self::Share => {
                let points = 100.0 * (number - first);
                (points.abs() >= 0.005).then(|| format!("{points:+.2} points"))
            }
            _ => change(first, number),
        }
    }
}

impl Row {
    /// `None` of cells that are all empty.
    fn of(name: &str, cells: Vec<Option<(String, Option<String>)>>) -> Option<Self> {
        let name = name.to_owned();
        let any = cells.iter().any(Option::is_some);
        any.then_some(Self { name, cells })
    }
}

impl Comparison {
    pub(super) fn parts(&self) -> Vec<Part> {
        let parts = [
            ("run", self.about()),
            ("configuration, where it differs", self.settings()),
            ("results", self.results()),
            ("speed and cost", self.costs()),
            ("events", self.events()),
        ];
        let parts = parts.into_iter().map(|(title, rows)| Part { title, rows });
        parts.filter(|part| !part.rows.is_empty()).collect()
    }

    /// A row of words.
    fn words(&self, name: &str, word: impl Fn(&Run) -> Option<String>) -> Option<Row> {
        let cell = |run: &Run| word(run).map(|word| (plain::line(&word, 60), None));
        Row::of(name, self.runs.iter().map(cell).collect())
    }

    /// A row of numbers, with how they differ from the first.
    fn numbers(
        &self,
        name: &str,
        amount: Amount,
        number: impl Fn(&Run) -> Option<f64>,
    ) -> Option<Row> {
        let number = |run: &Run| number(run).filter(|number| number.is_finite());
        let numbers: Vec<Option<f64>> = self.runs.iter().map(number).collect();
        let first = numbers.first().copied().flatten();
        let cells = numbers.iter().enumerate().map(|(index, number)| {
            let number = (*number)?;
            let first = first.filter(|_| index > 0);
            let change = first.and_then(|first| amount.change(first, number));
            Some((amount.shown(number), change))
        });
        Row::of(name, cells.collect())
    }

    fn about(&self) -> Vec<Row> {
        let model = |run: &Run| {
            let said = run.results.as_ref().and_then(|it| text(&it.model));
            said.or_else(|| run.config.get("model").map(str::to_owned))
        };
        // A run that failed has no report: its data are compared by their names in the configuration, as are the others'.
        let dataset = |run: &Run| text(&run.results.as_ref()?.dataset);
        let all_told = self.runs.iter().all(|run| dataset(run).is_some());
        let noted = |run: &Run| {
            let mut files: Vec<&str> = run.notes.iter().map(|note| &*note.file).collect();
            files.dedup();
            (!files.is_empty()).then(|| files.join(", "))
        };
        let rows = [
            self.words("state", |run| Some(run.state())),
            self.words("model", model),
            self.words("data", |run| match all_told {
                true => dataset(run),
                false => run.config.get("data.name").map(str::to_owned),
            }),
            self.words("ranks", |run| {
                run.ranks_at_start().map(|ranks| ranks.to_string())
            }),
            self.words("version", |run| {
                text(&run.results.as_ref()?.versions.everburn)
            }),
            self.words("missing or damaged", noted),
        ];
        // What is the same in all runs needs no row, but for how they ended.
        let differs =
            |row: &Row| row.name == "state" || row.cells.iter().any(|cell| *cell != row.cells[0]);
        rows.into_iter().flatten().filter(differs).collect()
    }

    fn settings(&self) -> Vec<Row> {
        let mut keys: Vec<&str> = Vec::new();
        for (key, _) in self.runs.iter().flat_map(|run| run.config.iter()) {
            // The name of the model is among the first rows.
            if key != "model" && !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        let known: Vec<_> = self
            .runs
            .iter()
            .filter(|run| !run.config.is_empty())
            .collect();
        let differs = |key: &&str| {
            known
                .iter()
                .any(|run| run.config.get(key) != known[0].config.get(key))
        };
        let row = |key: &str| self.words(key, |run| run.config.get(key).map(str::to_owned));
        keys.into_iter().filter(differs).filter_map(row).collect()
    }

    fn results(&self) -> Vec<Row> {
        use Amount::{Count, Loss, Share};
        let tested = self.runs.iter().filter_map(|run| run.results.as_ref());
        let names: BTreeSet<String> = tested.flat_map(named).map(|named| named.0).collect();
        let of = |run: &Run, wanted: &str| {
            let mut named = named(run.results.as_ref()?);
            Some(named.find(|(name, _)| name == wanted)?.1)
        };
        let named = names.iter().map(|name| {
            let row = format!("test {name}");
            self.numbers(&row, Loss, |run| of(run, name))
        });
        let rows = [
            self.numbers("test accuracy", Share, |run| {
                run.results.as_ref()?.test_accuracy
            }),
            self.numbers("test loss", Loss, |run| run.results.as_ref()?.test_loss),
            self.numbers("best validation loss", Loss, |run| {
                Some(run.metrics.loss.validation.lowest()?.y)
            }),
            self.numbers("  after step", Count, |run| {
                Some(run.metrics.loss.validation.lowest()?.x as f64)
            }),
            self.numbers("last validation loss", Loss, |run| {
                Some(run.metrics.loss.validation.last()?.y)
            }),
            self.numbers("best validation accuracy", Share, |run| {
                Some(run.metrics.accuracy.validation.highest()?.y)
            }),
            self.numbers("last training loss", Loss, |run| {
                let loss = &run.metrics.loss;
                Some(loss.epoch.last().or(loss.step.last())?.y)
            }),
        ];
        rows.into_iter().chain(named).flatten().collect()
    }

    fn costs(&self) -> Vec<Row> {
        use Amount::{Bytes, Count, Seconds};
        // Of what `report.json` does not say, `metrics.jsonl` says the most; it is without what it did not come to.
        let positive = |number: f64| (number > 0.0).then_some(number);
        let train = |run: &Run| {
            let said = run.results.as_ref();
            let said = said.and_then(|it| measured(it.train_seconds));
            said.or(positive(run.metrics.train_seconds))
        };
        let sent = |run: &Run| {
            let said = run.results.as_ref();
            let said = said.and_then(|it| of_steps(it, it.gradient_bytes));
            said.map(|bytes| bytes as f64)
                .or(positive(run.metrics.total_gradient_bytes))
        };
        let steps = |run: &Run| {
            let said = run.results.as_ref().and_then(|it| count(it.steps));
            positive(said.unwrap_or(run.metrics.last_step) as f64)
        };
        // Times and bytes are of the steps since the newest resume, steps of the whole run.
        let made = |run: &Run| {
            let said = run.results.as_ref();
            let said = said.and_then(|it| of_steps(it, it.steps_since_resume));
            said.map_or_else(|| steps(run), |made| positive(made as f64))
        };
        let peak = |run: &Run| {
            let said = run.results.as_ref().and_then(|it| it.peak_memory);
            said.map(|bytes| bytes as f64)
                .or(run.metrics.peak_memory.highest().map(|high| high.y))
        };
        let rows = [
            self.numbers("samples/s", Count, |run| {
                measured(run.results.as_ref()?.samples_per_second)
            }),
            self.numbers("steps", Count, steps),
            self.words("times and memory since step", |run| {
                let resumed = run.results.as_ref()?.resumed_after_step();
                resumed.map(|step| units::count(step as u64))
            }),
            self.numbers("time", Seconds, |run| {
                measured(run.results.as_ref()?.seconds)
            }),
            self.numbers("time in training steps", Seconds, train),
            self.numbers("  per step", Seconds, |run| Some(train(run)? / made(run)?)),
            self.numbers("waiting for gradients", Seconds, |run| {
                let report = run.results.as_ref()?;
                of_steps(report, report.exposed_seconds)
            }),
            self.numbers("gradients of rank 0", Bytes, sent),
            self.numbers("  per step", Bytes, |run| Some(sent(run)? / made(run)?)),
            self.numbers("peak memory per rank", Bytes, peak),
        ];
        rows.into_iter().flatten().collect()
    }

    fn events(&self) -> Vec<Row> {
        let kinds = [
            ("ranks lost", EventKind::Loss),
            ("restarts", EventKind::Restart),
            ("stalls", EventKind::Stall),
            ("divergences", EventKind::Divergence),
            ("failures", EventKind::Failure),
            ("checkpoints not written", EventKind::CheckpointFailed),
            ("resumes", EventKind::Resume),
        ];
        let happened = kinds
            .into_iter()
            .filter(|(_, kind)| self.runs.iter().any(|run| run.events.count(*kind) > 0));
        let row = |(name, kind)| self.words(name, |run| Some(units::count(run.events.count(kind))));
        happened.filter_map(row).collect()
    }
}

/// By how much `value` is more than `first`, as `+3.1 %`; nothing where that says nothing, or where there is no more
/// of it.
fn change(first: f64, value: f64) -> Option<String> {
    let change = 100.0 * (value / first - 1.0);
    if !change.is_finite() || first <= 0.0 {
        return None;
    }
    match change.abs() {
        ..0.05 => None,
        ..1000.0 => Some(format!("{change:+.1} %")),
        _ => Some(format!("×{}", units::significant(value / first, 3))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_where_it_says_something() {
        assert_eq!(change(2.0, 3.0).unwrap(), "+50.0 %");
        assert_eq!(change(1e-3, 3e1).unwrap(), "×30000");
        assert_eq!(change(2.0, 2.0001), None);
        assert_eq!(change(0.0, 3.0), None);
        assert_eq!(change(2.0, f64::NAN), None);
    }
}
