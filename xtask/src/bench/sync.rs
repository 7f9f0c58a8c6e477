//! `bench sync`: what a training costs in bytes and time, and what it learns, where ranks become equal in each
//! step, and where they do every so many steps.
//!
//! Each side is `everburn train` on ranks that a launcher other than ours has started, in namespaces with
//! links of their own where `--link` asks for it.

mod rows;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use everburn_record::proc::CpuTime;
use serde_json::Value;

use self::rows::{Measured, Row, Setting, table, to_json};
use super::job::{Job, Place};
use super::machine::Machine;
use super::network::{LinkOptions, Network};
use super::process::{Children, Failure};
use super::{check_place, temporary_folder, write_file};
use crate::binary;

/// Samples that a side is validated on.
const VALIDATION_SAMPLES: usize = 256;

/// Measures ranks that become equal in each step (DDP) beside ranks that take many steps by themselves
/// (DiLoCo), as they are and with differences of 8 bits: bytes, time and validation loss of the same
/// number of steps.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench sync",
    after_help = "Environment:\n  \
        EVERBURN_BIN       a built everburn to measure in place of building one\n  \
        EVERBURN_DATA_DIR  where the data are"
)]
struct SyncOptions {
    /// The model to train.
    #[arg(long, default_value = "gpt-nano")]
    model: String,

    /// How many ranks.
    #[arg(long, default_value_t = 4)]
    ranks: usize,

    /// Samples that all ranks together read a step.
    #[arg(long, default_value_t = 32)]
    batch: usize,

    /// Steps of each side.
    #[arg(long, default_value_t = 100)]
    steps: usize,

    /// How many steps a rank takes by itself.
    #[arg(long, default_value_t = 50, value_name = "H")]
    every: usize,

    /// The outer learning rate [default: DiLoCo's].
    #[arg(long, value_name = "RATE")]
    outer_learning_rate: Option<f64>,

    /// The outer momentum [default: DiLoCo's].
    #[arg(long, value_name = "SHARE")]
    outer_momentum: Option<f64>,

    #[command(flatten)]
    link: LinkOptions,

    /// Only the sides whose names have this in them: ddp, every, int8.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Write the rows to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Give up when one run takes longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    run_timeout: u64,
}

impl SyncOptions {
    fn check(&self) -> Result<(), Failure> {
        for (flag, number) in [
            ("--batch", self.batch),
            ("--steps", self.steps),
            ("--every", self.every),
        ] {
            if number == 0 {
                return Err(Failure::Usage(format!("{flag} 0: it must be at least 1")));
            }
        }
        if self.ranks < 2 {
            let what = "--ranks: an exchange needs 2 ranks or more";
            return Err(Failure::Usage(what.into()));
        }
        if self.sides().is_empty() {
            let what = "--only: no side has this in its name; there are ddp, every and int8";
            return Err(Failure::Usage(what.into()));
        }
        self.json
            .as_deref()
            .map_or(Ok(()), |file| check_place("--json", file))
    }

    /// The name of each side, and what it is told besides what all are.
    fn sides(&self) -> Vec<(String, Vec<String>)> {
        let rounds = |more: &[&str]| {
            let mut flags = vec!["--sync".to_owned(), format!("every={}", self.every)];
            for (flag, number) in [
                ("--outer-learning-rate", self.outer_learning_rate),
                ("--outer-momentum", self.outer_momentum),
            ] {
                flags.extend(
                    number
                        .into_iter()
                        .flat_map(|it| [flag.to_owned(), it.to_string()]),
                );
            }
            flags.extend(more.iter().map(|word| (*word).to_owned()));
            flags
        };
        let every = format!("every={}", self.every);
        let sides = [
            ("ddp".to_owned(), Vec::new()),
            (every.clone(), rounds(&[])),
            (
                format!("{every} int8"),
                rounds(&["--compress-outer", "int8"]),
            ),
        ];
        let only = self.only.as_deref().unwrap_or_default();
        let wanted = sides.into_iter().filter(|(name, _)| name.contains(only));
        wanted.collect()
    }

    fn training(&self, command: &mut Command, flags: &[String], run: &Path) {
        command
            // As another launcher's, so that the run directory is made here.
            .env_remove("EVERBURN_LAUNCHER_PID")
            .args(["train", &self.model, "--no-dashboard"])
            .args(["--batch-size", &self.batch.to_string()])
            .args(["--steps", &self.steps.to_string(), "--epochs", "1000"])
            .args(["--validation-samples", &VALIDATION_SAMPLES.to_string()])
            .args(["--test-samples", "64", "--compare-every", "0"])
            .args(["--timeout", &self.run_timeout.to_string()])
            .arg("--run-dir")
            .arg(run)
            .args(flags);
        if self.link.link.is_some() {
            command.args(["--transport", "tcp"]);
        }
    }
}

/// Runs the benchmark with the arguments after its name.
pub(super) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let name = OsString::from("cargo xtask bench sync");
    let options = SyncOptions::parse_from([name].into_iter().chain(arguments.iter().cloned()));
    options.check()?;
    let machine = Machine::look();
    let children = Children::listen()?;
    let folder = temporary_folder()?;
    let built = |program: miette::Result<Option<PathBuf>>| {
        let program = program.map_err(|error| Failure::new(error.to_string()))?;
        children.check_interrupted()?;
        Ok::<_, Failure>(program)
    };
    let (Some(measure), Some(everburn)) =
        (built(binary::measure())?, built(binary::for_measuring())?)
    else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    // Declared before what runs in it, so that it goes last.
    let network = match options.link.link {
        Some(rate) => Some(Network::create(options.ranks, rate, options.link.delay)?),
        None => None,
    };
    let place = Place {
        children: &children,
        folder: folder.path(),
        network: network.as_ref(),
        ranks: options.ranks,
    };
    let before = CpuTime::now();
    let mut rows = Vec::new();
    for (number, (name, flags)) in options.sides().into_iter().enumerate() {
        let run = folder.path().join(format!("run-{number}"));
        let sent = || network.as_ref().map(Network::sent_bytes).transpose();
        let sent_before = sent()?;
        let job = Job::start(place, &measure, &everburn, &name, |command| {
            options.training(command, &flags, &run);
        })?;
        job.finish(Duration::from_secs(options.run_timeout))?;
        let wire = sent()?
            .zip(sent_before)
            .map(|(after, before)| after - before);
        let row = Row::read(&name, &run, wire)?;
        eprintln!("[{name}] {}", row.sentence());
        rows.push(row);
    }
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));
    let measured = Measured {
        setting: Setting {
            model: options.model.clone(),
            ranks: options.ranks,
            batch: options.batch,
            steps: options.steps,
            every: options.every,
            link: network
                .as_ref()
                .map(|network| network.rate().bytes_per_second()),
        },
        rows,
    };
    println!("{}", machine.describe(others));
    println!("{}", measured.setting.describe());
    if let Some(network) = &network {
        println!("{}", network.describe());
    }
    println!("\n{}", table(&measured));
    if let Some(file) = &options.json {
        let rows = to_json(&measured, &machine.to_json(others));
        write_file(file, &format!("{rows:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A file of JSON.
fn read_json(path: &Path) -> Result<Value, Failure> {
    let broken = |what: String| Failure::new(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| broken(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| broken(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &str) -> SyncOptions {
        let words = words.split_whitespace();
        SyncOptions::try_parse_from(["bench sync"].into_iter().chain(words)).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        SyncOptions::command().debug_assert();
    }

    #[test]
    fn the_sides_differ_in_how_ranks_become_equal() {
        let options = options("--every 20 --outer-learning-rate 0.5 --link 10mbit");
        let sides = options.sides();
        let lines = sides.iter().map(|(_, flags)| {
            let mut command = Command::new("e");
            options.training(&mut command, flags, Path::new("/run"));
            let words = command
                .get_args()
                .map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        });
        let lines = lines.collect::<Vec<_>>();
        assert!(
            lines[0].ends_with("--run-dir /run --transport tcp"),
            "{}",
            lines[0]
        );
        let every = "--sync every=20 --outer-learning-rate 0.5";
        assert!(lines[1].contains(every) && !lines[1].contains("int8"));
        assert!(lines[2].contains(&format!("{every} --compress-outer int8")));
    }

    #[test]
    fn sides_can_be_left_out_and_nonsense_is_refused() {
        let names = |words: &str| {
            let sides = options(words).sides().into_iter();
            sides.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names("--only ddp"), ["ddp"]);
        assert_eq!(names("--only every"), ["every=50", "every=50 int8"]);
        for words in ["--ranks 1", "--steps 0", "--only lunch"] {
            let refused = options(words).check();
            assert!(matches!(refused, Err(Failure::Usage(_))), "{words}");
        }
        assert_eq!(options("").check(), Ok(()));
    }
}
