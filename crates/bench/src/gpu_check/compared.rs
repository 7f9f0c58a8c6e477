//! The models that are compared with the CPU, in numbers and in losses.

use std::time::{Duration, Instant};

use everburn_record::sync::lock;

use super::apart::furthest;
use super::child;
use super::order::{CheckedModel, Numbers, Part, rounding};
use super::plan::{self, Task, Work};
use super::record::State;
use super::rows::{CheckResult, Spent, Value, compare, fill, is_answer, read_answer, result};
use super::work::{Check, LEAST, join};

/// How many times as far from the processor's gradients and losses a device may be, as the processor is itself when weights
/// are rounded: the furthest of a few is seldom the furthest of all.
const TIMES_SPREAD: f64 = 2.0;

/// The losses of the CPU and those from rounded weights, or why there are none.
type LossesOnCpu = Result<[Vec<f64>; 2], String>;

impl Check<'_> {
    /// Does the tasks of one model, numbers before losses, by one process on the device. If it ends early, the tasks that it
    /// has not come to get another one.
    pub(super) fn compare_model(&self, job: &[&Task]) -> std::io::Result<()> {
        let mut left = job;
        while !left.is_empty() {
            let done = self.compare_by_one_process(left)?;
            left = &left[done..];
        }
        Ok(())
    }

    /// Begins `tasks`, and returns how many have their rows: all, unless the process has ended early.
    fn compare_by_one_process(&self, tasks: &[&Task]) -> std::io::Result<usize> {
        let (limit, full) = self.limit(tasks);
        let parts = tasks.iter().filter_map(|task| self.compared_part(task));
        let parts: Vec<Part> = parts.collect();
        if parts.is_empty() || limit < LEAST {
            self.leave_unreached(tasks)?;
            return Ok(tasks.len());
        }
        let (device, plant) = (&self.arguments.device, self.arguments.plant);
        let there = self.parts(parts, device, plant);
        let trained = tasks.iter().find_map(|task| match task.work {
            Work::Losses(model) => Some(model),
            _ => None,
        });
        let start = Instant::now();
        let spent = |since: Duration| Spent {
            time: start.elapsed().saturating_sub(since),
            limit: limit.saturating_sub(since),
            full: full.saturating_sub(since),
        };
        // The device and the CPU train at the same time: they do not get in each other's way.
        std::thread::scope(|scope| {
            let here = trained.map(|model| scope.spawn(move || self.losses_on_cpu(model, limit)));
            let (mut done, mut since) = (0, Duration::ZERO);
            let mut filled = Ok(());
            let each = |line: &str| {
                // The last part counts if the process ends well.
                if is_answer(line) && done + 1 < tasks.len() && filled.is_ok() {
                    filled = self.fill_numbers(tasks[done], read_answer(line), spent(since));
                    (done, since) = (done + 1, start.elapsed());
                }
            };
            let ended = child::run(&self.children, there, limit, &self.log, each)?;
            filled?;
            let task = tasks[done];
            match (&task.work, here) {
                (Work::Losses(_), Some(here)) => {
                    let found = compare_losses(join(here)?, result(&ended));
                    let names = task.work.checks();
                    let mut record = lock(&self.record);
                    fill(&mut record, &names[0].0, found, spent(since), State::Failed)?;
                }
                _ => self.fill_numbers(task, result(&ended), spent(since))?,
            }
            Ok(done + 1)
        })
    }

    /// What the device does for a task of a model.
    fn compared_part(&self, task: &Task) -> Option<Part> {
        match task.work {
            Work::Numbers(model) => Some(Part::Numbers(model)),
            Work::Losses(model) => Some(self.losses_part(model, None)),
            _ => None,
        }
    }

    fn losses_part(&self, model: CheckedModel, rounding: Option<f64>) -> Part {
        Part::Losses {
            model,
            steps: plan::steps(self.arguments),
            rounding,
        }
    }

    fn fill_numbers(
        &self,
        task: &Task,
        found: Result<Numbers, String>,
        spent: Spent,
    ) -> std::io::Result<()> {
        let passes = match found {
            Err(why) => [Err(why.clone()), Err(why)],
            Ok(found) => {
                let note = format!("furthest: {}", found.parameter);
                let backward = Value {
                    limit: TIMES_SPREAD * found.spread,
                    ..Value::new(found.backward, note)
                };
                [Ok(Value::new(found.forward, String::new())), Ok(backward)]
            }
        };
        let mut record = lock(&self.record);
        for ((name, _), found) in task.work.checks().iter().zip(passes) {
            fill(&mut record, name, found, spent, State::Failed)?;
        }
        Ok(())
    }

    fn losses_on_cpu(&self, model: CheckedModel, limit: Duration) -> std::io::Result<LossesOnCpu> {
        let train = |rounding: Option<f64>| {
            let command = self.parts(vec![self.losses_part(model, rounding)], "flex", None);
            self.run_part(command, limit)
        };
        let (exact, rounded) = std::thread::scope(|scope| {
            let exact = scope.spawn(|| train(None));
            let rounded = train(Some(rounding(&self.arguments.device)));
            (join(exact), rounded)
        });
        Ok(match (result(&exact?), result(&rounded?)) {
            (Ok(exact), Ok(rounded)) => Ok([exact, rounded]),
            (Err(why), _) | (_, Err(why)) => Err(format!("on the CPU: {why}")),
        })
    }
}

/// The device's losses may be [`TIMES_SPREAD`] times as far from the CPU's as these are from those of rounded weights.
fn compare_losses(here: LossesOnCpu, there: Result<Vec<f64>, String>) -> CheckResult {
    let [exact, rounded] = here?;
    let spread = furthest(&exact, &rounded).map_or(0.0, |(spread, _)| spread);
    let found = compare(&exact, &there?)?;
    Ok(Value {
        limit: TIMES_SPREAD * spread,
        ..found
    })
}
