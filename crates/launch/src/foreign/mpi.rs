//! Ranks that `mpirun` or `mpiexec` has started. MPI itself is not used.

use everburn_collectives::rendezvous::Variables;

use super::{Claim, Derived, EnvNumber, first_number, port_of_job};
use crate::environment::variables as v;
use crate::error::RankEnvironmentError;
use crate::origin::StartedBy;

/// Where a launcher says what; the first name that is set counts.
struct Names {
    rank: &'static [&'static str],
    world_size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_world_size: &'static [&'static str],
}

/// OMPI_COMM_WORLD_NODE_RANK is a rank among those of this machine, not the machine's number.
const OPEN_MPI: Names = Names {
    rank: &["OMPI_COMM_WORLD_RANK"],
    world_size: &["OMPI_COMM_WORLD_SIZE"],
    local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
    local_world_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
};

const MVAPICH: Names = Names {
    rank: &["MV2_COMM_WORLD_RANK"],
    world_size: &["MV2_COMM_WORLD_SIZE"],
    local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
    local_world_size: &["MV2_COMM_WORLD_LOCAL_SIZE"],
};

/// Hydra and Intel MPI, then Cray PALS.
const PMI: Names = Names {
    rank: &["PMI_RANK"],
    world_size: &["PMI_SIZE", v::WORLD_SIZE],
    local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"],
    local_world_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"],
};

/// PMIx gives the rank by a variable and all else only by its library.
const PMIX: Names = Names {
    rank: &["PMIX_RANK"],
    world_size: &[v::WORLD_SIZE],
    local_rank: &[v::LOCAL_RANK],
    local_world_size: &[v::LOCAL_WORLD_SIZE],
};

/// What a launcher of MPI says.
pub(super) fn claim(
    launcher: StartedBy,
    env: &Variables<'_>,
) -> Result<Option<Claim>, RankEnvironmentError> {
    let names = match launcher {
        StartedBy::OpenMpi => &OPEN_MPI,
        StartedBy::Mvapich => &MVAPICH,
        _ => &PMI,
    };
    read(launcher, names, env)
}

/// What a launcher says that speaks nothing but PMIx. Asked last: Open MPI and Slurm set PMIX_RANK beside
/// their own variables.
pub(super) fn pmix_alone(env: &Variables<'_>) -> Result<Option<Claim>, RankEnvironmentError> {
    read(StartedBy::Pmi, &PMIX, env)
}

fn read(
    launcher: StartedBy,
    names: &Names,
    env: &Variables<'_>,
) -> Result<Option<Claim>, RankEnvironmentError> {
    let rank = first_number(env, names.rank)?;
    let world_size = first_number(env, names.world_size)?;
    let half = |found: EnvNumber, missing: &'static str| RankEnvironmentError::Incomplete {
        found: env.set_among(&[found.name]),
        missing: vec![missing.into()],
        advice: format!(
            "they come together by {launcher}; set {}=none where this is no rank",
            v::LAUNCHER
        ),
    };
    let (rank, world_size) = match (rank, world_size) {
        (Some(rank), Some(world_size)) => (rank, world_size),
        (Some(rank), None) => return Err(half(rank, names.world_size[0])),
        (None, Some(size)) if size.name != v::WORLD_SIZE => return Err(half(size, names.rank[0])),
        (None, _) => return Ok(None),
    };
    let local_world_size = first_number(env, names.local_world_size)?;
    let local_world_size = local_world_size.map(|variable| variable.value);
    Ok(Some(Claim {
        started_by: launcher,
        rank,
        world_size,
        local_rank: first_number(env, names.local_rank)?,
        local_world_size,
        node_rank: (local_world_size == Some(world_size.value)).then_some(0),
    }))
}

/// Only on one machine it is plain where rank 0 is: a host file may name the machines in any order.
pub(super) fn master(claim: &Claim) -> Result<Derived<String>, RankEnvironmentError> {
    if claim.is_on_one_machine() {
        return Ok(Derived {
            value: "127.0.0.1".into(),
            from: "all ranks are on this machine".into(),
        });
    }
    Err(RankEnvironmentError::Incomplete {
        found: found(claim),
        missing: vec![v::MASTER_ADDR.into()],
        advice: format!(
            "{} does not name the machine of rank 0: {}",
            claim.started_by,
            claim.started_by.sets(v::MASTER_ADDR)
        ),
    })
}

/// Open MPI has a name for each job, which all ranks have; Hydra gives none.
pub(super) fn port(
    claim: &Claim,
    env: &Variables<'_>,
) -> Result<Derived<u16>, RankEnvironmentError> {
    const JOB_NAMES: [&str; 2] = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"];
    let known = match claim.started_by {
        StartedBy::OpenMpi => env.first_text(&JOB_NAMES),
        _ => None,
    };
    match known {
        Some((name, job)) => Ok(Derived {
            value: port_of_job(fnv_1a(job.as_bytes())),
            from: format!("a port derived from {name}"),
        }),
        None => Err(RankEnvironmentError::Incomplete {
            found: found(claim),
            missing: vec![v::MASTER_PORT.into()],
            advice: format!(
                "choose a port that is free on the machine of rank 0: {}",
                claim.started_by.sets(v::MASTER_PORT)
            ),
        }),
    }
}

fn found(claim: &Claim) -> Vec<String> {
    let variable = [claim.rank, claim.world_size];
    variable
        .map(|variable| format!("{}={}", variable.name, variable.value))
        .into()
}

/// FNV-1a of 64 bits (Fowler, Noll, Vo): the same number in every process and version, which the standard
/// library's hash does not promise.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
