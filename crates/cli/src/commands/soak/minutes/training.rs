//! A training that continues until it is stopped, and whose launchers are started again.

mod faults;
mod progress;

use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use everburn_launch::{StartedChild, forget_ranks};
use everburn_record::{Live, Phase, folder_of_machine};

pub(super) use self::faults::InjectedFault;
use self::faults::Lasting;
use self::progress::Batches;
pub(super) use self::progress::Progress;
use super::Setup;
use crate::commands::soak::plan::Fault;
use crate::commands::soak::{Soak, left_behind};
use crate::commands::{ToolError, failed};

/// How often the training is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// After how long a launcher that was killed is started again, as a service manager would.
const AWAY: Duration = Duration::from_secs(2);

/// How long a training may take to stop after Ctrl-C.
const STOPS_WITHIN: Duration = Duration::from_secs(90);

/// The code of a training that was stopped on request.
const STOPPED: i32 = 130;

/// Throughput counts from this step on.
const FIRST_STEP: u64 = 10;

impl Soak<'_> {
    /// Where a machine has its disk.
    pub(super) fn disk(&self, machine: usize) -> PathBuf {
        self.folder.path().join(format!("disk-{machine}"))
    }

    /// What a machine of a training is given for a run folder. A launcher that is started again moves it aside.
    fn run_dir(&self, training: &str, machine: usize) -> PathBuf {
        self.disk(machine).join(training).join("run")
    }

    /// Where a machine has its files of it.
    pub(super) fn machine(&self, training: &str, machine: usize) -> PathBuf {
        folder_of_machine(&self.run_dir(training, machine), machine)
    }

    /// Whether ranks exchange their gradients in each step, so that bits can be compared.
    pub(super) fn has_same_bits(&self) -> bool {
        let mut flags = self.options.train.iter();
        !flags.any(|flag| flag.to_string_lossy().starts_with("--local-steps"))
    }
}

/// A machine of a training.
#[derive(Default)]
struct Machine {
    /// None while it is to be started again.
    launcher: Option<StartedChild>,
    /// When that is.
    starts_at: Option<Instant>,
    /// The step that the training had made when a fault took the machine, or gave it back: it takes part again once it has
    /// made a later one.
    taken_at: Option<u64>,
}

/// A training that continues until it is stopped.
pub(super) struct Training<'a> {
    setup: &'a Setup<'a>,
    name: &'static str,
    secret: String,
    machines: Vec<Machine>,
    lasting: Vec<Lasting>,
    injected: Vec<InjectedFault>,
    batches: Batches,
}

impl<'a> Training<'a> {
    pub(super) fn start(setup: &'a Setup<'a>, name: &'static str) -> Result<Self, ToolError> {
        let mut training = Self {
            setup,
            name,
            secret: format!(
                "soak-{}-{}",
                std::process::id(),
                everburn_record::unix_time_ms()
            ),
            machines: Vec::new(),
            lasting: Vec::new(),
            injected: Vec::new(),
            batches: Batches::default(),
        };
        for machine in 0..setup.soak.options.machines as usize {
            let launcher = Some(training.launch(machine)?);
            training.machines.push(Machine {
                launcher,
                ..Machine::default()
            });
        }
        Ok(training)
    }

    fn launch(&self, machine: usize) -> Result<StartedChild, ToolError> {
        let Setup { soak, cluster, .. } = self.setup;
        let options = soak.options;
        let mut command = match cluster {
            Some(cluster) => cluster.command(machine, &soak.everburn),
            None => Command::new(&soak.everburn),
        };
        forget_ranks(&mut command);
        command
            .env("EVERBURN_JOB_TOKEN", &self.secret)
            .args(["train", &soak.model, "--no-dashboard"])
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
        if let Some(cluster) = cluster {
            command
                .args(["--nodes", &options.machines.to_string()])
                .args(["--node-rank", &machine.to_string()])
                .args(["--store", &cluster.store()]);
        }
        if soak.has_same_bits() {
            command
                .args(["--virtual-ranks", &options.ranks.to_string()])
                .args(["--hash-every", "50"]);
        }
        command
            .arg("--run-dir")
            .arg(soak.run_dir(self.name, machine))
            .args(&options.train);
        let output = format!("output-{}-{machine}", self.name);
        let output = soak.folder.path().join(output);
        std::fs::create_dir_all(&output).map_err(failed)?;
        Ok(soak.children.start(self.name, &mut command, &output)?)
    }

    /// Lets it train for `length` from its first steps on, with these faults, and stops it.
    pub(super) fn run(
        mut self,
        faults: &[Fault<Duration>],
        length: Duration,
    ) -> Result<Progress, ToolError> {
        let first = self.wait_for("not all machines make steps", |training| {
            let live = training.newest().filter(|_| training.all_take_part())?;
            (live.phase == Phase::Training && live.step > FIRST_STEP).then_some(live)
        })?;
        self.batches.step = first.step;
        self.batches.trained = 0;
        let begin = Instant::now();
        for fault in faults {
            self.wait_until(begin + fault.at)?;
            self.inject(fault, begin)?;
        }
        self.wait_until(begin + length)?;
        let last = self.wait_for("no live.json can be read", Self::newest)?;
        self.count(&last);
        let batches = self.batches.trained;
        let steps = last.step.saturating_sub(first.step);
        let seconds = last.unix_time_ms.saturating_sub(first.unix_time_ms) as f64 / 1000.0;
        self.undo_until(None)?;
        self.wait_for("a machine does not come back after a fault", |training| {
            training.all_take_part().then_some(())
        })?;
        let (recorder, _) = self.wait_for("no live.json can be read", Self::recorder)?;
        let faults = std::mem::take(&mut self.injected);
        self.stop()?;
        Ok(Progress {
            steps,
            batches,
            seconds,
            faults,
            recorder,
        })
    }

    /// Counts the batches up to what is recorded. Where bits are the same, all batches of a step are shared among the ranks
    /// that are there.
    fn count(&mut self, live: &Live) {
        let soak = self.setup.soak;
        let of_a_step = match soak.has_same_bits() {
            true => soak.options.ranks,
            false => live.members.len() as u64,
        };
        self.batches.add(live.step, of_a_step);
    }

    /// Waits until `found` finds something, and looks after the training meanwhile; `missing` is what is wrong if it does not
    /// for long.
    fn wait_for<T>(
        &mut self,
        missing: &str,
        found: impl Fn(&Self) -> Option<T>,
    ) -> Result<T, ToolError> {
        let seconds = self.setup.soak.options.run_timeout;
        let patience = Instant::now() + Duration::from_secs(seconds);
        loop {
            self.look()?;
            if let Some(found) = found(self) {
                return Ok(found);
            }
            if Instant::now() >= patience {
                return Err(ToolError::Failed(format!(
                    "{}: {missing}, for {seconds} s",
                    self.name
                )));
            }
            sleep(LOOK);
        }
    }

    fn wait_until(&mut self, when: Instant) -> Result<(), ToolError> {
        while Instant::now() < when {
            self.look()?;
            sleep(LOOK);
        }
        Ok(())
    }

    /// Ends faults that have lasted long enough, and starts launchers again that were killed, or that a fault has ended.
    /// Fails if another one has ended.
    fn look(&mut self) -> Result<(), ToolError> {
        self.setup.soak.children.check_interrupted()?;
        if let Some(cluster) = &self.setup.cluster {
            cluster.check()?;
        }
        if let Some(live) = self.newest() {
            self.count(&live);
        }
        let now = Instant::now();
        self.undo_until(Some(now))?;
        for machine in 0..self.machines.len() {
            if self.machines[machine].starts_at.is_some_and(|at| at <= now) {
                let launcher = self.launch(machine)?;
                self.take(machine);
                self.machines[machine].launcher = Some(launcher);
                self.machines[machine].starts_at = None;
            }
            let launcher = &self.machines[machine].launcher;
            if launcher.as_ref().is_some_and(StartedChild::has_ended) {
                self.end_launcher(machine)?;
            }
        }
        Ok(())
    }

    /// A launcher has ended by itself. A machine whose link or disk has failed starts it again.
    fn end_launcher(&mut self, machine: usize) -> Result<(), ToolError> {
        let was_taken = self.machines[machine].taken_at.is_some();
        let may_end = self.has_fault(machine) || was_taken && !self.takes_part(machine);
        let Some(launcher) = self.machines[machine].launcher.take() else {
            return Ok(());
        };
        let ended = launcher.wait(LOOK)?;
        let (status, words) = (ended.status, ended.last_words());
        if !may_end {
            return Err(ToolError::Failed(format!(
                "{} ended ({status}):\n{words}",
                self.name
            )));
        }
        let why = words.lines().last().unwrap_or_default();
        say!("  launcher {machine} has ended ({status}) and is started again: {why}");
        self.start_later(machine);
        Ok(())
    }

    fn start_later(&mut self, machine: usize) {
        self.take(machine);
        self.machines[machine].starts_at = Some(Instant::now() + AWAY);
    }

    /// Notes that a fault takes a machine now, or gives it back.
    fn take(&mut self, machine: usize) {
        let step = self.newest().map_or(0, |live| live.step);
        self.machines[machine].taken_at = Some(step);
    }

    /// The machine whose ranks have come furthest, as far as is recorded, and what it records. That is done by rank 0 of the
    /// group alone; where that is on another machine than before, the earlier one has a file that is out of date.
    fn recorder(&self) -> Option<(usize, Live)> {
        let machines = 0..self.machines.len();
        let lives = machines.filter_map(|machine| {
            let folder = self.setup.soak.machine(self.name, machine);
            Some((machine, Live::read(&folder)?))
        });
        lives.max_by_key(|(_, live)| (live.step, live.unix_time_ms))
    }

    fn newest(&self) -> Option<Live> {
        self.recorder().map(|(_, live)| live)
    }

    /// Whether ranks of a machine make steps with the others.
    fn takes_part(&self, machine: usize) -> bool {
        let Some(live) = self.newest() else {
            return false;
        };
        let options = self.setup.soak.options;
        let each = (options.ranks / options.machines) as usize;
        let is_there = live.members.iter().any(|rank| rank / each == machine);
        let taken_at = self.machines[machine].taken_at;
        is_there && taken_at.is_none_or(|step| live.step > step)
    }

    /// Whether all machines take part, so that one may be lost.
    fn all_take_part(&self) -> bool {
        let mut machines = 0..self.machines.len();
        machines.all(|machine| {
            let has_launcher = self.machines[machine].launcher.is_some();
            has_launcher && !self.is_cut_off(machine) && self.takes_part(machine)
        })
    }

    /// Stops it as Ctrl-C would. Its newest checkpoint is of the last step.
    fn stop(mut self) -> Result<(), ToolError> {
        let launchers = self.machines.iter_mut();
        let launchers = launchers.filter_map(|machine| machine.launcher.take());
        let launchers = launchers.collect::<Vec<_>>();
        for launcher in &launchers {
            launcher.interrupt();
        }
        for launcher in launchers {
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
        let machines = 0..self.machines.len();
        let mut left =
            machines.flat_map(|machine| left_behind(&self.setup.soak.run_dir(self.name, machine)));
        match left.next() {
            Some(left) => Err(ToolError::Failed(left)),
            None => Ok(()),
        }
    }
}
