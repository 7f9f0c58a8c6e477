//! Launchers that are not ours and do not set PyTorch's variables: `mpirun`, `srun`, Kubernetes.
//!
//! Each leaves a [`Claim`]: this process is rank N of M. Where several have left one, the
//! innermost counts, for that is the one which started this process:
//!
//! 1. RANK, by `torchrun`, our launcher or a person, wins over all (`RankEnvironment::from_lookup`, not
//!    here): `srun torchrun ...` starts one `torchrun` a machine, whose SLURM_PROCID is no rank.
//! 2. MPI's variables come before Slurm's: inside of a job `mpirun` starts its helpers by `srun`, and
//!    ranks inherit the helpers' variables. Only where PMI's rank and world size are Slurm's as well was it
//!    `srun --mpi=pmi2`, and Slurm has more.
//! 3. Slurm comes before Kubernetes: there are Slurm clusters in pods, and no pods in Slurm jobs.
//!
//! A claim to be the only rank is none, by RANK too where a person has set it: the process trains as if started by hand,
//! and may launch ranks.
//! `EVERBURN_LAUNCHER` names the claim to take, or `none`.

mod env_variables;
mod kubernetes;
mod mpi;
mod node_list;
mod slurm;

use std::net::IpAddr;
use std::sync::OnceLock;

use everburn_collectives::rendezvous::Variables;

pub(crate) use self::env_variables::Secret;
use self::env_variables::{EnvNumber, first_number};
use crate::environment::{RankEnvironment, check_below, variables as v};
use crate::error::RankEnvironmentError;
use crate::origin::{Origin, StartedBy};

/// The rank that a launcher's variables give this process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claim {
    started_by: StartedBy,
    rank: EnvNumber,
    world_size: EnvNumber,
    local_rank: Option<EnvNumber>,
    local_world_size: Option<usize>,
    node_rank: Option<usize>,
}

impl Claim {
    fn says_the_same_as(&self, other: &Self) -> bool {
        (self.rank.value, self.world_size.value) == (other.rank.value, other.world_size.value)
    }

    fn is_on_one_machine(&self) -> bool {
        self.local_world_size == Some(self.world_size.value)
    }
}

/// A derived part of the store's address, and its source.
struct Derived<T> {
    value: T,
    from: String,
}

/// The rank that a launcher other than ours and `torchrun` has made of this process, if one has.
pub(crate) fn find(env: &Variables<'_>) -> Result<Option<RankEnvironment>, RankEnvironmentError> {
    match claim(env)? {
        Some(claim) if claim.world_size.value > 1 => with_master(&claim, env).map(Some),
        _ => Ok(None),
    }
}

/// The launcher whose only task this process is.
pub(crate) fn only_task(env: &Variables<'_>) -> Option<StartedBy> {
    if let Some(claim) = claim(env).ok()? {
        return (claim.world_size.value == 1).then_some(claim.started_by);
    }
    is_world_of_one(env).then_some(StartedBy::Variables)
}

/// Whether RANK and WORLD_SIZE are those of the only rank.
pub(crate) fn is_world_of_one(env: &Variables<'_>) -> bool {
    let number = |name| env.number(name).ok().flatten();
    (number(v::RANK), number(v::WORLD_SIZE)) == (Some(0), Some(1))
}

/// What a launcher's variables say of this process.
fn claim(env: &Variables<'_>) -> Result<Option<Claim>, RankEnvironmentError> {
    let wanted = match env.text(v::LAUNCHER).as_deref() {
        None => None,
        Some("none") => return Ok(None),
        Some(name) => {
            Some(
                StartedBy::from_name(name).ok_or_else(|| RankEnvironmentError::Invalid {
                    name: v::LAUNCHER,
                    value: name.to_owned(),
                    expected: "one of none, open-mpi, mvapich, pmi, slurm and kubernetes".into(),
                })?,
            )
        }
    };
    let claim = match wanted {
        None => innermost(env)?,
        Some(StartedBy::Slurm) => slurm::claim(env, true)?,
        Some(StartedBy::Kubernetes) => kubernetes::claim(env)?,
        Some(mpi) => mpi::claim(mpi, env)?,
    };
    let Some(claim) = claim else {
        return match wanted {
            Some(_) => Err(RankEnvironmentError::Incomplete {
                found: env.set_among(&[v::LAUNCHER]),
                missing: vec!["what that launcher sets".into()],
                advice: format!("start this by it, or unset {}", v::LAUNCHER),
            }),
            None => no_claim(env),
        };
    };
    check(&claim, env)?;
    Ok(Some(claim))
}

/// A world size without a rank is half of a launcher's variables; without either, nobody launched this.
fn no_claim(env: &Variables<'_>) -> Result<Option<Claim>, RankEnvironmentError> {
    match env.number(v::WORLD_SIZE)? {
        None | Some(0 | 1) => Ok(None),
        Some(_) => Err(RankEnvironmentError::NoRank {
            found: env
                .set_among(&[v::WORLD_SIZE, v::LOCAL_RANK, v::MASTER_ADDR, v::MASTER_PORT])
                .join(", "),
        }),
    }
}

/// The claim of the launcher that started this process, by the order at the top.
fn innermost(env: &Variables<'_>) -> Result<Option<Claim>, RankEnvironmentError> {
    let mut claims = Vec::new();
    for mpi in [StartedBy::OpenMpi, StartedBy::Mvapich, StartedBy::Pmi] {
        claims.extend(mpi::claim(mpi, env)?);
    }
    if let Some(first) = claims.first()
        && let Some(other) = claims.iter().find(|it| !it.says_the_same_as(first))
    {
        return Err(contradiction(
            [first.rank, first.world_size, other.rank, other.world_size],
            "two launchers",
        ));
    }
    match claims.into_iter().next() {
        Some(mpi) if mpi.started_by == StartedBy::Pmi => {
            // What is wrong with Slurm's variables is no concern of a rank that `mpiexec` started.
            let slurm = slurm::claim(env, false).ok().flatten();
            Ok(slurm
                .filter(|slurm| slurm.says_the_same_as(&mpi))
                .or(Some(mpi)))
        }
        Some(mpi) => Ok(Some(mpi)),
        None => match slurm::claim(env, false)? {
            Some(slurm) => Ok(Some(slurm)),
            None => match mpi::pmix_alone(env)? {
                Some(pmix) => Ok(Some(pmix)),
                None => kubernetes::claim(env),
            },
        },
    }
}

fn contradiction(
    variable: impl IntoIterator<Item = EnvNumber>,
    what: &str,
) -> RankEnvironmentError {
    let variable = variable
        .into_iter()
        .map(|it| format!("{}={}", it.name, it.value));
    RankEnvironmentError::Contradiction {
        found: variable.collect::<Vec<_>>().join(", "),
        advice: format!(
            "they seem to be of {what}: unset the wrong ones, or name the launcher in {}",
            v::LAUNCHER
        ),
    }
}

/// Refuses a claim that contradicts itself or PyTorch's variables.
fn check(claim: &Claim, env: &Variables<'_>) -> Result<(), RankEnvironmentError> {
    let below = |lower: EnvNumber, name: &str, upper: usize| {
        check_below((lower.name, lower.value), (name, upper))
    };
    below(claim.rank, claim.world_size.name, claim.world_size.value)?;
    if let (Some(local), Some(size)) = (claim.local_rank, claim.local_world_size) {
        below(local, "the number of ranks of this machine", size)?;
    }
    let torch = [
        (v::WORLD_SIZE, Some(claim.world_size)),
        (v::LOCAL_RANK, claim.local_rank),
    ];
    for (name, variable) in torch {
        if let (Some(value), Some(variable)) = (env.number(name)?, variable)
            && value != variable.value
        {
            return Err(contradiction(
                [EnvNumber { name, value }, variable],
                "different jobs",
            ));
        }
    }
    Ok(())
}

/// Adds where the store is.
fn with_master(
    claim: &Claim,
    env: &Variables<'_>,
) -> Result<RankEnvironment, RankEnvironmentError> {
    let given_port = env.parsed(v::MASTER_PORT, "a port from 1 to 65535", |port| {
        port.parse().ok().filter(|&port: &u16| port > 0)
    })?;
    let address = match env.text(v::MASTER_ADDR) {
        Some(value) => given(value, v::MASTER_ADDR),
        None => match claim.started_by {
            StartedBy::Slurm => slurm::master(env)?,
            StartedBy::Kubernetes => kubernetes::master(env)?,
            _ => mpi::master(claim)?,
        },
    };
    let port = match given_port {
        Some(port) => given(port, v::MASTER_PORT),
        None => match claim.started_by {
            StartedBy::Slurm => slurm::port(env)?,
            StartedBy::Kubernetes => kubernetes::port(),
            _ => mpi::port(claim, env)?,
        },
    };
    let secret = Secret::of(env)?;
    let meeting = format!("{}:{}", address.value, port.value);
    let found = env.set_among(&[claim.rank.name, claim.world_size.name]);
    secret.check(claim.started_by, false, &meeting, &found)?;
    let (rank, world_size) = (claim.rank.value, claim.world_size.value);
    Ok(RankEnvironment {
        rank,
        world_size,
        local_rank: claim.local_rank.map_or(rank, |variable| variable.value),
        local_world_size: claim.local_world_size.unwrap_or(world_size),
        node_rank: claim.node_rank.unwrap_or(0),
        master_addr: address.value,
        master_port: port.value,
        etcd: None,
        launcher_hosts_store: false,
        job_token: secret.job_token,
        open_store: secret.open_store,
        launcher_pid: None,
        error_file: None,
        finished_file: None,
        incarnation: 1,
        elastic: None,
        origin: Origin {
            started_by: claim.started_by,
            variables: [claim.rank.name, claim.world_size.name],
            master: format!("{}; {}", address.from, port.from),
        },
        failed_at: OnceLock::new(),
        present_step: Default::default(),
    })
}

fn given<T>(value: T, name: &str) -> Derived<T> {
    let from = name.to_owned();
    Derived { value, from }
}

/// Refuses a RANK that all tasks of a step of `srun` have inherited from the shell: one of as many ranks as there are
/// tasks, and not this task's.
pub(crate) fn check_left_over(
    env: &Variables<'_>,
    (rank, world_size): (usize, usize),
) -> Result<(), RankEnvironmentError> {
    let claim = slurm::claim(env, false).ok().flatten();
    let claim = claim.filter(|claim| claim.world_size.value == world_size);
    match claim {
        Some(claim) if claim.rank.value != rank => Err(RankEnvironmentError::Contradiction {
            found: format!("RANK={rank}, {}={}", claim.rank.name, claim.rank.value),
            advice: "RANK was set before `srun`, which starts each rank: unset RANK".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Whether a host is this machine by its very name.
pub(crate) fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A port for a job of this number: below those that Linux gives to outgoing connections (32768 and
/// up), above those of services, and none that `torchrun` (29500) takes.
fn port_of_job(number: u64) -> u16 {
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 14_000;
    FIRST + u16::try_from(number % u64::from(COUNT)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
