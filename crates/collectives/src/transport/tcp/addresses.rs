//! The addresses of a mesh's ranks, through the store.
//!
//! Every rank publishes where it listens; many ranks count themselves. The last one reads all addresses in one batch and
//! writes them, with the session, into one key, for which all others wait: a constant number of requests per rank.
//! While ranks are missing, and where an address does not answer (its rank has tried again and listens elsewhere),
//! [`Addresses::survey`] reads the entries themselves, seldom.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everburn_record::plain;
use serde::{Deserialize, Serialize};

use crate::group::CollectiveError;
use crate::rendezvous::Rendezvous;
use crate::runtime;
use crate::store::{StoreError, entry};

/// How much of an address from the store is shown.
const LONGEST_ADDRESS: usize = 80;

/// How often the entries of single ranks are read: one batch of a few keys for each rank that is not connected.
const SURVEY: Duration = Duration::from_secs(1);

/// Up to this many ranks may each read the keys of all: the store answers them at once. More survey less often, and are
/// counted, so that only the last reads all addresses.
const FEW_RANKS: usize = 64;

/// The value of the key `all`.
#[derive(Debug, Serialize, Deserialize)]
struct All<'a> {
    /// Who has written it.
    by: usize,
    session: String,
    /// By rank.
    #[serde(borrow)]
    addresses: Vec<&'a str>,
}

/// What this rank has learned of the addresses of one mesh.
pub(super) struct Addresses<'a> {
    rendezvous: &'a Rendezvous,
    prefix: String,
    /// What all keys of the mesh derive from.
    pub(super) session: Option<String>,
    /// By rank; removed when it does not answer.
    known: Vec<Option<SocketAddr>>,
    /// By rank: whether it has published an address.
    published: Vec<bool>,
    /// Whether the key with all of them has been read.
    pub(super) complete: bool,
    next_survey: Instant,
}

/// What a survey finds beside addresses.
pub(super) struct Survey {
    /// The key `failed`.
    pub(super) failed: Option<Vec<u8>>,
    /// A rank that is not connected with this one has made this mesh.
    pub(super) superseded: bool,
}

impl<'a> Addresses<'a> {
    pub(super) fn new(rendezvous: &'a Rendezvous, prefix: String) -> Self {
        Self {
            rendezvous,
            prefix,
            session: None,
            known: vec![None; rendezvous.world_size],
            published: vec![false; rendezvous.world_size],
            complete: false,
            next_survey: runtime::now() + interval(rendezvous.world_size),
        }
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Publishes where this rank listens; the last rank of all also publishes the whole list.
    pub(super) fn publish(&self, address: SocketAddr) -> Result<(), StoreError> {
        let Rendezvous {
            store,
            rank,
            world_size,
            ..
        } = self.rendezvous;
        let own = self.key(&format!("address/{rank}"));
        store.set(&own, address.to_string().as_bytes())?;
        if *world_size > FEW_RANKS {
            // A rank that tries again counts twice, so the number may be reached too early, and never too late.
            let count = store.add(&self.key("published"), 1)?;
            if usize::try_from(count).is_ok_and(|count| count < *world_size) {
                return Ok(());
            }
        }
        let mut keys = vec![self.key("session")];
        keys.extend((0..*world_size).map(|rank| self.key(&format!("address/{rank}"))));
        let values: Option<Vec<Vec<u8>>> = self.read(&keys)?.into_iter().collect();
        let Some(values) = values else { return Ok(()) };
        let texts = values.iter().map(|value| String::from_utf8_lossy(value));
        let texts: Vec<Cow<'_, str>> = texts.collect();
        let all = All {
            by: *rank,
            session: texts[0].to_string(),
            addresses: texts[1..].iter().map(AsRef::as_ref).collect(),
        };
        store.set(&self.key("all"), &entry::written("connect", &all)?)
    }

    /// Waits for the whole list, for `limit` at most. A rank of a world of another size is an error.
    pub(super) fn wait_for_all(&mut self, limit: Duration) -> Result<(), CollectiveError> {
        let Rendezvous {
            store,
            rank,
            world_size,
            ..
        } = self.rendezvous;
        let value = match store.get_within(&self.key("all"), limit) {
            Ok(value) => value,
            Err(StoreError::Timeout { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let all: All<'_> = serde_json::from_slice(&value).map_err(|error| {
            self.invalid(0, format!("the list of addresses in the store: {error}"))
        })?;
        if all.addresses.len() != *world_size {
            return Err(CollectiveError::WorldSize {
                rank: *rank,
                peer: all.by,
                ours: *world_size,
                theirs: all.addresses.len(),
            });
        }
        for (peer, address) in all.addresses.iter().enumerate() {
            self.known[peer] = Some(self.parsed(peer, address)?);
            self.published[peer] = true;
        }
        self.session = Some(all.session);
        self.complete = true;
        Ok(())
    }

    /// Where `peer` listens, as far as this rank has learned.
    pub(super) fn of(&self, peer: usize) -> Option<SocketAddr> {
        self.known[peer]
    }

    /// `peer` does not answer there: its address is read again by a survey, within `pause`.
    pub(super) fn forget(&mut self, peer: usize, pause: Duration) {
        self.known[peer] = None;
        self.next_survey = self.next_survey.min(runtime::now() + pause);
    }

    pub(super) fn is_survey_due(&self) -> bool {
        runtime::now() >= self.next_survey
    }

    /// Reads the entries of the ranks that are not connected.
    pub(super) fn survey(&mut self, unconnected: &[usize]) -> Result<Survey, CollectiveError> {
        self.next_survey = runtime::now() + interval(self.rendezvous.world_size);
        let mut keys = vec![self.key("failed"), self.key("session")];
        for peer in unconnected {
            keys.push(self.key(&format!("address/{peer}")));
            keys.push(self.key(&format!("made/{peer}")));
        }
        let values = self.read(&keys)?;
        let (of_mesh, of_ranks) = values.split_at(2);
        if let (None, Some(session)) = (&self.session, &of_mesh[1]) {
            self.session = Some(String::from_utf8_lossy(session).into_owned());
        }
        let mut superseded = false;
        for (peer, entry) in unconnected.iter().zip(of_ranks.chunks_exact(2)) {
            superseded |= entry[1].is_some();
            self.published[*peer] = entry[0].is_some();
            if let Some(address) = &entry[0] {
                let address = String::from_utf8_lossy(address);
                self.known[*peer] = Some(self.parsed(*peer, &address)?);
            }
        }
        Ok(Survey {
            failed: of_mesh[0].clone(),
            superseded,
        })
    }

    /// Those of `ranks` that have not published an address.
    pub(super) fn unpublished(&self, ranks: &[usize]) -> Vec<usize> {
        let absent = ranks.iter().filter(|rank| !self.published[**rank]);
        absent.copied().collect()
    }

    fn read(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        entry::values(&*self.rendezvous.store, keys)
    }

    fn parsed(&self, peer: usize, address: &str) -> Result<SocketAddr, CollectiveError> {
        address.parse().map_err(|_| {
            let address = plain::line(address, LONGEST_ADDRESS);
            self.invalid(peer, format!("`{address}` in the store is no address"))
        })
    }

    /// The error of what `peer` has left in the store.
    pub(super) fn invalid(&self, peer: usize, reason: String) -> CollectiveError {
        CollectiveError::Protocol {
            rank: self.rendezvous.rank,
            peer,
            operation: "connect".to_owned(),
            step: 0,
            waited: Duration::ZERO,
            reason,
        }
    }
}

/// The pause between two surveys of one rank of `world_size`.
fn interval(world_size: usize) -> Duration {
    SURVEY * u32::try_from(world_size.div_ceil(FEW_RANKS)).unwrap_or(u32::MAX)
}
