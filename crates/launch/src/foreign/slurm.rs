//! Ranks that `srun` has started.
//!
//! SLURM_PROCID alone makes no rank. A batch script has it too (it is process 0 of the job, whatever the
//! job's SLURM_NTASKS), and a shell by `salloc` may. What only `srun` sets are the variables of a *step*,
//! so they decide, and the step's number of tasks counts, not the job's.

use everburn_collectives::rendezvous::Variables;

use super::node_list::{count_of, hosts, total_of};
use super::{Claim, Derived, EnvNumber, first_number, port_of_job};
use crate::environment::variables as v;
use crate::error::RankEnvironmentError;
use crate::origin::StartedBy;

const RANK: &str = "SLURM_PROCID";
const STEP_SIZE: &str = "SLURM_STEP_NUM_TASKS";
const SIZES: [&str; 3] = [STEP_SIZE, "SLURM_NTASKS", "SLURM_NPROCS"];
const STEP_IDS: [&str; 2] = ["SLURM_STEP_ID", "SLURM_STEPID"];

/// Any of these: it is a step. The launch node is where `srun` itself runs, often a login node, so its
/// address says nothing of rank 0.
const OF_A_STEP: [&str; 6] = [
    STEP_SIZE,
    STEP_IDS[0],
    STEP_IDS[1],
    NODE_LISTS[0],
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_SRUN_COMM_HOST",
];

const NODE_LISTS: [&str; 3] = [
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
];

const TASKS_PER_NODE: [&str; 2] = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];

/// `named`: the user says that it was Slurm.
pub(super) fn claim(
    env: &Variables<'_>,
    named: bool,
) -> Result<Option<Claim>, RankEnvironmentError> {
    let Some(rank) = first_number(env, &[RANK])? else {
        return Ok(None); // a shell of `salloc`
    };
    let world_size = first_number(env, &SIZES)?;
    if !named && env.first_text(&OF_A_STEP).is_none() {
        let batch_script = env.text("ENVIRONMENT").as_deref() == Some("BATCH");
        let alone = world_size.is_none_or(|size| size.value == 1);
        if batch_script || (alone && rank.value == 0) {
            return Ok(None);
        }
        return Err(RankEnvironmentError::Incomplete {
            found: env.set_among(&[RANK, SIZES[1], SIZES[2]]),
            missing: [STEP_IDS[0], STEP_SIZE, NODE_LISTS[0]]
                .map(Into::into)
                .to_vec(),
            advice: format!(
                "srun sets these for its tasks. If srun started this process and they were lost on the way, set \
                 {0}=slurm; if this process is no task of srun, set {0}=none, or start it by srun",
                v::LAUNCHER
            ),
        });
    }
    let Some(world_size) = world_size else {
        return Err(RankEnvironmentError::Incomplete {
            found: env.set_among(&[RANK]),
            missing: SIZES[..2].iter().map(ToString::to_string).collect(),
            advice: format!("start this by srun, or set {}=none", v::LAUNCHER),
        });
    };
    let node_rank = env.number("SLURM_NODEID")?;
    Ok(Some(Claim {
        started_by: StartedBy::Slurm,
        rank,
        world_size,
        local_rank: first_number(env, &["SLURM_LOCALID"])?,
        local_world_size: tasks_here(env, node_rank, world_size)?,
        node_rank,
    }))
}

/// How many ranks this machine has, if Slurm says so.
fn tasks_here(
    env: &Variables<'_>,
    node: Option<usize>,
    world_size: EnvNumber,
) -> Result<Option<usize>, RankEnvironmentError> {
    if let (Some(node), Some((name, list))) = (node, env.first_text(&TASKS_PER_NODE)) {
        let counts = count_of(&list, node).and_then(|count| Ok((count, total_of(&list)?)));
        let (count, total) = counts.map_err(|expected| RankEnvironmentError::Invalid {
            name,
            value: list.clone(),
            expected,
        })?;
        // Those of the job may be others than those of the step.
        let both_of_the_step = (name, world_size.name) == (TASKS_PER_NODE[0], STEP_SIZE);
        if both_of_the_step && total != world_size.value {
            return Err(RankEnvironmentError::Contradiction {
                found: format!("{name}={list}, {STEP_SIZE}={}", world_size.value),
                advice: format!(
                    "the nodes have {total} tasks together: unset the wrong one; srun sets both"
                ),
            });
        }
        return Ok(count);
    }
    let one_node = nodes(env)?.is_some_and(|(_, hosts)| hosts.len() == 1);
    Ok(one_node.then_some(world_size.value))
}

/// The hosts of the step, and the variable that has them.
fn nodes(env: &Variables<'_>) -> Result<Option<(&'static str, Vec<String>)>, RankEnvironmentError> {
    let Some((name, list)) = env.first_text(&NODE_LISTS) else {
        return Ok(None);
    };
    match hosts(&list) {
        Ok(hosts) => Ok(Some((name, hosts))),
        Err(expected) => Err(RankEnvironmentError::Invalid {
            name,
            value: list,
            expected,
        }),
    }
}

/// Rank 0 runs on the first host, unless the user has dealt out the tasks himself.
pub(super) fn master(env: &Variables<'_>) -> Result<Derived<String>, RankEnvironmentError> {
    let refused = |found: &[&str], why: &str| RankEnvironmentError::Incomplete {
        found: env.set_among(found),
        missing: vec![v::MASTER_ADDR.into()],
        advice: format!("{why}: {}", StartedBy::Slurm.sets(v::MASTER_ADDR)),
    };
    let Some((name, hosts)) = nodes(env)? else {
        return Err(refused(
            &[RANK],
            "SLURM_STEP_NODELIST, which has the host of rank 0, is missing too",
        ));
    };
    if let [_] = hosts.as_slice() {
        return Ok(Derived {
            value: "127.0.0.1".into(),
            from: format!("{name} has one host"),
        });
    }
    let distribution = env.text("SLURM_DISTRIBUTION").unwrap_or_default();
    if distribution.contains("arbitrary") {
        let why = "with an arbitrary distribution rank 0 may be on any host";
        return Err(refused(&[RANK, name, "SLURM_DISTRIBUTION"], why));
    }
    let value = hosts.into_iter().next().unwrap_or_default();
    Ok(Derived {
        value,
        from: format!("the first host of {name}"),
    })
}

/// From job and step, so that all ranks derive the same and steps beside each other differ.
pub(super) fn port(env: &Variables<'_>) -> Result<Derived<u16>, RankEnvironmentError> {
    /// A prime, so that steps of neighbouring jobs fall apart.
    const STEP: u64 = 7_919;
    let (job_name, job) = match first_number(env, &["SLURM_JOB_ID", "SLURM_JOBID"])? {
        Some(variable) => (variable.name, variable.value as u64),
        None => {
            return Err(RankEnvironmentError::Incomplete {
                found: env.set_among(&[RANK]),
                missing: vec![v::MASTER_PORT.into()],
                advice: format!(
                    "SLURM_JOB_ID, from which a port could be derived, is missing too: {}",
                    StartedBy::Slurm.sets(v::MASTER_PORT)
                ),
            });
        }
    };
    let step = first_number(env, &STEP_IDS)?;
    let number = step.map_or(0, |variable| variable.value as u64);
    let from = match step {
        Some(variable) => format!("a port derived from {job_name} and {}", variable.name),
        None => format!("a port derived from {job_name}"),
    };
    Ok(Derived {
        value: port_of_job(job.wrapping_add(number.wrapping_mul(STEP))),
        from,
    })
}
