//! `bench scale`: jobs of more ranks than cores, on one machine: how long they take to start, and what a rank has besides
//! its model.
//!
//! Each job is `everburn train` as its user runs it. So is one rank alone, which has only what the model needs.

mod rows;

use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use everburn::launch::{forget_ranks, keep_freed_memory, variables};
use everburn_record::proc::{self, CpuTime};
use everburn_record::units::counted;
use everburn_record::unix_time_ms;
use serde_json::Value;

use self::rows::{Row, ScaleResults, first_step_ms, parameter_hashes};
use crate::bench::{Bench, Setup, at_least_1};
use crate::failure::Failure;

/// The model of all jobs: small, so that what grows with the ranks shows.
const MODEL: &str = "mlp";

/// How many samples are held out to validate on, and how many to test on.
const HELD_OUT: usize = 16;

/// The launcher's log, with the requests at its store.
const LOG: &str = "warn,everburn=info,everburn_launch=debug";

/// Numbers of ranks: the powers of two in `2..256`, or a list such as `2,64,256`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RankCounts(Vec<usize>);

impl FromStr for RankCounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |word: &str| at_least_1(word).map_err(|why| format!("`{word}`: {why}"));
        let counts: Vec<usize> = match text.split_once("..") {
            Some((first, last)) => {
                let range = number(first)?..=number(last)?;
                let powers = (0..usize::BITS).map(|exponent| 1 << exponent);
                powers.filter(|count| range.contains(count)).collect()
            }
            None => text.split(',').map(number).collect::<Result<_, _>>()?,
        };
        match counts.iter().min() {
            None => Err("there is no power of two in this range".to_owned()),
            Some(1) => Err("write 2 or more: one rank alone is always measured".to_owned()),
            Some(_) => Ok(Self(counts)),
        }
    }
}

/// Measures jobs of many ranks on this machine: seconds until all ranks have made their first step, CPU time, memory and
/// threads of a rank compared with one rank alone, and requests at the store.
///
/// Each rank is a process with one thread for computation and one sample per step. After the last step the ranks compare
/// their parameters, and a difference fails the job.
#[derive(Debug, Parser)]
pub(crate) struct ScaleBench {
    /// Numbers of ranks: the powers of two in a range such as 2..256, or a list such as 2,64,256.
    #[arg(long, default_value = "2..256")]
    ranks: RankCounts,

    /// Steps of each job.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    steps: usize,
}

impl ScaleBench {
    fn command(&self, everburn: &Path, ranks: usize, run: &Path) -> Command {
        let (ranks, steps) = (ranks.to_string(), self.steps.to_string());
        // The same data for all jobs: each rank has all of them in its memory.
        let most = self.ranks.0.iter().max().copied().unwrap_or(1);
        let samples = most.saturating_mul(self.steps).saturating_add(HELD_OUT);
        let mut command = Command::new(everburn);
        forget_ranks(&mut command);
        keep_freed_memory(&mut command);
        command
            .env("EVERBURN_LOG", LOG)
            .args(["train", MODEL, "--no-dashboard", "--data", "synthetic"])
            .args(["--ranks", &ranks, "--threads-per-rank", "1"])
            .args(["--batch-size", &ranks, "--steps", &steps])
            .args(["--train-samples", &samples.to_string()])
            .args(["--validation-samples", &HELD_OUT.to_string()])
            .args(["--test-samples", &HELD_OUT.to_string()])
            .args(["--log-every", "1", "--compare-every", &steps])
            .args(["--hash-every", &steps])
            .arg("--run-dir")
            .arg(run);
        command
    }

    /// Runs a job of `ranks` ranks to its end.
    fn run_job(&self, setup: &Setup, ranks: usize) -> Result<Row, Failure> {
        let name = format!("the job of {}", counted(ranks, "rank"));
        let run = setup.folder().join(format!("ranks-{ranks}"));
        let mut command = self.command(&setup.program, ranks, &run);
        let (before, begin, begin_ms) = (CpuTime::now(), Instant::now(), unix_time_ms());
        let child = setup.children.start(&name, &mut command, setup.folder())?;
        let (ended, seconds, usage) = thread::scope(|scope| {
            let (id, (running, until_end)) = (child.id(), mpsc::channel());
            let usage = scope.spawn(move || Usage::of_job(id, ranks, &until_end));
            let ended = child.wait(setup.patience);
            drop(running);
            (ended, begin.elapsed().as_secs_f64(), usage.join())
        });
        let ended = ended?;
        let usage =
            usage.map_err(|_| Failure::new("the thread that looks at the ranks has panicked"))?;
        let cpu = before.zip(CpuTime::now());
        let cpu = cpu.and_then(|(before, after)| before.of_children_until(after));
        // A job succeeds only if each of its ranks has reported that it finished.
        let failure = (!ended.status.success()).then(|| ended.last_words());
        let first_step = first_step_ms(&run);
        let row = Row {
            ranks,
            first_step: first_step.map(|ms| ms.saturating_sub(begin_ms) as f64 / 1000.0),
            seconds,
            cpu: cpu.map(|time| time.as_secs_f64()),
            memory: usage.memory,
            threads: usage.threads,
            requests: requests(&ended.stderr),
            parameters: parameter_hashes(&run, self.steps),
            failure,
        };
        eprintln!("[{}] {}", counted(ranks, "rank"), row.sentence());
        Ok(row)
    }
}

impl Bench for ScaleBench {
    const NAME: &'static str = "scale";
    const ABOUT: &'static str =
        "start, CPU time, memory and threads of jobs of 2 to 256 ranks; --ranks 2,64";
    const RUN_TIMEOUT: &'static str = "600";

    type Results = ScaleResults;

    fn measure(&self, setup: &Setup) -> Result<ScaleResults, Failure> {
        let alone = self.run_job(setup, 1)?;
        if let Some(why) = alone.failure {
            return Err(Failure::new(format!("one rank alone has failed:\n{why}")));
        }
        let rows = self.ranks.0.iter().map(|ranks| self.run_job(setup, *ranks));
        Ok(ScaleResults {
            alone,
            rows: rows.collect::<Result<_, _>>()?,
        })
    }

    fn notes(&self, _: &ScaleResults, _: &Setup) -> String {
        format!(
            "method:  one job per number of ranks, {} of {MODEL} with 1 sample per rank and 1 thread for computation;\n         \
             memory (VmHWM) and threads are those of the rank with most; requests and CPU time are of the whole job",
            counted(self.steps, "step")
        )
    }

    fn table(&self, results: &ScaleResults, _: &Setup) -> String {
        results.table()
    }

    fn to_json(&self, results: &ScaleResults, _: &Setup, machine: &Value) -> Value {
        results.to_json(machine, MODEL, self.steps)
    }

    fn works(results: &ScaleResults) -> bool {
        results.rows.iter().all(|row| row.failure.is_none())
    }
}

/// The most that a rank of a job has used, as far as it was seen.
#[derive(Debug, Default)]
struct Usage {
    memory: Option<u64>,
    threads: Option<usize>,
}

impl Usage {
    /// Looks at the ranks until the other side of `until_end` is dropped.
    fn of_job(launcher: u32, ranks: usize, until_end: &Receiver<()>) -> Self {
        // A look at 256 ranks takes 10 to 20 ms, and all of one rank alone 200 ms.
        let pause = Duration::from_millis(2 + ranks as u64);
        let (mut most, mut processes) = (Self::default(), Vec::new());
        while until_end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            if processes.len() < ranks {
                processes = rank_processes(launcher, ranks);
            }
            for process in &processes {
                most.memory = most.memory.max(proc::peak_memory_of(*process));
                most.threads = most.threads.max(proc::threads_of(*process));
            }
        }
        most
    }
}

/// The processes of the ranks that have been started. One rank has no launcher: it is the process itself.
fn rank_processes(launcher: u32, ranks: usize) -> Vec<u32> {
    if ranks == 1 {
        return vec![launcher];
    }
    let launcher = launcher.to_string();
    let started = proc::with_variable(variables::LAUNCHER_PID).into_iter();
    let own = started.filter(|(_, of)| *of == launcher);
    own.map(|(process, _)| process).collect()
}

/// How many requests the launcher's store has answered, by the launcher's log.
fn requests(log: &str) -> Option<u64> {
    let count = |line: &str| {
        let (_, rest) = line.split_once("the store has answered ")?;
        rest.strip_suffix(" requests")?.parse().ok()
    };
    log.lines().find_map(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_ranks_are_powers_in_a_range_or_a_list() {
        let counts = |text: &str| text.parse::<RankCounts>().map(|counts| counts.0);
        assert_eq!(counts("2..16"), Ok(vec![2, 4, 8, 16]));
        assert_eq!(counts("3..9"), Ok(vec![4, 8]));
        assert_eq!(counts("2,64,48"), Ok(vec![2, 64, 48]));
        for wrong in ["", "2..", "..4", "5..7", "8..2", "1..4", "0,2", "1", "2,x"] {
            assert!(counts(wrong).is_err(), "{wrong}");
        }
        let usual = ScaleBench::try_parse_from(["bench scale"]).unwrap();
        assert_eq!(usual.ranks.0, [2, 4, 8, 16, 32, 64, 128, 256]);
    }

    #[test]
    fn all_jobs_have_the_same_data_and_compare_after_the_last_step() {
        let options = ["bench scale", "--ranks", "2,8", "--steps", "5"];
        let options = ScaleBench::try_parse_from(options).unwrap();
        for ranks in [1, 2, 8] {
            let command = options.command(Path::new("e"), ranks, Path::new("/run"));
            let line = everburn_tests::words_of(&command);
            for part in [
                "--train-samples 56 ",
                &format!("--ranks {ranks} "),
                &format!("--batch-size {ranks} "),
                "--compare-every 5 --hash-every 5 --run-dir /run",
            ] {
                assert!(line.contains(part), "{part}: {line}");
            }
        }
    }

    #[test]
    fn requests_are_in_the_log_of_a_launcher() {
        let log = "DEBUG rank 1 ended well\nDEBUG the store has answered 1503 requests\n";
        assert_eq!(requests(log), Some(1503));
        assert_eq!(requests("DEBUG rank 1 ended well\n"), None);
    }
}
