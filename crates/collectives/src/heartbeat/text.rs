//! The text of a hang report.

use std::fmt;
use std::time::Duration;

use super::report::{Evidence, HangReport, RankActivity};
use super::thread::did_not_run;
use crate::group::{FlightEntry, ranks};

/// Of a machine that is silent as a whole: no rank of it ends while nobody ends it.
const LAUNCHER_TOO: &str = "; if its launcher is stopped as well, continue or end that first";

impl fmt::Display for HangReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.own_pause, self.stalled_activity()) {
            (Some(pause), _) => {
                write!(f, "rank {} itself {}", self.reporter, did_not_run(pause))?;
                for stopped in self.ranks.iter().filter(|it| it.stopped) {
                    write!(f, "; {} {}", stopped.name(), stopped.was_stopped())?;
                }
            }
            (None, Some(activity)) => self.write_diagnosis(f, activity)?,
            (None, None) => write!(
                f,
                "a rank stalled, but which one is unknown: no rank reports which rank it waits for"
            )?,
        }
        write!(
            f,
            "\nwhat each rank was doing, as rank {} sees it:",
            self.reporter
        )?;
        for activity in &self.ranks {
            write!(f, "\n  {activity}")?;
        }
        if self.others > 0 {
            let (asked, others) = (self.ranks.len(), self.others);
            write!(
                f,
                "\n  {others} more ranks: not asked; the {asked} above are ranks that others wait for, and a sample"
            )?;
        }
        // That of another rank.
        let Some(path) = self.log.as_ref().filter(|_| self.own_pause.is_none()) else {
            return Ok(());
        };
        let rank = self.stalled.unwrap_or_default();
        match &self.lines {
            Ok(lines) => {
                write!(
                    f,
                    "\nthe last lines of rank {rank}'s log, {}:",
                    path.display()
                )?;
                for line in lines {
                    write!(f, "\n  | {line}")?;
                }
                match lines.is_empty() {
                    true => write!(f, "\n  (empty: it has written nothing)"),
                    false => Ok(()),
                }
            }
            Err(reason) => write!(f, "\nthe log of rank {rank}, {reason}"),
        }
    }
}

impl HangReport {
    /// The stalled rank as the job counts: its member number.
    #[must_use]
    pub fn stalled_member(&self) -> Option<usize> {
        let stalled = match self.own_pause {
            Some(_) => self.ranks.iter().find(|it| it.rank == self.reporter),
            None => self.stalled_activity(),
        };
        stalled.map(|activity| activity.member)
    }

    /// That the stalled rank waited for others itself, and in which other operation.
    #[must_use]
    pub fn waits_itself(&self) -> Option<String> {
        let (stalled, entry) = (self.stalled_activity()?, self.waits_itself.as_ref()?);
        let (name, whom) = (stalled.name(), ranks(&entry.waiting_for));
        Some(format!(
            "{name} waited for {whom} itself, in {}",
            entry.operation
        ))
    }

    pub(super) fn stalled_activity(&self) -> Option<&RankActivity> {
        self.ranks.iter().find(|it| Some(it.rank) == self.stalled)
    }

    /// The same while the wait is not over yet, in one line: it has taken `waited`, and how it `ends`.
    pub(super) fn while_waiting(&self, waited: Duration, ends: &str) -> Option<String> {
        let stalled = self.stalled_activity()?;
        let wanted = self.wanted.as_ref()?;
        let process = stalled.process_in_brackets();
        let beats = match (stalled.stopped, stalled.alive) {
            (true, _) => format!("it {}", stalled.is_stopped()),
            (false, true) => format!(
                "its heartbeats arrive, so it is busy or stuck in other work: look at its log, or {}",
                stalled.look_inside()
            ),
            (false, false) => "it sends no heartbeats".to_owned(),
        };
        Some(format!(
            "rank {} has waited {:.0} s for {}{process} in {}, step {}: {beats}; {ends}",
            self.reporter,
            waited.as_secs_f64(),
            stalled.name(),
            wanted.operation_of_group(),
            wanted.step
        ))
    }

    fn write_diagnosis(&self, f: &mut fmt::Formatter<'_>, stalled: &RankActivity) -> fmt::Result {
        let it = match &self.machine {
            Some(machine) => {
                write!(f, "{machine} stalled")?;
                stalled.name()
            }
            None => {
                write!(f, "{} stalled", stalled.name())?;
                "it".to_owned()
            }
        };
        match &self.wanted {
            Some(wanted) => {
                let mut call = wanted.operation.clone();
                if wanted.collective {
                    call += &format!(" ({})", wanted.number());
                }
                write!(f, " at step {}: {it} ", wanted.step)?;
                match self.late {
                    Some(late) => self.write_late(f, wanted, &call, late)?,
                    None => {
                        let called = match self.has_called {
                            Some(true) => "is stuck in",
                            Some(false) => "has not called",
                            None => "has not completed",
                        };
                        let waiting = ranks(&self.waiting);
                        write!(f, "{called} {call}, in which {waiting} waited for it")?;
                        if let Some(itself) = self.waits_itself() {
                            write!(f, ", and {itself}")?;
                        }
                    }
                }
            }
            None => write!(f, ": others waited for it")?,
        }
        self.write_state(f, stalled)
    }

    /// That the stalled rank came to `call` after all, `late` after the others had given it up.
    fn write_late(
        &self,
        f: &mut fmt::Formatter<'_>,
        wanted: &FlightEntry,
        call: &str,
        late: Duration,
    ) -> fmt::Result {
        let ended = wanted.ended.unwrap_or_default();
        let waited = wanted.began.saturating_sub(ended);
        let passed = match self.timeout.filter(|timeout| waited >= *timeout) {
            Some(timeout) => format!(
                "after `GroupOptions::timeout` ({} s) had passed",
                timeout.as_secs_f64()
            ),
            None => "after they had given it up".to_owned(),
        };
        write!(
            f,
            "came to {call} {:.1} s after {}, and {:.1} s {passed}: raise `GroupOptions::timeout` if steps may take so long, or \
             look at what it did in step {}",
            waited.saturating_add(late).as_secs_f64(),
            ranks(&self.waiting),
            late.as_secs_f64(),
            wanted.step,
        )
    }

    /// What to do where the stalled rank was only slow.
    fn longer_steps(&self) -> String {
        let timeout = self.timeout.map(|timeout| timeout.as_secs_f64());
        timeout.map_or(String::new(), |timeout| {
            format!(
                "; where a step may take longer than {timeout} s, raise `GroupOptions::timeout`"
            )
        })
    }

    /// Whether the stalled rank still beats, and what to check.
    fn write_state(&self, f: &mut fmt::Formatter<'_>, stalled: &RankActivity) -> fmt::Result {
        let process = stalled.process_in_brackets();
        let state = match (stalled.evidence, stalled.alive) {
            (Evidence::Answer, _) => {
                "it has answered since, so it was busy with other work for too long".to_owned()
            }
            _ if stalled.stopped => {
                let launcher = self.machine.as_ref().map_or("", |_| LAUNCHER_TOO);
                format!("it {}{launcher}", stalled.was_stopped())
            }
            _ if self.store_silent_for.is_some() => {
                let silence = self.store_silent_for.unwrap_or_default().as_secs_f64();
                format!(
                    "whether it still beats is not known, nor which rank stalled first: the store has not answered for \
                     {silence:.1} s; check first whether the machine and the process that serve the store (without \
                     etcd, machine 0 and its launcher) are stopped, swapped out or cut off, then its process{process}"
                )
            }
            (_, true) => {
                format!(
                    "its heartbeats arrive, so it is busy or stuck in other work (an endless loop, a slow or full \
                     disk): look at its log, or {}{}",
                    stalled.look_inside(),
                    self.longer_steps()
                )
            }
            (_, false) => {
                let since = match stalled.silent_for {
                    Some(silence) => format!(" for {:.1} s", silence.as_secs_f64()),
                    None => String::new(),
                };
                match &self.machine {
                    Some(_) => format!(
                        "no heartbeat{since}, nor one of any other rank of that machine: check whether the machine still \
                         runs and is reachable, and whether its launcher and all its ranks{process} are stopped (SIGSTOP){LAUNCHER_TOO}"
                    ),
                    None => format!(
                        "no heartbeat{since}: check whether its process{process} is stopped (SIGSTOP, a debugger) or \
                         swapped out, and whether its machine still runs"
                    ),
                }
            }
        };
        write!(f, "\n  {state}")?;
        let is_silent_too = |it: &&RankActivity| {
            // Of a rank without beats, or one that this rank does not watch, nothing is known.
            let is_named = match &self.machine {
                Some(machine) => machine.ranks.contains(&it.rank),
                None => it.rank == stalled.rank,
            };
            !it.alive && it.silent_for.is_some() && !is_named && !stalled.alive
        };
        let silent = self.ranks.iter().filter(is_silent_too);
        let silent: Vec<usize> = silent.map(|it| it.rank).collect();
        match silent[..] {
            [] => Ok(()),
            [_] => write!(f, "\n  {} sends no heartbeats either", ranks(&silent)),
            _ => write!(f, "\n  {} send no heartbeats either", ranks(&silent)),
        }
    }
}

impl RankActivity {
    /// Whether all that is known is the last beat of a rank that sends none any more.
    fn is_stale(&self) -> bool {
        self.evidence == Evidence::Beat && (self.stopped || !self.alive)
    }

    fn process(&self) -> Option<String> {
        process_of(self.pid, self.host.as_deref())
    }

    /// ` (pid 4711 on node07)`, where it is known.
    fn process_in_brackets(&self) -> String {
        let process = self.process();
        process.map_or(String::new(), |process| format!(" ({process})"))
    }

    /// ` on node07`, where it is known.
    fn on_host(&self) -> String {
        let host = self.host.as_ref();
        host.map_or(String::new(), |host| format!(" on {host}"))
    }

    /// How to see what a process does that runs.
    fn look_inside(&self) -> String {
        let Some(pid) = self.pid else {
            return "attach a debugger to its process".to_owned();
        };
        let host = self.on_host();
        format!(
            "at its threads: `gdb --pid {pid} --batch -ex \"thread apply all backtrace\"`{host}"
        )
    }

    /// What is said of one whose process is stopped, and what to do.
    fn is_stopped(&self) -> String {
        let process = self.pid.map_or(String::new(), |pid| format!(" {pid}"));
        let host = self.on_host();
        format!(
            "is stopped (SIGSTOP; `ps` shows the state T): continue it with `kill -CONT{process}`{host}, and find what has \
             stopped it"
        )
    }

    /// The same where nobody waits for it any more: a launcher ends it with the job.
    fn was_stopped(&self) -> String {
        let process = self.process();
        let process = process.map_or(String::new(), |process| format!(", {process}"));
        format!(
            "was stopped (SIGSTOP{process}), and the others have given it up: find what has stopped it; a launcher ends it, and one \
             that was started by hand stays stopped until it is killed"
        )
    }

    fn name(&self) -> String {
        name_of(self.rank, self.member)
    }
}

/// `pid 4711 on node07`
pub(super) fn process_of(pid: Option<u32>, host: Option<&str>) -> Option<String> {
    let pid = pid?;
    Some(match host {
        Some(host) => format!("pid {pid} on {host}"),
        None => format!("pid {pid}"),
    })
}

/// `rank 3`, in an elastic run with its slot where that has another number.
pub(super) fn name_of(rank: usize, member: usize) -> String {
    match member == rank {
        true => format!("rank {rank}"),
        false => format!("rank {rank} (slot {member})"),
    }
}

impl fmt::Display for RankActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self.evidence {
            Evidence::Unreadable => return write!(f, "its report is unreadable"),
            Evidence::Nothing | Evidence::NotAsked => return write!(f, "it has published nothing"),
            Evidence::Answer | Evidence::Beat => {}
        }
        match (self.evidence, self.silent_for) {
            (Evidence::Beat, Some(silence)) => {
                write!(f, "in its last beat, {:.1} s ago: ", silence.as_secs_f64())?;
            }
            (Evidence::Beat, None) => write!(f, "in its last beat: ")?,
            _ => {}
        }
        if let Some(step) = self.step.filter(|step| *step > 0) {
            write!(f, "at step {step}, ")?;
        }
        match &self.doing {
            Some(entry) if entry.state == crate::group::FlightState::Done => {
                write!(f, "in no operation; its last: {entry}")?;
            }
            Some(entry) if self.is_stale() => entry.without_waits().fmt(f)?,
            Some(entry) => entry.fmt(f)?,
            None => write!(f, "no operation so far")?,
        }
        match self.process() {
            Some(process) => write!(f, "; {process}"),
            None => Ok(()),
        }
    }
}
