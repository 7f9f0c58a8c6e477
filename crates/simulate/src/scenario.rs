//! The course of a simulation: ranks meet, train, and meet faults.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everburn_collectives::sync::lock;

use crate::launcher;
use crate::mesh::Mesh;
use crate::network::Traffic;
use crate::rank;
use crate::report::Report;
use crate::settings::Settings;
use crate::world::World;

/// How often the observer looks.
const LOOK: Duration = Duration::from_millis(10);

/// How long undisturbed training is measured before each fault.
const WINDOW: Duration = Duration::from_secs(1);

/// How long a job may take to form, to resolve a fault, and to be complete again, before the simulation is ended.
const FORMS: Duration = Duration::from_secs(60);
const RESOLVES: Duration = Duration::from_secs(40);
const COMPLETES: Duration = Duration::from_secs(120);
const ENDS: Duration = Duration::from_secs(60);

/// What happens to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The processes of these ranks are killed.
    Killed(Vec<usize>),
    /// The process of a rank is stopped for this long, and continued if it lives.
    Stopped(usize, Duration),
    /// A machine has no network for this long.
    CutOff(usize, Duration),
    /// A rank computes slowly for this long, and nothing may happen.
    Slow(usize, Duration),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(ranks) => write!(f, "killed: rank {ranks:?}"),
            Self::Stopped(rank, time) => write!(f, "stopped: rank {rank} for {time:.1?}"),
            Self::CutOff(machine, time) => write!(f, "cut off: machine {machine} for {time:.1?}"),
            Self::Slow(rank, time) => write!(f, "slow: rank {rank} for {time:.1?}"),
        }
    }
}

/// What became of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultOutcome {
    /// What happened.
    pub fault: Fault,
    /// Until the first step with the members that are left; `None`: not in time.
    pub resolved: Option<Duration>,
    /// How many members that step had.
    pub members: usize,
    /// What is wrong with its members, if anything.
    pub wrong: Option<String>,
    /// Until all ranks were there again.
    pub complete: Option<Duration>,
    /// The longest time that a request waited for the store's thread.
    pub longest_queue: Duration,
}

/// Runs a simulation.
///
/// # Panics
/// When the system gives no more stacks.
#[must_use]
pub fn run(settings: Settings) -> Report {
    let world = World::new(settings);
    let report = Arc::new(Mutex::new(Report::new(&world.settings)));
    let observer = Observer {
        world: world.clone(),
        report: report.clone(),
    };
    let process = world.kernel.add_process(0);
    let of = world.clone();
    let runs = move || {
        if let Err(stuck) = observer.course() {
            lock(&observer.report).stuck = Some(stuck);
        }
        of.kernel.end();
    };
    let started = world.kernel.spawn(process, "observer", Box::new(runs));
    if let Err(error) = started {
        panic!("the system gives no stacks: {error}");
    }
    let result = world.kernel.run();
    let mut report = lock(&report).clone();
    if let Err(stuck) = result {
        report.stuck = Some(stuck);
    }
    report.trace = world.kernel.trace();
    report.simulated = world.kernel.now();
    report.failures = world.failures();
    report
}

struct Observer {
    world: Arc<World>,
    report: Arc<Mutex<Report>>,
}

impl Observer {
    fn course(&self) -> Result<(), String> {
        self.meet()?;
        let before = self.now();
        for machine in 0..self.world.machines.len() {
            launcher::start(&self.world, machine);
        }
        let mesh = self.wait_complete(FORMS, 0);
        let mesh = mesh.ok_or_else(|| format!("the first round has not formed in {FORMS:?}"))?;
        let formed = Duration::from_nanos(mesh.first_made.load(Ordering::Acquire));
        lock(&self.report).formed = Some(formed - before);
        let first = self.world.network.traffic();
        lock(&self.report).until_formed = first;
        for number in 0..self.world.settings.faults {
            self.one_fault(number)?;
        }
        if self.world.settings.faults == 0 {
            self.train();
        }
        self.finish()
    }

    fn now(&self) -> Duration {
        self.world.kernel.now()
    }

    /// Waits until `found` has something.
    fn wait<R>(&self, limit: Duration, found: impl Fn() -> Option<R>) -> Option<R> {
        let until = self.now() + limit;
        loop {
            let result = found();
            if result.is_some() || self.now() >= until {
                return result;
            }
            self.world.kernel.sleep(LOOK);
        }
    }

    /// A job that is not elastic: rendezvous and mesh.
    fn meet(&self) -> Result<(), String> {
        let began = self.now();
        let outcomes: Arc<Mutex<Vec<Result<Duration, String>>>> = Arc::default();
        let ranks = self.world.settings.ranks;
        for slot in 0..ranks {
            let process = self.world.kernel.add_process(self.world.machine_of(slot));
            let (world, outcomes) = (self.world.clone(), outcomes.clone());
            let runs = move || {
                let late = Duration::from_nanos(world.kernel.random_below(1_000_000_000));
                world.kernel.sleep(late);
                let outcome = rank::meet(&world, slot, process);
                lock(&outcomes).push(outcome.map(|()| world.kernel.now()));
                world.kernel.kill(process);
            };
            let name = format!("meets-{slot}");
            let started = self.world.kernel.spawn(process, &name, Box::new(runs));
            started.map_err(|error| format!("the system gives no more stacks: {error}"))?;
        }
        let all = || (lock(&outcomes).len() == ranks).then_some(());
        if self.wait(FORMS, all).is_none() {
            let count = lock(&outcomes).len();
            return Err(format!("only {count} of {ranks} ranks have met"));
        }
        let outcomes: Result<Vec<Duration>, String> = lock(&outcomes).drain(..).collect();
        let last = outcomes?.into_iter().max().unwrap_or_default();
        lock(&self.report).rendezvous = Some(last - began);
        Ok(())
    }

    /// Waits until all ranks train together in a generation after `generation`.
    fn wait_complete(&self, limit: Duration, generation: u64) -> Option<Arc<Mesh>> {
        let ranks = self.world.settings.ranks;
        self.wait(limit, || {
            let newest = self.world.newest()?;
            let complete = newest.members.len() == ranks && newest.generation > generation;
            let trains = newest.steps.load(Ordering::Acquire) >= 1;
            (complete && trains).then_some(newest)
        })
    }

    /// Measures undisturbed training.
    fn train(&self) {
        let before = self.world.network.traffic();
        self.world.kernel.sleep(WINDOW);
        let sent = self.world.network.traffic().since(&before);
        lock(&self.report).add_window(sent, WINDOW);
    }

    fn one_fault(&self, number: usize) -> Result<(), String> {
        let more = self.world.kernel.random_below(500_000_000);
        self.world.kernel.sleep(Duration::from_nanos(more));
        self.train();
        let before = self.world.newest().ok_or("no group trains")?;
        self.world.server.take_longest_queue();
        let fault = self.draw();
        let lost = self.lost_of(&fault);
        let incarnations: Vec<(usize, u64)> = lost
            .iter()
            .map(|slot| (*slot, self.world.incarnation_of(*slot)))
            .collect();
        let began = self.now();
        self.inject(&fault);
        let mut outcome = FaultOutcome {
            fault,
            resolved: None,
            members: 0,
            wrong: None,
            complete: None,
            longest_queue: Duration::ZERO,
        };
        match lost.is_empty() {
            true => self.must_not_regroup(&before, began, &mut outcome),
            false => self.must_regroup(&before, began, &incarnations, &mut outcome),
        }
        if outcome.resolved.is_some() {
            let after = match lost.is_empty() {
                true => before.generation - 1,
                false => before.generation,
            };
            let complete = self.wait_complete(COMPLETES, after);
            outcome.complete = complete.map(|_| self.now() - began);
        }
        outcome.longest_queue = self.world.server.take_longest_queue();
        let stuck = outcome.resolved.is_none() || outcome.complete.is_none();
        let text = outcome.fault.to_string();
        lock(&self.report).faults.push(outcome);
        match stuck {
            true => Err(format!(
                "fault {number} ({text}) was not resolved: {}",
                self.state()
            )),
            false => Ok(()),
        }
    }

    fn state(&self) -> String {
        let newest = self.world.newest();
        newest.map_or("no group".to_owned(), |newest| {
            format!(
                "generation {} has {} members and has made {} steps; the store has {} keys",
                newest.generation,
                newest.members.len(),
                newest.steps.load(Ordering::Acquire),
                self.world.server.keys()
            )
        })
    }

    fn draw(&self) -> Fault {
        let kernel = &self.world.kernel;
        let ranks = self.world.settings.ranks as u64;
        let rank = || kernel.random_below(ranks) as usize;
        let seconds = |from: u64, more: u64| {
            Duration::from_millis(1000 * from + kernel.random_below(1000 * more))
        };
        match kernel.random_below(10) {
            0..3 => Fault::Killed(vec![rank()]),
            3 => {
                let count = 2 + kernel.random_below(6);
                let mut several: Vec<usize> = (0..count).map(|_| rank()).collect();
                several.sort_unstable();
                several.dedup();
                Fault::Killed(several)
            }
            4..6 => Fault::Stopped(rank(), seconds(3, 10)),
            6..9 => {
                // Machine 0 has the store.
                let machines = self.world.machines.len() as u64 - 1;
                let machine = 1 + kernel.random_below(machines) as usize;
                Fault::CutOff(machine, seconds(4, 4))
            }
            _ => Fault::Slow(rank(), seconds(2, 3)),
        }
    }

    fn lost_of(&self, fault: &Fault) -> Vec<usize> {
        match fault {
            Fault::Killed(ranks) => ranks.clone(),
            Fault::Stopped(rank, _) => vec![*rank],
            Fault::CutOff(machine, _) => self.world.slots_of(*machine).collect(),
            Fault::Slow(..) => Vec::new(),
        }
    }

    fn inject(&self, fault: &Fault) {
        let kernel = &self.world.kernel;
        match fault {
            Fault::Killed(ranks) => ranks.iter().for_each(|rank| self.world.kill(*rank)),
            Fault::Stopped(rank, time) => {
                let Some(process) = self.world.process_of(*rank) else {
                    return;
                };
                kernel.set_stopped(process, true);
                kernel.after(
                    *time,
                    Box::new(move |kernel| kernel.set_stopped(process, false)),
                );
            }
            Fault::CutOff(machine, time) => {
                let (network, machine) = (self.world.network.clone(), *machine);
                network.set_cut(kernel, machine, true);
                let plugged = move |kernel: &Arc<_>| network.set_cut(kernel, machine, false);
                kernel.after(*time, Box::new(plugged));
            }
            Fault::Slow(rank, time) => self.world.slow_down(*rank, *time),
        }
    }

    /// The first generation that makes a step must have all members but the lost processes.
    fn must_regroup(
        &self,
        before: &Mesh,
        began: Duration,
        lost: &[(usize, u64)],
        outcome: &mut FaultOutcome,
    ) {
        let first = self.wait(RESOLVES, || {
            let after = self.world.after(before.generation);
            let made = |mesh: &Arc<Mesh>| mesh.steps.load(Ordering::Acquire) > 0;
            after.into_iter().find(made)
        });
        let Some(mesh) = first else { return };
        let made = Duration::from_nanos(mesh.first_made.load(Ordering::Acquire));
        outcome.resolved = Some(made - began);
        outcome.members = mesh.members.len();
        let has = |slot: usize| mesh.members.iter().any(|member| member.0 == slot);
        let survivors = before.members.iter().map(|member| member.0);
        let missing = survivors.filter(|slot| !lost.iter().any(|it| it.0 == *slot) && !has(*slot));
        let missing: Vec<usize> = missing.collect();
        let dead = lost.iter().filter(|it| mesh.members.contains(it));
        let dead: Vec<usize> = dead.map(|it| it.0).collect();
        if !missing.is_empty() || !dead.is_empty() {
            outcome.wrong = Some(format!("without {missing:?}, with the lost {dead:?}"));
        }
    }

    /// Steps continue, and nobody regroups.
    fn must_not_regroup(&self, before: &Mesh, began: Duration, outcome: &mut FaultOutcome) {
        let steps = before.steps.load(Ordering::Acquire);
        let made = || (before.steps.load(Ordering::Acquire) > steps + 1).then_some(());
        if self.wait(RESOLVES, made).is_some() {
            outcome.resolved = Some(self.now() - began);
        }
        self.world.kernel.sleep(Duration::from_secs(3));
        outcome.members = before.members.len();
        if let Some(other) = self.world.after(before.generation).first() {
            outcome.wrong = Some(format!("generation {} has formed", other.generation));
        }
    }

    /// The job ends in order.
    fn finish(&self) -> Result<(), String> {
        self.world.end_job();
        let ended = || {
            let ranks = 0..self.world.settings.ranks;
            let mut processes = ranks.filter_map(|slot| self.world.process_of(slot));
            let all = processes.all(|process| !self.world.kernel.is_alive(process));
            all.then_some(())
        };
        let ended = self.wait(ENDS, ended);
        ended.ok_or_else(|| format!("the job has not ended in {ENDS:?}: {}", self.state()))
    }
}

impl Report {
    fn add_window(&mut self, sent: Traffic, time: Duration) {
        self.trained += time;
        for (sum, sent) in self.training.messages.iter_mut().zip(sent.messages) {
            *sum += sent;
        }
        self.training.bytes += sent.bytes;
        self.busiest = self.busiest.max(sent.total() as f64 / time.as_secs_f64());
    }
}
