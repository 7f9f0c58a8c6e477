//! Which process a rank is, and how it was started.

use std::fmt;

use everburn_record::{plain, proc};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::runtime;
use crate::store::random_u64;

/// How much is shown of the name of a machine: the most that Linux allows.
const LONGEST_HOST: usize = 64;

/// A process among those of all machines.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::ProcessIdentity;
///
/// let here = ProcessIdentity::here();
/// assert!(here.to_string().starts_with(&format!("process {}", std::process::id())));
/// assert_ne!(here, ProcessIdentity::here(), "ranks may be threads");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its number on its machine.
    pub id: u32,
    /// The name of its machine, if it has one.
    pub host: Option<String>,
    /// Process numbers repeat on other machines, and names of machines may.
    nonce: u64,
    /// Where its number counts, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    space: Option<String>,
    /// When it was started: its number may come again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
}

impl ProcessIdentity {
    /// This process, another each time.
    #[must_use]
    pub fn here() -> Self {
        let (id, space) = (runtime::process_id(), runtime::process_space());
        Self {
            id,
            host: runtime::host_name(),
            nonce: random_u64(),
            start: space.as_ref().and_then(|_| proc::start_of(id)),
            space,
        }
    }

    /// Whether the process lives; `None` of a process of another machine or container, which this one cannot see.
    #[must_use]
    pub fn is_alive(&self) -> Option<bool> {
        let space = self.space.as_ref()?;
        if runtime::process_space().as_ref() != Some(space) {
            return None;
        }
        let pid = Pid::from_raw(i32::try_from(self.id).ok()?)?;
        // `/proc` may hide processes of other users.
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return Some(false);
        }
        let Some(start) = proc::start_of(self.id) else {
            return Some(true);
        };
        Some(self.start == Some(start) && !proc::has_ended(self.id))
    }

    #[cfg(test)]
    pub(crate) fn of_child(id: u32) -> Self {
        Self {
            id,
            start: proc::start_of(id),
            ..Self::here()
        }
    }

    /// An earlier process with the number of this one.
    #[cfg(test)]
    pub(crate) fn started_before() -> Self {
        let here = Self::here();
        Self {
            start: here.start.map(|start| start - 1),
            ..here
        }
    }

    /// A process that this one cannot see.
    #[cfg(test)]
    pub(crate) fn elsewhere() -> Self {
        Self {
            space: None,
            ..Self::here()
        }
    }
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.id)?;
        match &self.host {
            Some(host) => write!(f, " on {}", plain::line(host, LONGEST_HOST)),
            None => Ok(()),
        }
    }
}

/// A rank as it was started, for comparison with others.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::rendezvous::StartedRank;
///
/// let rank = StartedRank { machine: Some(1), ..StartedRank::here(2, 4) };
/// assert_eq!(rank.place(), "machine 1");
/// assert!(rank.to_string().ends_with(" (machine 1, world size 4)"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRank {
    /// Its number.
    pub rank: usize,
    /// The world size that it was started with.
    pub world_size: usize,
    /// Its process.
    pub process: ProcessIdentity,
    /// The number of its machine, if there are several and it is known.
    pub machine: Option<usize>,
    /// The fewest and the most ranks of its job, if that is elastic.
    pub elastic: Option<(usize, usize)>,
}

impl StartedRank {
    /// This process as `rank` of `world_size`; its machine's number is not known, and its job not elastic.
    #[must_use]
    pub fn here(rank: usize, world_size: usize) -> Self {
        Self {
            rank,
            world_size,
            process: ProcessIdentity::here(),
            machine: None,
            elastic: None,
        }
    }

    /// What a user has started: the machine, if its number is known, or the rank.
    #[must_use]
    pub fn place(&self) -> String {
        match self.machine {
            Some(machine) => format!("machine {machine}"),
            None => format!("rank {}", self.rank),
        }
    }

    /// `rank 2 of machine 1`, as far as the machine is known.
    pub(super) fn located(&self) -> String {
        match self.machine {
            Some(machine) => format!("rank {} of machine {machine}", self.rank),
            None => format!("rank {}", self.rank),
        }
    }

    /// `with LaunchConfig::elastic = 1:2`, or without.
    pub(super) fn elasticity(&self) -> String {
        match self.elastic {
            Some((min, max)) => format!("with `LaunchConfig::elastic = {min}:{max}`"),
            None => "without `LaunchConfig::elastic`".to_owned(),
        }
    }
}

impl fmt::Display for StartedRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.process)?;
        if let Some(machine) = self.machine {
            write!(f, "machine {machine}, ")?;
        }
        write!(f, "world size {})", self.world_size)
    }
}
