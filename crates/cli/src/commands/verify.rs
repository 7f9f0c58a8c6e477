//! `everburn verify`: trains the same steps on several numbers of ranks, and compares all that was
//! learnt, step by step, to the bit.

pub(super) mod compare;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use everburn_launch::{Children, EndedChild};
use everburn_record::units::counted;
use everburn_record::{TrainingReport, units};
use serde_json::Value;

use self::compare::compare;
use super::{ToolError, failed, run_to_end, task_or, this_program};
use crate::elastic::ElasticRange;

/// Train the same on several numbers of ranks and compare, as in `verify MODEL --ranks 1,2,4`.
///
/// Trains the same steps of a model on several numbers of ranks, with the same number of logical shards, and compares
/// parameters, buffers, optimizer state and loss after each step, bit by bit.
///
/// If runs differ, it names the first step and tensor and exits with 1. At the end it prints the cost of virtual
/// ranks, compared with a run without.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// The model to train [default: the program's model, if it has only one].
    model: Option<String>,

    /// The numbers of ranks.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,3,4",
        value_name = "RANKS"
    )]
    ranks: Vec<usize>,

    /// The number of logical shards per global batch [default: the largest number of ranks].
    #[arg(long, value_name = "V")]
    virtual_ranks: Option<usize>,

    /// The number of steps.
    #[arg(long, default_value_t = 50)]
    steps: usize,

    /// The transports: auto, shm, tcp.
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    transport: Vec<String>,

    /// Also kill all ranks soon after this step, and resume from its checkpoint on the next number of ranks.
    #[arg(long, value_name = "STEP")]
    resume_after: Option<usize>,

    /// Also train on MAX ranks while these faults happen, as in kill=2@step:100.
    #[arg(long, requires = "elastic", value_name = "FAULTS")]
    chaos: Option<String>,

    /// The fewest and the most ranks of the training with faults.
    #[arg(long, requires = "chaos", value_name = "MIN:MAX")]
    elastic: Option<ElasticRange>,

    /// The longest time of a training in seconds; a longer one counts as a hang.
    #[arg(long, default_value_t = 3600)]
    run_timeout: u64,

    /// Do not measure the cost of logical shards.
    #[arg(long)]
    no_cost: bool,

    /// More flags of `train`, after `--`, as in `-- --batch-size 128 --set MODEL.width=64`.
    #[arg(last = true, value_name = "FLAGS")]
    train: Vec<OsString>,
}

/// How many steps after the checkpoint all ranks are lost: time for it to be written.
const STEPS_TO_LOSE: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    ranks: usize,
    transport: String,
    way: Way,
}

/// What happens to a training.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    Undisturbed,
    /// All ranks are lost, and this many others continue from the checkpoint of this step.
    Resumed {
        after: usize,
        on: usize,
    },
    /// Ranks are lost while it trains.
    Disturbed {
        chaos: String,
        elastic: ElasticRange,
    },
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", counted(self.ranks, "rank"), self.transport)?;
        match &self.way {
            Way::Undisturbed => Ok(()),
            Way::Resumed { after, on } => write!(f, ", from step {after} on {on}"),
            Way::Disturbed { chaos, elastic } => write!(f, ", {chaos}, elastic {elastic}"),
        }
    }
}

impl VerifyArguments {
    fn check(&self) -> Result<usize, String> {
        let most = self.ranks.iter().copied().max().unwrap_or(0);
        if self.ranks.contains(&0) || most == 0 {
            return Err("--ranks are numbers from 1, as in 1,2,4".to_string());
        }
        let virtual_ranks = self.virtual_ranks.unwrap_or(most);
        if virtual_ranks < most {
            return Err(format!(
                "--virtual-ranks {virtual_ranks} cannot be shared out to {}",
                counted(most, "rank")
            ));
        }
        if self.steps == 0 {
            return Err("--steps must be at least 1".to_string());
        }
        if let Some(after) = self.resume_after
            && (after < 5 || lost_at(after) >= self.steps)
        {
            return Err(format!(
                "--resume-after {after} must be 5 or more, and --steps more than {}",
                lost_at(after)
            ));
        }
        if let Some(ElasticRange { max, .. }) = self.elastic
            && max > virtual_ranks
        {
            return Err(format!(
                "--virtual-ranks {virtual_ranks} cannot be shared out to {}",
                counted(max, "rank")
            ));
        }
        Ok(virtual_ranks)
    }

    /// As many epochs as the steps may take, of one step each, unless the epochs are given.
    fn epochs(&self) -> Vec<String> {
        let given = |word: &OsString| {
            let word = word.to_string_lossy();
            word == "--epochs" || word.starts_with("--epochs=")
        };
        match self.train.iter().any(given) {
            true => Vec::new(),
            false => vec!["--epochs".to_string(), self.steps.to_string()],
        }
    }

    /// Transport makes no difference to one rank, which runs once.
    fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for transport in &self.transport {
            for ranks in &self.ranks {
                let run = Run {
                    ranks: *ranks,
                    transport: transport.clone(),
                    way: Way::Undisturbed,
                };
                let alone = |run: &Run| run.ranks == 1;
                if !(alone(&run) && runs.iter().any(alone)) {
                    runs.push(run);
                }
            }
        }
        for transport in &self.transport {
            let transport = transport.clone();
            if let Some(after) = self.resume_after {
                let next = self.ranks.iter().cycle().skip(1);
                let pairs = self.ranks.iter().zip(next);
                let pairs = pairs.filter(|(from, to)| from != to);
                runs.extend(pairs.map(|(from, to)| Run {
                    ranks: *from,
                    transport: transport.clone(),
                    way: Way::Resumed { after, on: *to },
                }));
            }
            if let (Some(chaos), Some(elastic)) = (&self.chaos, self.elastic) {
                runs.push(Run {
                    ranks: elastic.max,
                    transport,
                    way: Way::Disturbed {
                        chaos: chaos.clone(),
                        elastic,
                    },
                });
            }
        }
        runs
    }
}

/// The step at which all ranks are lost that a run with a checkpoint every `after` steps is resumed after:
/// before there is another one.
fn lost_at(after: usize) -> usize {
    after + STEPS_TO_LOSE.min(after - 1)
}

pub(crate) fn run(options: &VerifyArguments) -> Result<ExitCode, ToolError> {
    let virtual_ranks = options.check().map_err(ToolError::Usage)?;
    let model = task_or(options.model.as_deref(), None)?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let trainings = Trainings {
        everburn: this_program()?,
        children: Children::listen()?,
        options,
        model: &model,
        folder: folder.path(),
    };
    let train = |name: &str, run: &Run, flags: &[String]| trainings.train(name, run, flags);
    say!(
        "{model}: {} over {}",
        counted(options.steps, "step"),
        counted(virtual_ranks, "logical shard")
    );
    let over_virtual = ["--virtual-ranks".to_string(), virtual_ranks.to_string()];
    let hashed = [&over_virtual[..], &["--hash-every".into(), "1".into()]].concat();
    let mut first: Option<(Run, Vec<Value>)> = None;
    let mut differences = 0;
    for (number, run) in options.runs().into_iter().enumerate() {
        let path = train(&format!("run-{number}"), &run, &hashed)?;
        let hashes = read_hashes(&path)?;
        let Some((reference, expected)) = &first else {
            let steps = counted(hashes.len(), "step");
            say!("  {run}: {steps}, {}", last_of(&hashes));
            first = Some((run, hashes));
            continue;
        };
        match compare(expected, &hashes) {
            None => say!("  {run}: the same bits, {}", last_of(&hashes)),
            Some(difference) => {
                differences += 1;
                say!("  {run}: DIFFERS from {reference} at {difference}");
            }
        }
    }
    if !options.no_cost {
        let most = options.ranks.iter().copied().max().unwrap_or(1);
        let run = Run {
            ranks: most,
            transport: options.transport[0].clone(),
            way: Way::Undisturbed,
        };
        let ours = speed(&train("virtual", &run, &over_virtual)?)?;
        let free = speed(&train("free", &run, &[])?)?;
        say!(
            "on {run}: {} samples/s with logical shards, {} without: {:.2}x",
            units::rate(ours),
            units::rate(free),
            ours / free
        );
    }
    if differences > 0 {
        say!("{differences} of the trainings differ");
        return Ok(ExitCode::FAILURE);
    }
    say!("all trainings have the same bits");
    Ok(ExitCode::SUCCESS)
}

/// What the trainings of a comparison have in common.
struct Trainings<'a> {
    everburn: PathBuf,
    children: Children,
    options: &'a VerifyArguments,
    model: &'a str,
    folder: &'a Path,
}

impl Trainings<'_> {
    /// Trains into the run directory `name` of the folder, which it returns.
    fn train(&self, name: &str, run: &Run, flags: &[String]) -> Result<PathBuf, ToolError> {
        let Self {
            everburn,
            options,
            model,
            folder,
            children,
        } = self;
        let directory = folder.join(name);
        let called = format!("the training on {run}");
        let end = |command| run_to_end(children, &called, command, options.run_timeout);
        let start = |more: &[String]| {
            let mut command = Command::new(everburn);
            command
                .args(["train", model])
                .args(["--ranks", &run.ranks.to_string()])
                .args(["--transport", &run.transport])
                .args(["--steps", &options.steps.to_string(), "--no-dashboard"])
                .args(options.epochs())
                .arg("--run-dir")
                .arg(&directory)
                .args(flags)
                .args(&options.train)
                .args(more);
            end(command)
        };
        let text = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let result = match &run.way {
            Way::Undisturbed => success(start(&[])?),
            Way::Disturbed { chaos, elastic } => {
                let range = elastic.to_string();
                let ended = start(&text(&["--chaos", chaos, "--elastic", &range]))?;
                success(ended).and_then(|said| match said.contains("chaos: ") {
                    true => Ok(said),
                    false => {
                        Err("none of the faults happened: are there as many steps?".to_string())
                    }
                })
            }
            Way::Resumed { after, on } => {
                let lost = format!("kill=0@step:{}", lost_at(*after));
                let every = format!("{after}steps");
                let ended = start(&text(&["--chaos", &lost, "--checkpoint-every", &every]))?;
                match ended.status.success() {
                    true => Err("it did not lose its ranks".to_string()),
                    false => {
                        let mut command = Command::new(everburn);
                        command
                            .args(["train", "--resume", "--no-dashboard"])
                            .args(["--ranks", &on.to_string()])
                            .arg("--run-dir")
                            .arg(&directory);
                        success(end(command)?)
                    }
                }
            }
        };
        result.map_err(|said| failed(format!("{called} failed: {said}")))?;
        Ok(directory)
    }
}

/// What a command said on standard error, also if it failed.
fn success(ended: EndedChild) -> Result<String, String> {
    match ended.status.success() {
        true => Ok(ended.stderr),
        false => Err(format!("{}\n{}", ended.status, ended.stderr)),
    }
}

pub(super) fn read_hashes(run: &Path) -> Result<Vec<Value>, ToolError> {
    let text = read(&run.join("hashes.jsonl"))?;
    text.lines()
        .map(|line| serde_json::from_str(line).map_err(failed))
        .collect()
}

fn read(path: &Path) -> Result<String, ToolError> {
    std::fs::read_to_string(path)
        .map_err(|error| failed(format!("cannot read {}: {error}", path.display())))
}

/// Training samples per second, as the run's report has them.
fn speed(run: &Path) -> Result<f64, ToolError> {
    let path = run.join(TrainingReport::FILE);
    let report = TrainingReport::of_run(run)
        .map_err(|error| failed(format!("cannot read {}: {error}", path.display())))?;
    let speed = Some(report.samples_per_second).filter(|speed| *speed > 0.0);
    speed.ok_or_else(|| failed(format!("{} has no samples_per_second", path.display())))
}

/// A short name of the state in the end.
fn last_of(hashes: &[Value]) -> String {
    let last = hashes.last().map(compare::name_of_state);
    format!("state {}", last.unwrap_or_default())
}

#[cfg(test)]
mod tests;
