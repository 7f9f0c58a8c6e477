//! The ranks that a rank trains with.

use std::sync::Arc;

use crate::prelude::ProcessGroup;
use everburn_collectives::heartbeat::HeartbeatMonitor;
use everburn_collectives::store::SharedStore;
use everburn_launch::RankEnvironment;
use everburn_train::{ElasticGroup, Regroup};

use crate::config::RunConfig;
use crate::error::CliError;
use crate::{elastic, rank};

/// The ranks that this one has met.
pub(super) struct Joined {
    pub(super) group: ProcessGroup,
    pub(super) elastic: Option<Arc<ElasticGroup>>,
    pub(super) heartbeat: Option<HeartbeatMonitor>,
    /// What the job's ranks meet at.
    pub(super) store: SharedStore,
}

pub(super) fn join(config: &RunConfig, environment: &RankEnvironment) -> Result<Joined, CliError> {
    let Some(range) = config.ranks.elastic else {
        let (group, heartbeat, store) = rank::join_with_heartbeat(environment, &config.ranks)?;
        return Ok(Joined {
            group,
            elastic: None,
            heartbeat,
            store,
        });
    };
    let elastic = elastic::join(environment, config, range)?;
    Ok(Joined {
        group: elastic.group(),
        store: elastic.store(),
        elastic: Some(elastic),
        heartbeat: None,
    })
}
