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
    match local_rank {
        Some(local_rank) if local_rank >= limit => Err(RankEnvironmentError::Invalid {
            name: v::LOCAL_RANK,
            value: local_rank.to_string(),
            expected: format!("below {name}, which is {limit}"),
        }),
        _ => Ok((local_rank.unwrap_or(rank), here.unwrap_or(world_size))),
    }
}
