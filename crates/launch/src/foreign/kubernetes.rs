//! Ranks that are the pods of a Kubernetes job with `completionMode: Indexed`.
//!
//! A pod has its index; how many there are, and the name of the service that gives pods theirs, only the
//! manifest does. So an index alone makes no rank: pods may well train a model each.

use everburn_collectives::rendezvous::Variables;

use super::{Claim, Derived, EnvNumber, first_number};
use crate::environment::variables as v;
use crate::error::RankEnvironmentError;
use crate::origin::StartedBy;

const INDEX: &str = "JOB_COMPLETION_INDEX";

/// The port that PyTorch's own launchers take; a pod has all ports to itself.
const PORT: u16 = 29_500;

pub(super) fn claim(env: &Variables<'_>) -> Result<Option<Claim>, RankEnvironmentError> {
    let Some(rank) = first_number(env, &[INDEX])? else {
        return Ok(None);
    };
    let one = |name| Some(EnvNumber { name, value: 0 });
    match first_number(env, &[v::WORLD_SIZE])? {
        Some(world_size) => Ok(Some(Claim {
            started_by: StartedBy::Kubernetes,
            rank,
            world_size,
            local_rank: one(INDEX),
            local_world_size: Some(1),
            node_rank: Some(rank.value),
        })),
        None if env.text(v::MASTER_ADDR).is_some() => Err(RankEnvironmentError::Incomplete {
            found: env.set_among(&[INDEX, v::MASTER_ADDR, v::MASTER_PORT]),
            missing: vec![v::WORLD_SIZE.into()],
            advice: "set it to the job's `completions` under `env` of the container".into(),
        }),
        None => Ok(None),
    }
}

pub(super) fn master(env: &Variables<'_>) -> Result<Derived<String>, RankEnvironmentError> {
    Err(RankEnvironmentError::Incomplete {
        found: env.set_among(&[INDEX, v::WORLD_SIZE]),
        missing: vec![v::MASTER_ADDR.into()],
        advice: "set it to the name of pod 0 under the job's headless service, \
                 `<job>-0.<service>`, under `env` of the container"
            .into(),
    })
}

pub(super) fn port() -> Derived<u16> {
    Derived {
        value: PORT,
        from: format!("port {PORT}, as a pod has all ports to itself"),
    }
}
