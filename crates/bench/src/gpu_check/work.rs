//! Does the tasks of a check, one process after the other, and fills their rows.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::GpuCheckArguments;
use super::child::{self, Ended};
use super::losses::{self, furthest};
use super::models::{CheckedModel, SEED};
use super::nccl_cost::ExchangeCost;
use super::numbers::Numbers;
use super::parts::{Plant, PrintedLosses};
use super::peers;
use super::plan::{self, Task, Work};
use super::record::{Record, SideThroughput, State};
use super::replay::Replayed;
use super::throughput::{Benchmarked, Rate};

/// What cannot be done in less is not begun.
const LEAST: Duration = Duration::from_secs(1);

/// A check on its way.
pub(super) struct Check<'a> {
    pub(super) arguments: &'a GpuCheckArguments,
    pub(super) python: Option<&'a str>,
    /// This program: it does the parts, too.
    pub(super) program: PathBuf,
    pub(super) budget: Duration,
    /// NCCL's file, where it is not found by itself.
    pub(super) nccl: Option<PathBuf>,
    /// What the training on one rank has found, with which those on several are compared.
    pub(super) alone: OnceCell<Vec<f64>>,
}

/// What a row comes to: the number, or why there is none; and a note.
type CheckResult = Result<(f64, String), String>;

impl Check<'_> {
    /// Does `task`, or says why not. Whatever is wrong with it is in its rows.
    pub(super) fn run(&self, task: &Task, record: &mut Record) -> std::io::Result<()> {
        let names = task.work.checks();
        if let Some(why) = &task.skipped {
            for (name, _) in &names {
                let row = record.check(name);
                row.state = State::Skipped;
                row.note.clone_from(why);
                say!("{name}: SKIPPED: {why}");
            }
            return record.write();
        }
        let left = self.budget.saturating_sub(record.elapsed());
        let limit = task.limit.min(left.saturating_sub(task.leaves));
        if limit < LEAST {
            for (name, _) in &names {
                record.check(name).note = "time was up".to_string();
            }
            return record.write();
        }
        let start = Instant::now();
        let spent = || Spent {
            time: start.elapsed(),
            limit,
            full: task.limit,
        };
        match &task.work {
            Work::Numbers(model) => {
                let [forward, backward] = self.numbers(*model, limit, record)?;
                fill(record, &names[0].0, forward, spent())?;
                fill(record, &names[1].0, backward, spent())
            }
            Work::Losses(model) => {
                let found = self.losses(*model, limit, record)?;
                fill(record, &names[0].0, found, spent())
            }
            Work::Ranks { name, flags } => {
                let found = self.ranks(flags, limit, record)?;
                fill(record, name, found, spent())
            }
            Work::NcclCost => {
                let found = self.nccl_cost(limit, record)?;
                fill(record, &names[0].0, found, spent())?;
                let row = record.check(&names[0].0);
                if row.value.is_some() && row.state == State::Failed {
                    // Slow, not wrong.
                    row.state = State::Missed;
                }
                record.write()
            }
            Work::Replay => {
                let found = self.replay(limit, record)?;
                fill(record, &names[0].0, found, spent())?;
                let row = record.check(&names[0].0);
                if row.state == State::Failed {
                    // No training uses it yet.
                    row.state = State::Open;
                }
                record.write()
            }
            Work::Throughput { name, what, batch } => {
                let measured = self.throughput(*what, *batch, limit, record)?;
                fill_throughput(record, name, measured, &spent())
            }
            Work::Peers => match self.python {
                Some(python) => peers::run(python, self.arguments, limit, record),
                None => Ok(()),
            },
        }
    }

    /// A process of this program, which finds what this one has found, and keeps its kernels for the next.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(nccl) = &self.nccl {
            command.env(everburn::nccl::NCCL_VARIABLE, nccl);
        }
        let kept = ["EVERBURN_KERNEL_CACHE", "XDG_CACHE_HOME", "HOME"];
        if kept.iter().all(|name| std::env::var_os(name).is_none()) {
            command.env(kept[0], std::env::temp_dir().join("everburn-kernels"));
        }
        command
    }

    /// A process of this program that does a part.
    fn part(&self, part: &str, device: &str) -> Command {
        let mut command = self.command();
        command.args(["gpu-check", "--part", part, "--device", device]);
        if self.arguments.quick {
            command.arg("--quick");
        }
        command
    }

    /// Has the part that is checked do something wrong, if that is asked for.
    fn plant(&self, command: &mut Command) {
        let name = match self.arguments.part.plant {
            Some(Plant::Forward) => "forward",
            Some(Plant::Backward) => "backward",
            Some(Plant::Losses) => "losses",
            Some(Plant::Crash) => "crash",
            Some(Plant::Hang) => "hang",
            None => return,
        };
        command.args(["--plant", name]);
    }

    fn numbers(
        &self,
        model: CheckedModel,
        limit: Duration,
        record: &Record,
    ) -> std::io::Result<[CheckResult; 2]> {
        let mut command = self.part("numbers", &self.arguments.device);
        command.args(["--model", model.name()]);
        self.plant(&mut command);
        let ended = child::run(command, limit, &record.log(), |_| {})?;
        Ok(match result::<Numbers>(&ended) {
            Err(why) => [Err(why.clone()), Err(why)],
            Ok(found) => [
                Ok((found.forward, String::new())),
                Ok((found.backward, format!("furthest: {}", found.parameter))),
            ],
        })
    }

    /// The device and the processor train at the same time: they do not get in each other's way.
    fn losses(
        &self,
        model: CheckedModel,
        limit: Duration,
        record: &Record,
    ) -> std::io::Result<CheckResult> {
        let steps = plan::steps(self.arguments.quick).to_string();
        let train = |device: &str| {
            let mut command = self.part("losses", device);
            command.args(["--model", model.name(), "--steps", &steps]);
            command
        };
        let mut there = train(&self.arguments.device);
        self.plant(&mut there);
        let here = train("flex");
        let log = record.log();
        let (here, there) = std::thread::scope(|scope| {
            let here = scope.spawn(|| child::run(here, limit, &log, |_| {}));
            let there = child::run(there, limit, &log, |_| {});
            (here.join(), there)
        });
        let here = here.map_err(|_| std::io::Error::other("the thread that waits has panicked"))?;
        let here = result::<PrintedLosses>(&here?);
        let there = result::<PrintedLosses>(&there?);
        let here = here.map_err(|why| format!("on the CPU: {why}"));
        Ok(here.and_then(|here| compare(&here.losses, &there?.losses)))
    }

    /// A training with these flags against the same without.
    fn ranks(
        &self,
        flags: &[String],
        limit: Duration,
        record: &Record,
    ) -> std::io::Result<CheckResult> {
        let folder =
            std::env::temp_dir().join(format!("everburn-gpu-check-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let found = self.ranks_in(&folder, flags, limit, record);
        // What is left in a temporary folder harms nobody.
        let _ = std::fs::remove_dir_all(&folder);
        found
    }

    fn ranks_in(
        &self,
        folder: &Path,
        flags: &[String],
        limit: Duration,
        record: &Record,
    ) -> std::io::Result<CheckResult> {
        let start = Instant::now();
        let train = |name: &str, flags: &[String]| -> std::io::Result<Result<Vec<f64>, String>> {
            let run = folder.join(name);
            let left = limit.saturating_sub(start.elapsed());
            let ended = child::run(self.training(&run, flags), left, &record.log(), |_| {})?;
            if let Some(why) = ended.failure() {
                return Ok(Err(format!("{name}: {why}")));
            }
            Ok(losses::read(&run).map_err(|error| format!("{name}: {error}")))
        };
        let alone = match self.alone.get() {
            Some(known) => Ok(known.clone()),
            None => {
                let flags = ["--ranks", "1", "--devices", &self.arguments.device];
                let found = train("one-rank", &flags.map(str::to_string))?;
                // Where its time was up, the next task tries again.
                if let Ok(losses) = &found {
                    let _ = self.alone.set(losses.clone());
                }
                found
            }
        };
        let alone = match alone {
            Ok(losses) => losses,
            Err(why) => return Ok(Err(why)),
        };
        Ok(match train("ranks", flags)? {
            Ok(losses) => compare(&alone, &losses),
            Err(why) => Err(why),
        })
    }

    fn training(&self, run: &Path, flags: &[String]) -> Command {
        let quick = self.arguments.quick;
        let steps = if quick { "4" } else { "20" };
        let mut command = self.command();
        command
            .args(["train", "mnist", "--no-dashboard", "--log-every", "1"])
            .args(["--data", "synthetic", "--train-samples", "1400"])
            .args(["--validation-samples", "40", "--test-samples", "40"])
            .args(["--steps", steps, "--seed", &SEED.to_string()])
            .arg("--run-dir")
            .arg(run)
            .args(flags);
        command
    }

    /// By how much a step is slower whose gradients go through NCCL, though nobody else has any.
    fn nccl_cost(&self, limit: Duration, record: &Record) -> std::io::Result<CheckResult> {
        let command = self.part("nccl-cost", &self.arguments.device);
        let ended = child::run(command, limit, &record.log(), |_| {})?;
        Ok(result::<ExchangeCost>(&ended).map(|found| {
            let note = format!(
                "gpt2-124m, {:.1} ms per step without; the median of turns of {} steps",
                found.step_ms, found.steps
            );
            (found.share, note)
        }))
    }

    /// How far a replayed pass is from a launched one, with the numbers that were recorded and with others.
    fn replay(&self, limit: Duration, record: &Record) -> std::io::Result<CheckResult> {
        let command = self.part("replay", &self.arguments.device);
        let ended = child::run(command, limit, &record.log(), |_| {})?;
        Ok(result::<Replayed>(&ended).map(|found| {
            let note = format!(
                "{:.0} us launched, {:.0} us replayed; with other images {:.0e} apart",
                found.launched_us, found.replayed_us, found.apart_with_others
            );
            (found.apart.max(found.apart_with_others), note)
        }))
    }

    fn throughput(
        &self,
        what: Benchmarked,
        batch: usize,
        limit: Duration,
        record: &Record,
    ) -> std::io::Result<SideThroughput> {
        // As small as it takes to see that everything is wired.
        let batch = if self.arguments.quick {
            batch.min(8)
        } else {
            batch
        };
        let mut command = self.part("throughput", &self.arguments.device);
        command.args(["--benchmark", what.name(), "--batch", &batch.to_string()]);
        let ended = child::run(command, limit, &record.log(), |_| {})?;
        Ok(match result::<Rate>(&ended) {
            Err(why) => SideThroughput::without(State::Failed, why),
            Ok(rate) if rate.per_second.is_finite() && rate.per_second > 0.0 => SideThroughput {
                state: State::Passed,
                per_second: Some(rate.per_second),
                note: String::new(),
            },
            Ok(rate) => {
                SideThroughput::without(State::Failed, format!("{} a second", rate.per_second))
            }
        })
    }
}

/// The result that a part has printed, or why there is none.
fn result<T: serde::de::DeserializeOwned>(ended: &Ended) -> Result<T, String> {
    if let Some(why) = ended.failure() {
        return Err(why);
    }
    // Other lines are what the training says.
    let found = ended.lines.iter().rev().find(|line| line.starts_with('{'));
    let found = found.ok_or("it has printed no result")?;
    serde_json::from_str(found).map_err(|error| format!("its result cannot be read: {error}"))
}

fn compare(one: &[f64], other: &[f64]) -> CheckResult {
    match furthest(one, other) {
        Some((apart, step)) => Ok((apart, format!("furthest: step {step} of {}", one.len()))),
        None => Err(format!("{} losses and {} losses", one.len(), other.len())),
    }
}

/// What a task was given and took.
#[derive(Clone, Copy)]
struct Spent {
    time: Duration,
    limit: Duration,
    /// What it would have been given at any other time.
    full: Duration,
}

impl Spent {
    /// Whether it was given less than it may take, because the whole check comes to its end, and took all of it.
    fn was_cut_short(self) -> bool {
        self.limit < self.full && self.time >= self.limit
    }
}

/// Writes what a throughput has come to into its row.
fn fill_throughput(
    record: &mut Record,
    name: &str,
    measured: SideThroughput,
    spent: &Spent,
) -> std::io::Result<()> {
    // It may still have been compiling: what is slow is not wrong.
    let cut = measured.state == State::Failed && spent.time >= spent.limit;
    let measured = match cut {
        true => {
            let seconds = spent.limit.as_secs_f64();
            let note = format!("no result after {seconds:.0} s, with the compilation of kernels");
            SideThroughput::without(State::NotReached, note)
        }
        false => measured,
    };
    let rate = measured.per_second.map(|rate| format!("{rate:.0}/s"));
    say!("{name}: {}", rate.unwrap_or_else(|| measured.note.clone()));
    if let Some(row) = record.benchmark(name) {
        row.everburn = measured;
    }
    record.write()
}

/// Fills the row of this name, and writes what there is.
fn fill(record: &mut Record, name: &str, found: CheckResult, spent: Spent) -> std::io::Result<()> {
    let row = record.check(name);
    row.seconds = spent.time.as_secs_f64();
    match found {
        // There may be nothing wrong with it but that it came late.
        Err(why) if spent.was_cut_short() => {
            row.state = State::NotReached;
            row.note = why;
        }
        Err(why) => {
            row.state = State::Failed;
            row.note = why;
        }
        Ok((value, note)) => {
            row.value = Some(value);
            row.note = note;
            // What is not a number is not below the limit either.
            let passed = value <= row.limit;
            row.state = if passed { State::Passed } else { State::Failed };
        }
    }
    say!(
        "{name}: {} {} {}",
        row.state.word(),
        row.value
            .map_or_else(String::new, |value| format!("{value:.2e}")),
        row.note
    );
    record.write()
}
