//! Does the tasks of a check, each in processes of its own or of its model, and fills their rows.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use everburn::launch::Children;
use everburn_record::sync::lock;
use serde::de::DeserializeOwned;

use super::GpuCheckArguments;
use super::apart;
use super::order::{
    Benchmarked, CommunicationCost, Part, Plant, Rate, Replayed, SEED, rounds_factors,
};
use super::peers;
use super::plan::{self, Task, Work};
use super::record::{Record, SideThroughput, State};
use super::rows::{CheckResult, Spent, Value, compare, fill, fill_throughput, result};

/// What cannot be done in less is not begun.
pub(super) const LEAST: Duration = Duration::from_secs(1);

/// A check on its way.
pub(super) struct Check<'a> {
    /// Whether a signal has come.
    pub(super) children: Children,
    pub(super) arguments: &'a GpuCheckArguments,
    pub(super) python: Option<&'a str>,
    /// This program: it does the parts, too.
    pub(super) program: PathBuf,
    pub(super) budget: Duration,
    /// NCCL's file, where it is not found by itself.
    pub(super) nccl: Option<PathBuf>,
    /// What the training on one rank has found, with which those on several are compared.
    pub(super) alone: Mutex<Option<Vec<f64>>>,
    /// What was found so far.
    pub(super) record: Mutex<Record>,
    /// Where all that processes say goes.
    pub(super) log: PathBuf,
}

/// The memory of a device that has room for the measured trainings and all else at once, in bytes.
const TO_PREPARE: u64 = 64 << 30;

/// The memory that a task takes that measures no time, in bytes.
const OF_A_TASK: u64 = 2 << 30;

/// How far apart the losses of two processes may be on a device that rounds factors. Each tunes its kernels for itself, and
/// those of one round where the other's do not: 1.3e-3 after 20 steps was seen between two runs of the same bits otherwise.
const TUNED_APART: f64 = 1e-2;

/// The training with which those on several ranks are compared.
const ONE_RANK: &str = "one rank";

impl Check<'_> {
    /// Does `tasks`: what is right or wrong side by side, where this machine has the cores, since most of its time goes into
    /// the compilation of kernels, which takes one core a process; what is fast or slow by itself, after its kernels were
    /// compiled beside the others.
    pub(super) fn run_all(&self, tasks: &[Task]) -> std::io::Result<()> {
        let workers = self.workers();
        let jobs = plan::jobs(tasks, workers);
        if workers > 1 {
            let prepares = self.free_memory().is_some_and(|free| free >= TO_PREPARE);
            let now = jobs.iter().filter(|job| prepares || !is_timed(job));
            let queue = Mutex::new(now);
            std::thread::scope(|scope| {
                let work = || -> std::io::Result<()> {
                    loop {
                        let next = lock(&queue).next();
                        let Some(job) = next else {
                            return Ok(());
                        };
                        match is_timed(job) {
                            true => self.prepare(job[0])?,
                            false => self.run(job)?,
                        }
                    }
                };
                let working: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
                working.into_iter().try_for_each(join)
            })?;
        }
        let mut left = jobs.iter().filter(|job| workers == 1 || is_timed(job));
        left.try_for_each(|job| self.run(job))
    }

    /// How many tasks are done at a time.
    fn workers(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let fit = self.free_memory().map_or(usize::MAX, |free| {
            usize::try_from(free / OF_A_TASK).unwrap_or(usize::MAX)
        });
        // One drives a GPU and measures; a software device has nobody to leave a core to.
        let spared = usize::from(!self.arguments.is_software());
        cores.saturating_sub(spared).min(fit).max(1)
    }

    fn free_memory(&self) -> Option<u64> {
        let devices = std::slice::from_ref(&self.arguments.device);
        everburn::devices::free_memory(devices, 0, 1)
    }

    /// How long `tasks` together may take now, and how long at any other time.
    pub(super) fn limit(&self, tasks: &[&Task]) -> (Duration, Duration) {
        let full = tasks.iter().map(|task| task.limit).sum::<Duration>();
        let leaves = tasks.iter().map(|task| task.leaves).max();
        let left = self.budget.saturating_sub(lock(&self.record).elapsed());
        let left = left.saturating_sub(leaves.unwrap_or_default());
        (full.min(left), full)
    }

    /// Notes for the rows of `tasks` that there is no time left.
    pub(super) fn leave_unreached(&self, tasks: &[&Task]) -> std::io::Result<()> {
        let mut record = lock(&self.record);
        for (name, _) in tasks.iter().flat_map(|task| task.work.checks()) {
            record.check(&name).note = "time was up".to_string();
        }
        record.write()
    }

    /// Has the kernels of a task compiled and tuned, whose time is measured later.
    fn prepare(&self, task: &Task) -> std::io::Result<()> {
        let part = match &task.work {
            _ if task.skipped.is_some() => return Ok(()),
            Work::NcclCost => Part::NcclCost,
            Work::Throughput { what, batch, .. } => self.throughput_part(*what, *batch),
            _ => return Ok(()),
        };
        let command = self.parts(vec![part], &self.arguments.device, None);
        let limit = self.limit(&[task]).0.max(LEAST);
        // Whatever is wrong with it is found again.
        self.run_part(command, limit).map(drop)
    }

    /// Does the tasks of a job, or says why not. Whatever is wrong with them is in their rows.
    fn run(&self, job: &[&Task]) -> std::io::Result<()> {
        let task = job[0];
        let names = task.work.checks();
        if let Some(why) = &task.skipped {
            // Its rows have said so from the start.
            for (name, _) in &names {
                say!("{name}: SKIPPED: {why}");
            }
            return Ok(());
        }
        let (limit, full) = self.limit(job);
        if limit < LEAST {
            return self.leave_unreached(job);
        }
        let start = Instant::now();
        let spent = || Spent {
            time: start.elapsed(),
            limit,
            full,
        };
        let fill = |name: &str, found: CheckResult, otherwise: State| {
            fill(&mut lock(&self.record), name, found, spent(), otherwise)
        };
        match &task.work {
            Work::Numbers(_) | Work::Losses(_) => self.compare_model(job),
            Work::Ranks { name, flags } => {
                fill(name, self.ranks(name, flags, limit)?, State::Failed)
            }
            // Slow, not wrong.
            Work::NcclCost => fill(&names[0].0, self.nccl_cost(limit)?, State::Missed),
            // No training uses it yet.
            Work::Replay => fill(&names[0].0, self.replay(limit)?, State::Open),
            Work::Throughput { name, what, batch } => {
                let measured = self.throughput(*what, *batch, limit)?;
                fill_throughput(&mut lock(&self.record), name, measured, &spent())
            }
            Work::Peers => match self.python {
                Some(python) => {
                    let record = &mut lock(&self.record);
                    peers::run(&self.children, python, self.arguments, limit, record)
                }
                None => Ok(()),
            },
        }
    }

    /// What a part on the device has found, or why it has found nothing.
    fn found<T: DeserializeOwned>(
        &self,
        part: Part,
        limit: Duration,
    ) -> std::io::Result<Result<T, String>> {
        let command = self.parts(vec![part], &self.arguments.device, self.arguments.plant);
        Ok(result(&self.run_part(command, limit)?))
    }

    /// A training with these flags against the same without.
    fn ranks(&self, name: &str, flags: &[String], limit: Duration) -> std::io::Result<CheckResult> {
        let (alone, found) = match self.arguments.is_software() {
            // Both have the same kernels, in one folder: the second finds what the first has compiled.
            true => {
                let start = Instant::now();
                let alone = self.on_one_rank(limit);
                let left = limit.saturating_sub(start.elapsed()).max(LEAST);
                (alone, self.train(name, flags, left))
            }
            false => std::thread::scope(|scope| {
                let alone = scope.spawn(|| self.on_one_rank(limit));
                let found = self.train(name, flags, limit);
                (join(alone), found)
            }),
        };
        let alone = alone?;
        let limit = match rounds_factors(&self.arguments.device) {
            true => TUNED_APART,
            false => 0.0,
        };
        Ok(match (alone, found?) {
            (Ok(alone), Ok(found)) => compare(&alone, &found).map(|found| Value { limit, ..found }),
            (Err(why), _) | (_, Err(why)) => Err(why),
        })
    }

    /// The losses of the training on one rank. Several that need them wait for the first.
    fn on_one_rank(&self, limit: Duration) -> std::io::Result<Result<Vec<f64>, String>> {
        let mut alone = lock(&self.alone);
        if let Some(known) = &*alone {
            return Ok(Ok(known.clone()));
        }
        let flags = plan::flags_of_one_rank(&self.arguments.device);
        let found = self.train(ONE_RANK, &flags, limit)?;
        // Where its time was up, the next task tries again.
        *alone = found.clone().ok();
        Ok(found)
    }

    /// The losses of a training with these flags, or why there are none.
    fn train(
        &self,
        name: &str,
        flags: &[String],
        limit: Duration,
    ) -> std::io::Result<Result<Vec<f64>, String>> {
        let folder = tempfile::tempdir()?;
        let run = folder.path().join("run");
        let steps = if self.arguments.quick { "4" } else { "20" };
        let planted = self.arguments.plant == Some(Plant::Ranks) && name != ONE_RANK;
        let learning_rate = if planted { "0.505" } else { "0.5" };
        let batch = plan::BATCH.to_string();
        let samples = (21 * plan::BATCH).to_string();
        let mut command = self.command("mnist", name);
        command
            .args(["train", "mnist", "--no-dashboard", "--log-every", "1"])
            // Full batches, and none to validate on: each shape has its own kernels.
            .args(["--data", "synthetic", "--train-samples", &samples])
            .args(["--validation-samples", "0", "--batch-size", &batch])
            .args(["--steps", steps, "--seed", &SEED.to_string()])
            // Adam does not see gradients that are all too large by the same factor.
            .args(["--optimizer", "sgd", "--lr-schedule", "constant"])
            .args(["--warmup-steps", "0", "--learning-rate", learning_rate])
            .arg("--run-dir")
            .arg(&run)
            .args(flags);
        let ended = self.run_part(command, limit)?;
        let losses = match ended.failure() {
            Some(why) => Err(why),
            None => apart::read(&run).map_err(|error| error.to_string()),
        };
        Ok(losses.map_err(|why| format!("{name}: {why}")))
    }

    /// By how much a step is slower whose gradients go through NCCL, though nobody else has any.
    fn nccl_cost(&self, limit: Duration) -> std::io::Result<CheckResult> {
        let found = self.found::<CommunicationCost>(Part::NcclCost, limit)?;
        Ok(found.map(|found| {
            let note = format!(
                "gpt2-124m, {:.1} ms per step without; the median of turns of {} steps",
                found.step_ms, found.steps
            );
            Value::new(found.share, note)
        }))
    }

    /// How far a replayed pass is from a launched one, with the numbers that were recorded and with others.
    fn replay(&self, limit: Duration) -> std::io::Result<CheckResult> {
        let found = self.found::<Replayed>(Part::Replay, limit)?;
        Ok(found.map(|found| {
            let note = format!(
                "{:.0} us launched, {:.0} us replayed; with other images {:.0e} apart",
                found.launched_us, found.replayed_us, found.apart_with_others
            );
            Value::new(found.apart.max(found.apart_with_others), note)
        }))
    }

    fn throughput(
        &self,
        what: Benchmarked,
        batch: usize,
        limit: Duration,
    ) -> std::io::Result<SideThroughput> {
        let part = self.throughput_part(what, batch);
        Ok(match self.found::<Rate>(part, limit)? {
            Err(why) => SideThroughput::without(State::Failed, why),
            Ok(rate) if rate.per_second.is_finite() && rate.per_second > 0.0 => {
                SideThroughput::of(rate.per_second)
            }
            Ok(rate) => {
                SideThroughput::without(State::Failed, format!("{} a second", rate.per_second))
            }
        })
    }
}

/// What a thread that runs processes has found.
pub(super) fn join<T>(
    thread: std::thread::ScopedJoinHandle<'_, std::io::Result<T>>,
) -> std::io::Result<T> {
    let panicked = |_| Err(std::io::Error::other("a thread that waits has panicked"));
    thread.join().unwrap_or_else(panicked)
}

/// Whether a job measures time; it is one task then.
fn is_timed(job: &[&Task]) -> bool {
    job[0].work.is_timed()
}
