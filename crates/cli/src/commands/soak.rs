//! `everburn soak`: trains again and again while ranks are killed, stopped and cut off, and compares
//! what was learnt with an undisturbed training, to the bit.

mod minutes;
mod plan;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Args;
use everburn_launch::{ChildError, Children, EndedChild};
use everburn_record::statistics::median;
use everburn_record::units::counted;
use serde_json::Value;

use self::plan::{Bounds, Kind, Plan};
use super::verify::compare::compare;
use super::verify::read_hashes;
use super::{ToolError, failed, run_to_end, task_or, this_program};

/// For this many seconds a killed rank may stop the training, in the median of all: it is found at once, and the
/// others continue without it.
const LONGEST_MEDIAN: f64 = 3.0;

/// Train repeatedly with random faults: ranks are killed, stopped or lose connections.
///
/// Trains a model repeatedly while ranks are killed, stopped or lose their connections, at random steps. Each run
/// must end with the same bits as an undisturbed one. If too few ranks remain, it must say so and leave a checkpoint
/// from which a resumed run ends with these bits.
///
/// With `--minutes`, one long training instead: ranks are killed, stopped and frozen at random moments, disks become full
/// (as root), and with `--machines` launchers are killed, and links are cut, lost for a moment and slow. Its throughput is
/// compared with that of an undisturbed training before and after it.
///
/// Exits with 1 if a run hangs, differs, leaves a process running or loses its checkpoints, if killed ranks
/// interrupt the training for more than 3 s in the median, or if less than 97 % of the throughput is kept.
#[derive(Debug, Args)]
pub(crate) struct SoakArguments {
    /// The model to train [default: the program's model, if it has only one; mnist-bn in everburn].
    model: Option<String>,

    /// The number of runs.
    #[arg(long, default_value_t = 50)]
    runs: u64,

    /// One training of this many minutes, in place of --runs.
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["runs", "steps"], value_parser = clap::value_parser!(u64).range(1..))]
    minutes: Option<u64>,

    /// The number of faults in each of the --minutes.
    #[arg(long, default_value_t = 2, requires = "minutes", value_parser = clap::value_parser!(u64).range(1..))]
    faults_per_minute: u64,

    /// The number of machines: network namespaces, each with a launcher and its share of the ranks. More than one needs
    /// root, iproute2 and etcd.
    #[arg(long, default_value_t = 1, requires = "minutes", value_parser = clap::value_parser!(u64).range(1..))]
    machines: u64,

    /// Where to write the results of --minutes as JSON.
    #[arg(long, value_name = "FILE", requires = "minutes")]
    json: Option<PathBuf>,

    /// The seed of the faults [default: the time]. Run k of a soak has seed + k: `--runs 1 --seed S` repeats one of them.
    #[arg(long)]
    seed: Option<u64>,

    /// The number of ranks.
    #[arg(long, default_value_t = 4)]
    ranks: u64,

    /// The fewest ranks to continue with.
    #[arg(long, default_value_t = 2)]
    min: u64,

    /// The number of steps.
    #[arg(long, default_value_t = 40)]
    steps: u64,

    /// The seconds without a heartbeat after which a rank counts as lost.
    #[arg(long, default_value_t = 3)]
    heartbeat_timeout: u64,

    /// The longest time of a run in seconds; a longer one counts as a hang.
    #[arg(long, default_value_t = 180)]
    run_timeout: u64,

    /// More flags of `train`, after `--`, as in `-- --transport tcp --set MODEL.width=64`.
    #[arg(last = true, value_name = "FLAGS")]
    train: Vec<OsString>,
}

pub(crate) fn run(options: &SoakArguments) -> Result<ExitCode, ToolError> {
    if options.min == 0 || options.min > options.ranks || options.ranks < 2 || options.steps < 5 {
        let what = "a soak needs at least 2 ranks, --min from 1 to that number, and 5 steps";
        return Err(ToolError::Usage(what.to_owned()));
    }
    let soak = Soak {
        options,
        model: task_or(options.model.as_deref(), Some("mnist-bn"))?,
        everburn: this_program()?,
        children: Children::listen()?,
        folder: tempfile::tempdir().map_err(failed)?,
    };
    match options.minutes {
        Some(minutes) => minutes::run(&soak, minutes),
        None => soak.run(),
    }
}

struct Soak<'a> {
    options: &'a SoakArguments,
    model: String,
    everburn: PathBuf,
    children: Children,
    folder: tempfile::TempDir,
}

/// What a run came to.
struct RunOutcome {
    /// What is wrong, if anything is.
    wrong: Vec<String>,
    /// How long each loss of ranks stopped the training, in seconds.
    lost: Vec<f64>,
}

impl Soak<'_> {
    fn run(&self) -> Result<ExitCode, ToolError> {
        let &SoakArguments {
            runs,
            ranks,
            min,
            steps,
            ..
        } = self.options;
        let now = everburn_record::unix_time_ms();
        let seed = self.options.seed.unwrap_or(now);
        say!(
            "{}: {} of {} on {ranks} ranks, at least {min}; seed {seed}",
            self.model,
            counted(runs as usize, "run"),
            counted(steps as usize, "step")
        );
        let reference = self.folder.path().join("undisturbed");
        self.train("the undisturbed run", &reference, &["--ranks", "1"])
            .and_then(|ended| expect_success(&ended))?;
        let expected = read_hashes(&reference)?;
        let (mut failed, mut kills, mut stalls) = (0, Vec::new(), Vec::new());
        for number in 0..runs {
            self.children.check_interrupted()?;
            let bounds = Bounds { ranks, min, steps };
            let plan = Plan::draw(seed.wrapping_add(number), bounds);
            let start = Instant::now();
            let found = self.run_one(number, &plan, &expected)?;
            if plan.is_all(Kind::Kill) {
                kills.extend(&found.lost);
            }
            if plan.is_all(Kind::Stall) {
                stalls.extend(&found.lost);
            }
            let verdict = match found.wrong.as_slice() {
                [] if plan.too_few => "too few were left, and a resumed run learnt the same",
                [] => "the same bits",
                _ => "WRONG",
            };
            let lost = found.lost.iter().map(|lost| format!("{lost:.2}"));
            say!(
                "  run {number} (seed {}): {plan}: {verdict}, {:.1} s, lost [{}] s",
                seed.wrapping_add(number),
                start.elapsed().as_secs_f64(),
                lost.collect::<Vec<_>>().join(", ")
            );
            for what in &found.wrong {
                say!("    {what}");
            }
            failed += u64::from(!found.wrong.is_empty());
        }
        let mut is_slow = false;
        if let Some(median) = median(&kills) {
            is_slow = median > LONGEST_MEDIAN;
            let verdict = if is_slow { "TOO LONG, " } else { "" };
            say!(
                "a killed rank stops the training for {median:.2} s ({verdict}median of {}, at most \
                 {LONGEST_MEDIAN} s)",
                kills.len()
            );
        }
        if let Some(median) = median(&stalls) {
            say!(
                "a stopped rank stops the training for {median:.2} s (median of {}), {} s of them until it is \
                 counted as lost",
                stalls.len(),
                self.options.heartbeat_timeout
            );
        }
        say!("{} of {runs} runs ended as they should", runs - failed);
        Ok(match failed == 0 && !is_slow {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    fn run_one(
        &self,
        number: u64,
        plan: &Plan,
        expected: &[Value],
    ) -> Result<RunOutcome, ToolError> {
        let &SoakArguments { ranks, min, .. } = self.options;
        let directory = self.folder.path().join(format!("run-{number}"));
        let (ranks, elastic, chaos) = (
            ranks.to_string(),
            format!("{min}:{ranks}"),
            plan.to_string(),
        );
        let heartbeat = self.options.heartbeat_timeout.to_string();
        let mut flags = vec!["--ranks", &ranks, "--elastic", &elastic, "--chaos", &chaos];
        flags.extend([
            "--heartbeat-timeout",
            &heartbeat,
            "--checkpoint-every",
            "7steps",
        ]);
        if plan.too_few {
            flags.extend(["--max-restarts", "0"]);
        }
        let mut found = RunOutcome {
            wrong: Vec::new(),
            lost: Vec::new(),
        };
        let ended = match self.train("a run", &directory, &flags) {
            Ok(ended) => ended,
            Err(interrupted @ ToolError::Child(ChildError::Interrupted)) => {
                return Err(interrupted);
            }
            Err(failure) => {
                found.wrong.push(failure.to_string());
                found.wrong.extend(left_behind(&directory));
                return Ok(found);
            }
        };
        found.lost = seconds_lost(&ended.stderr, self.options.ranks);
        // A process that took the place of another is spared, so the first fault alone is sure.
        let first = plan.faults.iter().map(|fault| fault.at).min();
        if first.is_some_and(|step| !tells_of_a_fault(&ended.stderr, step)) {
            found.wrong.push("nothing happened".to_string());
        }
        found.wrong.extend(left_behind(&directory));
        match (ended.status.success(), plan.too_few) {
            (true, false) => {}
            (true, true) => found
                .wrong
                .push("it went on with too few ranks".to_string()),
            (false, false) => found
                .wrong
                .push(format!("it failed:\n{}", ended.last_words())),
            (false, true) => {
                if !ended.stderr.contains("cannot continue") {
                    found.wrong.push(format!(
                        "it gives no reason for its end:\n{}",
                        ended.last_words()
                    ));
                }
                let resumed = self
                    .resume(&directory)
                    .and_then(|ended| expect_success(&ended));
                if let Err(failure) = resumed {
                    found
                        .wrong
                        .push(format!("its checkpoint is of no use: {failure}"));
                    return Ok(found);
                }
            }
        }
        found.wrong.extend(difference(&directory, expected));
        if found.wrong.is_empty() {
            // What is wrong is kept to look at until the end.
            let _ = std::fs::remove_dir_all(&directory);
        }
        Ok(found)
    }

    fn train(&self, name: &str, directory: &Path, flags: &[&str]) -> Result<EndedChild, ToolError> {
        let mut command = Command::new(&self.everburn);
        command
            .args(["train", &self.model, "--no-dashboard"])
            .args(["--steps", &self.options.steps.to_string()])
            .args(["--virtual-ranks", &self.options.ranks.to_string()])
            .args(["--hash-every", "1", "--run-dir"])
            .arg(directory)
            .args(flags)
            .args(&self.options.train);
        self.end(name, command)
    }

    fn resume(&self, directory: &Path) -> Result<EndedChild, ToolError> {
        let mut command = Command::new(&self.everburn);
        command
            .args(["train", "--resume", "--no-dashboard", "--run-dir"])
            .arg(directory);
        self.end("the resumed run", command)
    }

    fn end(&self, name: &str, command: Command) -> Result<EndedChild, ToolError> {
        run_to_end(&self.children, name, command, self.options.run_timeout)
    }
}

fn expect_success(ended: &EndedChild) -> Result<(), ToolError> {
    match ended.status.success() {
        true => Ok(()),
        false => Err(ToolError::Failed(ended.last_words())),
    }
}

/// How the hashes of a run differ from the expected ones, or why they cannot be read.
fn difference(directory: &Path, expected: &[Value]) -> Option<String> {
    match read_hashes(directory) {
        Err(error) => Some(error.to_string()),
        Ok(hashes) => compare(expected, &hashes).map(|found| format!("it differs at {found}")),
    }
}

/// Whether a rank has said that a fault has happened to it at step `step`: "chaos: rank 1 is killed at step 2".
fn tells_of_a_fault(stderr: &str, step: u64) -> bool {
    let end = format!(" at step {step}");
    let mut lines = stderr.lines();
    lines.any(|line| line.contains("chaos: ") && line.trim_end().ends_with(&end))
}

/// How long the training stood still at each loss: "ranks [0, 2] have made step 9, 0.31 s after the step
/// before". Where more ranks continue than before, some have come.
fn seconds_lost(stderr: &str, ranks: u64) -> Vec<f64> {
    let lines = stderr.lines().filter_map(|line| {
        let (before, behind) = line.split_once("] have made step ")?;
        let there = before.rsplit_once('[')?.1.split(',').count() as u64;
        let (_, seconds) = behind.split_once(", ")?;
        let seconds = seconds.strip_suffix(" s after the step before")?;
        Some((there, seconds.parse::<f64>().ok()?))
    });
    let mut before = ranks;
    let mut lost = Vec::new();
    for (there, seconds) in lines {
        if there <= before {
            lost.push(seconds);
        }
        before = there;
    }
    lost
}

/// Processes that still have the run's folder on their command line, besides this one.
fn left_behind(directory: &Path) -> Vec<String> {
    let wanted = directory.display().to_string();
    let processes = everburn_record::proc::command_lines().into_iter();
    let left = processes
        .filter(|(process, line)| *process != std::process::id() && line.contains(&wanted))
        .map(|(process, line)| format!("process {process} is still running: {line}"));
    left.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_read_from_what_the_ranks_say() {
        let said = "[rank 0]  WARN after step 8: rank 1 is gone\n\
                    [rank 0]  WARN ranks [0, 2] have made step 9, 0.31 s after the step before\n\
                    [rank 0]  WARN ranks [0, 1, 2] have made step 12, 1.02 s after the step before\n";
        assert_eq!(seconds_lost(said, 3), [0.31], "a rank has come in step 12");
    }

    #[test]
    fn a_fault_is_told_by_the_rank_that_suffers_it() {
        let said = "[rank 1]  WARN chaos: rank 1 is killed at step 23\n\
                    [rank 0]  WARN after step 1: rank 1 stalled at step 2\n\
                    [rank 0]  WARN chaos: rank 0 loses rank 2 at step 5\n";
        let told = [2, 3, 5, 23].map(|step| tells_of_a_fault(said, step));
        assert_eq!(told, [false, false, true, true]);
    }
}
