//! The place of a rank on its machine.

use everburn_collectives::rendezvous::Variables;

use super::variables as v;
use crate::error::RankEnvironmentError;

/// LOCAL_RANK and LOCAL_WORLD_SIZE; without them all ranks are on one machine.
pub(super) fn local_place(
    env: &Variables<'_>,
    (rank, world_size): (usize, usize),
) -> Result<(usize, usize), RankEnvironmentError> {
    let local_rank = env.number(v::LOCAL_RANK)?;
    let here = env.number(v::LOCAL_WORLD_SIZE)?;
    let (limit, name) = match here {
        Some(here) => (here, v::LOCAL_WORLD_SIZE),
        None => (world_size, v::WORLD_SIZE),
    };
    if let Some(local_rank) = local_rank {
        check_below((v::LOCAL_RANK, local_rank), (name, limit))?;
    }
    Ok((local_rank.unwrap_or(rank), here.unwrap_or(world_size)))
}

/// Refuses a variable whose number is not below the other one.
pub(crate) fn check_below(
    (name, value): (&'static str, usize),
    (other, limit): (&str, usize),
) -> Result<(), RankEnvironmentError> {
    if value < limit {
        return Ok(());
    }
    Err(RankEnvironmentError::Invalid {
        name,
        value: value.to_string(),
        expected: format!("below {other}, which is {limit}"),
    })
}
