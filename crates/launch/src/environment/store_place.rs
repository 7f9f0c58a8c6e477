//! Where the store of a job is, as the environment has it.

use everburn_collectives::rendezvous::Variables;
use everburn_collectives::store::EtcdAddress;

use super::variables as v;
use crate::error::RankEnvironmentError;

pub(super) struct StorePlace {
    pub(super) etcd: Option<EtcdAddress>,
    /// Of a store in etcd, its first member's.
    pub(super) host: String,
    /// Of a store in etcd, its first member's.
    pub(super) port: u16,
    /// Which variables say so.
    pub(super) from: String,
}

impl StorePlace {
    /// Reads it by the variables, and sees that those of `rank` are there as well.
    pub(super) fn of(env: &Variables<'_>, rank: &[&str]) -> Result<Self, RankEnvironmentError> {
        let etcd = etcd_of(env)?;
        let mut needed = rank.to_vec();
        if etcd.is_none() {
            needed.extend([v::MASTER_ADDR, v::MASTER_PORT]);
        }
        let missing = needed.iter().filter(|name| env.text(name).is_none());
        let missing: Vec<String> = missing.map(|name| (*name).to_owned()).collect();
        if !missing.is_empty() {
            return Err(RankEnvironmentError::Incomplete {
                found: env.set_among(&needed),
                missing,
                advice: "unset RANK and WORLD_SIZE if they are left over, and `LaunchConfig::ranks = N` starts ranks; or set RANK, \
                         WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as a launcher does"
                    .into(),
            });
        }
        if let Some(address) = etcd {
            let (host, port) = address.endpoints()[0].clone();
            return Ok(Self {
                etcd: Some(address),
                host,
                port,
                from: v::STORE.to_owned(),
            });
        }
        // A world of one rank may have a port of the system's choice.
        let alone = env.number(v::WORLD_SIZE)? == Some(1);
        let port = env.parsed(v::MASTER_PORT, "a port from 1 to 65535", |port| {
            port.parse().ok().filter(|&port| port > 0 || alone)
        })?;
        Ok(Self {
            etcd: None,
            host: env.text(v::MASTER_ADDR).unwrap_or_default(),
            port: port.unwrap_or(0),
            from: format!("{}; {}", v::MASTER_ADDR, v::MASTER_PORT),
        })
    }
}

/// The store in etcd, if there is one.
fn etcd_of(env: &Variables<'_>) -> Result<Option<EtcdAddress>, RankEnvironmentError> {
    let Some(text) = env.text(v::STORE) else {
        return Ok(None);
    };
    let parsed = text.parse::<EtcdAddress>();
    parsed
        .map(Some)
        .map_err(|error| RankEnvironmentError::Invalid {
            name: v::STORE,
            value: text,
            expected: format!("an address of etcd ({error})"),
        })
}
