//! The rank's side: who am I, where is the store, and where do I report a failure.

use std::path::PathBuf;
use std::sync::OnceLock;

use everburn_auth::JobToken;
use everburn_collectives::rendezvous::{Variables, variable};
use everburn_collectives::store::{EtcdAddress, join_address};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use self::local_rank::check_below;
use self::local_rank::local_place;
use self::present_step::PresentStep;
use self::store_place::StorePlace;
use crate::error::RankEnvironmentError;
use crate::foreign::{self, Secret};
use crate::origin::{Origin, StartedBy};
use crate::orphan;

/// What a launcher (ours, `torchrun`, or a person) passed to this process about its place.
///
/// ```no_run
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{RankEnvironment, ReportKind};
///
/// # fn train() -> Result<(), String> { Ok(()) }
/// if RankEnvironment::is_present() {
///     let rank = RankEnvironment::from_env()?;
///     rank.guard_against_orphaning()?; // first of all
///     rank.report_panics();
///     if let Err(error) = train() {
///         rank.report(ReportKind::Own, None, &error);
///         std::process::exit(1);
///     }
///     rank.report_finished(); // last of all
/// }
/// # Ok::<(), everburn_launch::RankEnvironmentError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankEnvironment {
    /// This rank's number over all machines, 0 to `world_size` - 1.
    pub rank: usize,
    /// How many ranks there are on all machines.
    pub world_size: usize,
    /// This rank's number on its machine.
    pub local_rank: usize,
    /// How many ranks this machine has.
    pub local_world_size: usize,
    /// This machine's number.
    pub node_rank: usize,
    /// The host of the store; of one in etcd, its first member's.
    pub master_addr: String,
    /// The port of the store; of one in etcd, its first member's.
    pub master_port: u16,
    /// Where the store is, if it is in etcd.
    pub etcd: Option<EtcdAddress>,
    /// Whether the launcher hosts the store (else rank 0 has to).
    pub launcher_hosts_store: bool,
    /// The secret of the job; `Debug` does not show it. A world of several ranks has one, unless its store is
    /// open.
    pub job_token: Option<JobToken>,
    /// Whether the store asks for no secret.
    pub open_store: bool,
    /// The process id of our launcher, if it started this rank.
    pub launcher_pid: Option<u32>,
    /// Where this rank reports its error.
    pub error_file: Option<PathBuf>,
    /// Where this rank reports that it has finished.
    pub finished_file: Option<PathBuf>,
    /// Which process of its number this is: 1, or more after restarts.
    pub incarnation: u64,
    /// The fewest and the most ranks of an elastic job; [`rank`](Self::rank) is a slot then.
    pub elastic: Option<(usize, usize)>,
    /// What started this rank.
    pub origin: Origin,
    /// The step at which it failed, once that is known.
    pub(crate) failed_at: OnceLock<u64>,
    /// Where the step is looked up that it is in.
    pub(crate) present_step: PresentStep,
}

impl RankEnvironment {
    /// Whether RANK is set, by our launcher, `torchrun`, or a person: not empty, and not for a world of one rank, as
    /// [`detect`](Self::detect) has it.
    #[must_use]
    pub fn is_present() -> bool {
        Self::is_set(&Variables::of(&variable))
    }

    fn is_set(env: &Variables<'_>) -> bool {
        let launched = [variables::LAUNCHER_PID, variables::TORCHRUN_ID];
        let by_a_launcher = launched.iter().any(|name| env.text(name).is_some());
        env.text(variables::RANK).is_some() && (by_a_launcher || !foreign::is_world_of_one(env))
    }

    /// Finds out whether this process is a rank: by RANK and its companions where that is set, else
    /// by the variables of `srun`, `mpirun` and their kin, or of a Kubernetes job. A world of one rank does not count,
    /// unless it is one of our launcher or of `torchrun`, whose restarts may leave one of several.
    ///
    /// `None`: nobody has started it as one of several ranks. See the documents, docs/launching.md, for
    /// what counts where there are variables of several launchers.
    ///
    /// # Errors
    /// [`RankEnvironmentError`] naming the variables that are there, that are missing, that make no
    /// sense or contradict each other.
    pub fn detect(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, RankEnvironmentError> {
        let env = Variables::of(&lookup);
        match Self::is_set(&env) {
            true => Self::from_lookup(&lookup).map(Some),
            false => foreign::find(&env),
        }
    }

    /// The launcher, `srun` say, whose only task this process is, or [`StartedBy::Variables`] where they say so. Such a
    /// process is no rank: it may train alone, or start ranks.
    pub fn only_task(lookup: impl Fn(&str) -> Option<String>) -> Option<StartedBy> {
        foreign::only_task(&Variables::of(&lookup))
    }

    /// Reads RANK and its companions in the environment of this process.
    ///
    /// # Errors
    /// [`RankEnvironmentError`] naming the variables that are missing or make no sense.
    pub fn from_env() -> Result<Self, RankEnvironmentError> {
        Self::from_lookup(variable)
    }

    /// Reads RANK and its companions through `lookup`, for tests and for other sources.
    ///
    /// # Errors
    /// [`RankEnvironmentError`] naming the variables that are missing or make no sense.
    pub fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, RankEnvironmentError> {
        use variables as v;
        let env = Variables::of(&lookup);
        // A wrong value comes before what is missing: more variables would not make it right.
        let number = |name| -> Result<usize, RankEnvironmentError> {
            let expected = "a number from 0; unset it if it is left over";
            let number = env.parsed(name, expected, |value| value.parse().ok())?;
            Ok(number.unwrap_or(0))
        };
        let (rank, world_size) = (number(v::RANK)?, number(v::WORLD_SIZE)?);
        let place = StorePlace::of(&env, &[v::RANK, v::WORLD_SIZE])?;
        check_below((v::RANK, rank), (v::WORLD_SIZE, world_size))?;
        let (local_rank, local_world_size) = local_place(&env, (rank, world_size))?;
        let launcher_pid =
            env.parsed(v::LAUNCHER_PID, "a process id", |value| value.parse().ok())?;
        let incarnation = env.parsed(v::INCARNATION, "a number from 1", |value| {
            value.parse().ok().filter(|&number| number > 0)
        })?;
        let elastic = elastic_range(&env, world_size)?;
        let started_by = if launcher_pid.is_some() {
            StartedBy::Everburn
        } else if env.text(v::TORCHRUN_ID).is_some() {
            StartedBy::Torchrun
        } else {
            StartedBy::Variables
        };
        if started_by == StartedBy::Variables {
            foreign::check_left_over(&env, (rank, world_size))?;
        }
        let secret = Secret::of(&env)?;
        let launcher_hosts_store = env.flag(v::AGENT_STORE)?;
        if world_size > 1 {
            let torchs =
                started_by == StartedBy::Torchrun && launcher_hosts_store && place.etcd.is_none();
            secret.check(
                started_by,
                torchs,
                &format!("{}:{}", place.host, place.port),
                &env.set_among(&[v::RANK, v::WORLD_SIZE]),
            )?;
        }
        Ok(Self {
            rank,
            world_size,
            local_rank,
            local_world_size,
            node_rank: env.number(v::NODE_RANK)?.unwrap_or(0),
            master_addr: place.host,
            master_port: place.port,
            launcher_hosts_store,
            job_token: secret.job_token,
            open_store: secret.open_store,
            launcher_pid,
            error_file: env.text(v::ERROR_FILE).map(PathBuf::from),
            finished_file: env.text(v::FINISHED_FILE).map(PathBuf::from),
            incarnation: incarnation.unwrap_or(1),
            elastic,
            origin: Origin {
                started_by,
                variables: [v::RANK, v::WORLD_SIZE],
                master: place.from,
            },
            etcd: place.etcd,
            failed_at: OnceLock::new(),
            present_step: PresentStep::default(),
        })
    }

    /// The store's address as `rendezvous` takes it, `tcp://host:port` or `etcd://host:port,..`.
    ///
    /// Pod 0 of a Kubernetes job serves it at all of its addresses: the name by which the others find
    /// it comes a while after the pod, and the others ask again and again.
    #[must_use]
    pub fn init_method(&self) -> String {
        if let Some(address) = &self.etcd {
            return address.to_string();
        }
        let (host, port) = (&self.master_addr, self.master_port);
        let pod_0 = self.rank == 0 && self.origin.started_by == StartedBy::Kubernetes;
        if pod_0 && !foreign::is_loopback(host) {
            return format!("tcp://0.0.0.0:{port}");
        }
        format!("tcp://{}", join_address(host, port))
    }

    /// The launcher that counts and its values, in one line for the user.
    #[must_use]
    pub fn announcement(&self) -> String {
        let Origin {
            started_by,
            variables: [rank, world_size],
            master,
        } = &self.origin;
        let host = match (&self.etcd, self.launcher_hosts_store) {
            (Some(_), _) => "the store in etcd",
            (None, true) => "the launcher's store",
            (None, false) => "the store of rank 0",
        };
        format!(
            "rank {} of {} ({rank}, {world_size}), started by {started_by}; the ranks meet at {}:{} \
             ({master}), {host}",
            self.rank, self.world_size, self.master_addr, self.master_port
        )
    }

    /// Makes this process end when its launcher does, however that ends. Call it first of all, and
    /// before a dashboard changes the terminal. Without our launcher it does nothing.
    ///
    /// On Linux the kernel sends SIGKILL. A rank that owns a terminal, and any rank elsewhere, has
    /// a thread that looks for its launcher five times per second instead; it puts the terminal back
    /// in order before it ends the process.
    ///
    /// # Errors
    /// [`RankEnvironmentError::LauncherGone`] when the launcher has ended already: return from
    /// `main` then.
    pub fn guard_against_orphaning(&self) -> Result<(), RankEnvironmentError> {
        match self.launcher_pid {
            Some(launcher) => orphan::guard(launcher, self.rank),
            None => Ok(()),
        }
    }

    /// What ends all ranks at once, as a second Ctrl-C does, with exit code 130: two signals to the launcher. `None` without
    /// our launcher.
    pub fn kill_job(&self) -> Option<impl Fn() + Send + Sync + 'static> {
        let launcher = Pid::from_raw(self.launcher_pid?.try_into().ok()?)?;
        Some(move || {
            for signal in [Signal::INT, Signal::QUIT] {
                if let Err(error) = kill_process(launcher, signal) {
                    tracing::warn!("the launcher cannot be asked to end the job: {error}");
                }
            }
        })
    }
}

/// The fewest and the most ranks of an elastic job of this many slots.
fn elastic_range(
    env: &Variables<'_>,
    slots: usize,
) -> Result<Option<(usize, usize)>, RankEnvironmentError> {
    let expected = format!("MIN:MAX with 1 <= MIN <= MAX and MAX the WORLD_SIZE, {slots}");
    let range = env.parsed(variables::ELASTIC, &expected, |value| {
        let (min, max) = value.split_once(':')?;
        let (min, max): (usize, usize) = (min.parse().ok()?, max.parse().ok()?);
        (0 < min && min <= max && max == slots).then_some((min, max))
    })?;
    Ok(range)
}

mod local_rank;
mod meeting;
mod present_step;
mod reports;
mod store_place;
pub mod variables;

#[cfg(test)]
mod tests;
