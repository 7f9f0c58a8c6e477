//! What is done to a training from outside, and undone.

use std::fmt;
use std::time::{Duration, Instant};

use everburn_record::{Live, LiveRank};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{STOPS_WITHIN, Training};
use crate::commands::ToolError;
use crate::commands::soak::minutes::cluster::Cluster;
use crate::commands::soak::plan::{Fault, Kind};

/// How long a frozen rank does not run: less than it takes to be counted as stopped.
const FROZEN: Duration = Duration::from_millis(800);

/// How long a link is lost where nobody is to be lost for it.
const LOST_LINK: Duration = Duration::from_secs(1);

/// How long a link is slow.
const SLOW: Duration = Duration::from_secs(5);

/// How long a disk is full: a checkpoint is due once per minute.
const FULL: Duration = Duration::from_secs(65);

/// How long a link is lost that costs the machine its place. Its heartbeats are missing for a timeout; the others wait as
/// long again, but 2 to 10 s; and they have some seconds to continue without it.
fn cut_off_for(heartbeat_timeout: u64) -> Duration {
    Duration::from_secs(heartbeat_timeout + heartbeat_timeout.clamp(2, 10) + 4)
}

/// Whom a fault has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Rank(usize),
    Machine(usize),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Machine(machine) => write!(f, "machine {machine}"),
        }
    }
}

/// A fault that has happened.
#[derive(Debug)]
pub(in crate::commands::soak::minutes) struct InjectedFault {
    kind: Kind,
    /// Since the first steps.
    seconds: f64,
    /// Nobody, where no rank was there.
    target: Option<Target>,
}

impl InjectedFault {
    pub(in crate::commands::soak::minutes) fn to_json(&self) -> Value {
        let mut json = json!({"seconds": self.seconds, "kind": self.kind.to_string()});
        match self.target {
            Some(Target::Rank(rank)) => json["rank"] = json!(rank),
            Some(Target::Machine(machine)) => json["machine"] = json!(machine),
            None => {}
        }
        json
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// A rank does not run.
    Frozen(Pid),
    /// The link of this machine is lost.
    LinkLost(usize),
    /// The link of this machine is slow.
    LinkSlow(usize),
    /// The disk of this machine is full.
    DiskFull(usize),
}

impl Effect {
    fn machine(self) -> Option<usize> {
        match self {
            Self::Frozen(_) => None,
            Self::LinkLost(machine) | Self::LinkSlow(machine) | Self::DiskFull(machine) => {
                Some(machine)
            }
        }
    }
}

/// A fault that is undone later.
#[derive(Debug)]
pub(super) struct Lasting {
    effect: Effect,
    until: Instant,
}

impl Training<'_> {
    /// Lets a fault happen. What may cost a machine its place waits until all machines take part, so that one of them always
    /// has the state of the training.
    pub(super) fn inject(
        &mut self,
        fault: &Fault<Duration>,
        begin: Instant,
    ) -> Result<(), ToolError> {
        let options = self.setup.soak.options;
        // The only rank of a machine is the machine.
        let is_last = options.machines > 1 && options.ranks == options.machines;
        if fault.kind.takes_a_machine() || is_last {
            self.wait_for("a machine does not come back after a fault", |training| {
                training.all_take_part().then_some(())
            })?;
        }
        let live = self.newest().unwrap_or_default();
        let target = match fault.kind {
            Kind::Kill | Kind::Stall | Kind::Drop(_) | Kind::Freeze => {
                self.signal_rank(fault, &live)
            }
            Kind::Machine | Kind::Cut | Kind::LostLink | Kind::Slow | Kind::Disk => {
                Some(Target::Machine(self.take_machine(fault)?))
            }
        };
        match target {
            Some(target) => say!("  step {}: {} {target}", live.step, fault.kind),
            None => say!("  step {}: no rank is known to be there", live.step),
        }
        self.injected.push(InjectedFault {
            kind: fault.kind,
            seconds: begin.elapsed().as_secs_f64(),
            target,
        });
        Ok(())
    }

    fn signal_rank(&mut self, fault: &Fault<Duration>, live: &Live) -> Option<Target> {
        let alive: Vec<&LiveRank> = live.ranks.iter().filter(|rank| rank.alive).collect();
        let rank = alive.get(fault.rank as usize % alive.len().max(1))?;
        let process = Pid::from_raw(i32::try_from(rank.pid?).ok()?)?;
        let signal = match fault.kind {
            Kind::Stall | Kind::Freeze => Signal::STOP,
            _ => Signal::KILL,
        };
        // A rank that has gone by itself, such as one whose launcher was killed, is no error.
        let _ = kill_process(process, signal);
        if fault.kind == Kind::Freeze {
            self.undo_after(Effect::Frozen(process), FROZEN);
        }
        Some(Target::Rank(rank.rank))
    }

    /// The machine that a fault has met.
    fn take_machine(&mut self, fault: &Fault<Duration>) -> Result<usize, ToolError> {
        let drawn = fault.rank as usize % self.machines.len();
        let machine = match fault.kind {
            // Checkpoints are written where the training is recorded.
            Kind::Disk => self.recorder().map_or(drawn, |(machine, _)| machine),
            _ => drawn,
        };
        let setup = self.setup;
        let link = |change: fn(&Cluster, usize) -> Result<(), ToolError>| {
            let cluster = setup.cluster.as_ref();
            cluster.map_or(Ok(()), |cluster| change(cluster, machine))
        };
        match fault.kind {
            Kind::Cut | Kind::LostLink => {
                link(Cluster::cut)?;
                let length = match fault.kind {
                    Kind::Cut => cut_off_for(setup.soak.options.heartbeat_timeout),
                    _ => LOST_LINK,
                };
                self.undo_after(Effect::LinkLost(machine), length);
                self.take(machine);
            }
            Kind::Slow => {
                link(Cluster::slow_down)?;
                self.undo_after(Effect::LinkSlow(machine), SLOW);
                self.take(machine);
            }
            Kind::Disk => {
                setup.disks.fill(machine)?;
                self.undo_after(Effect::DiskFull(machine), FULL);
            }
            _ => {
                if let Some(launcher) = self.machines[machine].launcher.take() {
                    launcher.kill();
                    launcher.wait(STOPS_WITHIN)?;
                    self.start_later(machine);
                }
            }
        }
        Ok(machine)
    }

    /// Has `effect` undone after `length`; one that lasts already lasts longer.
    fn undo_after(&mut self, effect: Effect, length: Duration) {
        let until = Instant::now() + length;
        self.lasting.retain(|lasting| lasting.effect != effect);
        self.lasting.push(Lasting { effect, until });
    }

    /// Undoes what has lasted until `now`, or all of it.
    pub(super) fn undo_until(&mut self, now: Option<Instant>) -> Result<(), ToolError> {
        let (due, later) = std::mem::take(&mut self.lasting)
            .into_iter()
            .partition(|lasting| now.is_none_or(|now| lasting.until <= now));
        self.lasting = later;
        for Lasting { effect, .. } in due {
            self.undo(effect)?;
        }
        Ok(())
    }

    fn undo(&mut self, effect: Effect) -> Result<(), ToolError> {
        let setup = self.setup;
        match (effect, &setup.cluster) {
            (Effect::Frozen(process), _) => {
                // It may have been killed meanwhile.
                let _ = kill_process(process, Signal::CONT);
            }
            (Effect::DiskFull(machine), _) => {
                setup.disks.make_room(machine)?;
                self.take(machine);
            }
            (Effect::LinkLost(machine), Some(cluster)) => {
                cluster.restore(machine)?;
                self.take(machine);
            }
            (Effect::LinkSlow(machine), Some(cluster)) => {
                cluster.speed_up(machine)?;
                self.take(machine);
            }
            // Without a cluster no link was lost.
            (Effect::LinkLost(_) | Effect::LinkSlow(_), None) => {}
        }
        Ok(())
    }

    /// Whether the link of a machine is lost now.
    pub(super) fn is_cut_off(&self, machine: usize) -> bool {
        let mut lasting = self.lasting.iter();
        lasting.any(|lasting| lasting.effect == Effect::LinkLost(machine))
    }

    /// Whether a fault of a machine lasts.
    pub(super) fn has_fault(&self, machine: usize) -> bool {
        let mut lasting = self.lasting.iter();
        lasting.any(|lasting| lasting.effect.machine() == Some(machine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_lasts_longer_than_the_others_wait_for_the_machine() {
        let seconds = [1, 3, 30].map(|timeout| cut_off_for(timeout).as_secs());
        assert_eq!(seconds, [7, 10, 44]);
    }

    #[test]
    fn the_record_says_whom_a_fault_has_met() {
        let json = |kind, target| {
            let seconds = 1.5;
            InjectedFault {
                kind,
                seconds,
                target,
            }
            .to_json()
        };
        let met = json(Kind::Kill, Some(Target::Rank(3)));
        assert_eq!(met, json!({"seconds": 1.5, "kind": "kill", "rank": 3}));
        let met = json(Kind::LostLink, Some(Target::Machine(1)));
        let expected = json!({"seconds": 1.5, "kind": "lost-link", "machine": 1});
        assert_eq!(met, expected);
        let met = json(Kind::Freeze, None);
        assert_eq!(met, json!({"seconds": 1.5, "kind": "freeze"}));
    }

    #[test]
    fn the_faults_of_a_machine_are_those_of_its_link_and_disk() {
        let process = Pid::from_raw(7).unwrap();
        assert_eq!(Effect::Frozen(process).machine(), None);
        for effect in [
            Effect::LinkLost(1),
            Effect::LinkSlow(1),
            Effect::DiskFull(1),
        ] {
            assert_eq!(effect.machine(), Some(1));
        }
    }
}
