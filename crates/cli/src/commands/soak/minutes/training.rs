//! A training that continues until it is stopped, and what is done to its processes meanwhile.

use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use everburn_launch::{StartedChild, forget_ranks};
use everburn_record::{Live, LiveRank, Phase, folder_of_machine};
use rustix::process::{Pid, Signal, kill_process};

use crate::commands::soak::plan::{Fault, Kind};
use crate::commands::soak::{Soak, left_behind};
use crate::commands::{ToolError, failed};

/// How often the training is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How long a frozen rank does not run: less than it takes to be counted as stopped.
const FROZEN: Duration = Duration::from_millis(800);

/// After how long a launcher that was killed is started again, as whoever keeps services running would.
const AWAY: Duration = Duration::from_secs(2);

/// How long a training may take to stop after Ctrl-C.
const STOPS_WITHIN: Duration = Duration::from_secs(90);

/// The code of a training that was stopped on request.
const STOPPED: i32 = 130;

pub(super) struct Progress {
    pub(super) steps: u64,
    pub(super) seconds: f64,
}

impl Progress {
    pub(super) fn rate(&self) -> f64 {
        self.steps as f64 / self.seconds
    }
}

impl Soak<'_> {
    /// What all machines of a training are given for a run folder.
    fn run_dir(&self, training: &str) -> PathBuf {
        self.folder.path().join(training).join("run")
    }

    /// Where a machine has its files of it.
    pub(super) fn machine(&self, training: &str, machine: u64) -> PathBuf {
        folder_of_machine(&self.run_dir(training), machine as usize)
    }

    /// Whether ranks exchange their gradients in each step, so that bits can be compared.
    pub(super) fn has_same_bits(&self) -> bool {
        let mut flags = self.options.train.iter();
        !flags.any(|flag| flag.to_string_lossy().starts_with("--local-steps"))
    }
}

/// A training that continues until it is stopped.
pub(super) struct Training<'a> {
    soak: &'a Soak<'a>,
    name: &'static str,
    secret: String,
    /// None while it is to be started again.
    launchers: Vec<Option<StartedChild>>,
    /// When a launcher is started again.
    comes_back: Vec<(u64, Instant)>,
}

impl<'a> Training<'a> {
    pub(super) fn start(soak: &'a Soak<'a>, name: &'static str) -> Result<Self, ToolError> {
        let mut training = Self {
            soak,
            name,
            secret: format!(
                "soak-{}-{}",
                std::process::id(),
                everburn_record::unix_time_ms()
            ),
            launchers: Vec::new(),
            comes_back: Vec::new(),
        };
        for machine in 0..soak.options.machines {
            let launcher = training.launch(machine)?;
            training.launchers.push(Some(launcher));
        }
        Ok(training)
    }

    fn launch(&self, machine: u64) -> Result<StartedChild, ToolError> {
        let options = self.soak.options;
        let mut command = Command::new(&self.soak.everburn);
        forget_ranks(&mut command);
        command
            .env("EVERBURN_JOB_TOKEN", &self.secret)
            .args(["train", &self.soak.model, "--no-dashboard"])
            .args(["--ranks", &(options.ranks / options.machines).to_string()])
            .args(["--elastic", &format!("{}:{}", options.min, options.ranks)])
            .args(["--max-restarts", "1000000"])
            .args([
                "--heartbeat-timeout",
                &options.heartbeat_timeout.to_string(),
            ])
            // It is stopped long before.
            .args(["--steps", "1000000000", "--epochs", "1000000000"])
            .args(["--checkpoint-every", "1min"]);
        if options.machines > 1 {
            command
                .args(["--nodes", &options.machines.to_string()])
                .args(["--node-rank", &machine.to_string()]);
        }
        if let Some(store) = &options.store {
            command.args(["--store", store]);
        }
        if self.soak.has_same_bits() {
            command
                .args(["--virtual-ranks", &options.ranks.to_string()])
                .args(["--hash-every", "50"]);
        }
        command
            .arg("--run-dir")
            .arg(self.soak.run_dir(self.name))
            .args(&options.train);
        let output = self
            .soak
            .folder
            .path()
            .join(format!("output-{}-{machine}", self.name));
        std::fs::create_dir_all(&output).map_err(failed)?;
        Ok(self.soak.children.start(self.name, &mut command, &output)?)
    }

    /// Lets it train for `length` from its first steps on, with these faults, and stops it.
    pub(super) fn run(
        mut self,
        faults: &[Fault<Duration>],
        length: Duration,
    ) -> Result<Progress, ToolError> {
        let patience = Instant::now() + Duration::from_secs(self.soak.options.run_timeout);
        let first = loop {
            self.look()?;
            let live = self
                .live()
                .filter(|live| live.phase == Phase::Training && live.step > 10);
            if let Some(live) = live {
                break live;
            }
            if Instant::now() >= patience {
                return Err(ToolError::Failed(format!(
                    "{} makes no steps within {} s",
                    self.name, self.soak.options.run_timeout
                )));
            }
            sleep(LOOK);
        };
        let begin = Instant::now();
        for fault in faults {
            self.wait_until(begin + fault.at)?;
            self.inject(fault)?;
        }
        self.wait_until(begin + length)?;
        let last = self.live().unwrap_or_default();
        let progress = Progress {
            steps: last.step.saturating_sub(first.step),
            seconds: last.unix_time_ms.saturating_sub(first.unix_time_ms) as f64 / 1000.0,
        };
        self.stop()?;
        Ok(progress)
    }

    fn wait_until(&mut self, when: Instant) -> Result<(), ToolError> {
        while Instant::now() < when {
            self.look()?;
            sleep(LOOK);
        }
        Ok(())
    }

    /// Starts launchers again that were killed, and fails if another one has ended.
    fn look(&mut self) -> Result<(), ToolError> {
        self.soak.children.check_interrupted()?;
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.comes_back)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, when)| *when <= now);
        self.comes_back = later;
        for (machine, _) in due {
            self.launchers[machine as usize] = Some(self.launch(machine)?);
        }
        for launcher in &mut self.launchers {
            if launcher.as_ref().is_some_and(StartedChild::has_ended)
                && let Some(ended) = launcher.take()
            {
                let ended = ended.wait(LOOK)?;
                return Err(ToolError::Failed(format!(
                    "{} ended ({}):\n{}",
                    self.name,
                    ended.status,
                    ended.last_words()
                )));
            }
        }
        Ok(())
    }

    /// What is known of the training: on each machine its own rank 0 writes it.
    fn live(&self) -> Option<Live> {
        let machines = 0..self.soak.options.machines;
        let all = machines.filter_map(|machine| Live::read(&self.soak.machine(self.name, machine)));
        all.max_by_key(|live| live.unix_time_ms)
    }

    fn inject(&mut self, fault: &Fault<Duration>) -> Result<(), ToolError> {
        let live = self.live().unwrap_or_default();
        if fault.kind == Kind::Machine {
            let there: Vec<usize> = (0..self.launchers.len())
                .filter(|at| self.launchers[*at].is_some())
                .collect();
            let Some(&machine) = there.get(fault.rank as usize % there.len().max(1)) else {
                return Ok(());
            };
            say!("  step {}: launcher {machine} is killed", live.step);
            if let Some(launcher) = self.launchers[machine].take() {
                launcher.kill();
                launcher.wait(STOPS_WITHIN)?;
            }
            self.comes_back
                .push((machine as u64, Instant::now() + AWAY));
            return Ok(());
        }
        let alive: Vec<&LiveRank> = live.ranks.iter().filter(|rank| rank.alive).collect();
        let rank = alive.get(fault.rank as usize % alive.len().max(1));
        let process = rank.and_then(|rank| Pid::from_raw(i32::try_from(rank.pid?).ok()?));
        let (Some(rank), Some(process)) = (rank, process) else {
            say!("  step {}: no rank is known to be there", live.step);
            return Ok(());
        };
        say!("  step {}: {} rank {}", live.step, fault.kind, rank.rank);
        // A rank that has gone by itself, such as one whose launcher was killed, is no error.
        let signal = |signal| {
            let _ = kill_process(process, signal);
        };
        signal(match fault.kind {
            Kind::Stall | Kind::Freeze => Signal::STOP,
            _ => Signal::KILL,
        });
        if fault.kind == Kind::Freeze {
            sleep(FROZEN);
            signal(Signal::CONT);
        }
        Ok(())
    }

    /// Stops it as Ctrl-C would. Its newest checkpoint is of the last step.
    fn stop(mut self) -> Result<(), ToolError> {
        while !self.comes_back.is_empty() {
            self.look()?;
            sleep(LOOK);
        }
        for launcher in self.launchers.iter().flatten() {
            launcher.interrupt();
        }
        for launcher in std::mem::take(&mut self.launchers).into_iter().flatten() {
            let ended = launcher.wait(STOPS_WITHIN)?;
            if ended.status.code() != Some(STOPPED) {
                return Err(ToolError::Failed(format!(
                    "{} did not stop on request ({}):\n{}",
                    self.name,
                    ended.status,
                    ended.last_words()
                )));
            }
        }
        let left = left_behind(&self.soak.folder.path().join(self.name));
        match left.first() {
            Some(left) => Err(ToolError::Failed(left.clone())),
            None => Ok(()),
        }
    }
}
