//! How ranks connect by NCCL.
//!
//! They exchange over their process group what each has: NCCL's version, its GPU and, from rank 0, NCCL's unique id; or
//! why it has none. All come to the same verdict. Then NCCL connects them, and each looks until that is done, has failed,
//! or the deadline passes.

use std::sync::Arc;
use std::time::Instant;

use everburn_collectives::group::{Call, CollectiveError, ProcessGroup};
use everburn_record::plain;
use serde::{Deserialize, Serialize};

use super::core::Core;
use super::owned::OwnedStream;
use super::status::Status;
use super::timed_mutex::Backoff;
use crate::api::{NcclApi, UniqueId};
use crate::error::LibraryError;
use crate::version::NcclVersion;

/// What errors call it.
const CONNECT: &str = "connect(nccl)";

const ONE_ADDRESS: &str = "NCCL_COMM_ID is set, which has all groups meet at one address; unset it";

/// The longest reason of another rank that is shown.
const LONGEST_REASON: usize = 1000;

/// What a rank has.
#[derive(Serialize, Deserialize)]
struct Announcement {
    nccl: u32,
    gpu: String,
    /// NCCL's unique id, of rank 0. Any process that has it can join.
    id: Vec<u8>,
}

impl Announcement {
    fn of(api: &dyn NcclApi, rank: usize) -> Result<Self, String> {
        let id = match rank {
            0 => api.unique_id().map(|id| id.bytes().to_vec()),
            _ => Ok(Vec::new()),
        };
        Ok(Self {
            nccl: api.version().code(),
            gpu: api.gpu(),
            id: id.map_err(|status| status.describe(&api.last_error()))?,
        })
    }
}

/// What a rank needs for its backend, and NCCL's unique id: the answer is an error on all ranks of `group` or on none.
pub(super) fn agree(
    api: Result<Arc<dyn NcclApi>, LibraryError>,
    group: &ProcessGroup,
) -> Result<(Arc<dyn NcclApi>, OwnedStream, UniqueId), CollectiveError> {
    let made = api.map_err(|error| error.to_string()).and_then(|api| {
        if group.world_size() > 1 && std::env::var_os("NCCL_COMM_ID").is_some() {
            return Err(ONE_ADDRESS.to_owned());
        }
        let stream = OwnedStream::new(&api).map_err(|error| error.to_string())?;
        let announcement = Announcement::of(&*api, group.rank())?;
        Ok((api, stream, announcement))
    });
    let own = made.as_ref().map(|(_, _, announcement)| announcement);
    // Numbers and text always are JSON.
    let own = serde_json::to_vec(&own).unwrap_or_default();
    let all = group.all_gather_varied(own).wait()?;
    let verdict = verdict(&all, group.job_ranks());
    let made = verdict.and_then(|id| made.map(|(api, stream, _)| (api, stream, id)));
    made.map_err(|reason| CollectiveError::NoPath {
        rank: group.job_ranks()[group.rank()],
        operation: CONNECT.to_owned(),
        reason,
    })
}

/// The unique id, or what keeps the ranks from being connected.
fn verdict(all: &[Vec<u8>], job_ranks: &[usize]) -> Result<UniqueId, String> {
    let mut known: Vec<(usize, Announcement)> = Vec::with_capacity(all.len());
    for (bytes, rank) in all.iter().zip(job_ranks) {
        let announced = serde_json::from_slice::<Result<Announcement, String>>(bytes);
        let announced = announced.map_err(|_| {
            format!(
                "the settings of rank {rank} cannot be read; check that every rank runs the same \
                 build of Everburn"
            )
        })?;
        let own = announced
            .map_err(|reason| format!("rank {rank}: {}", plain::line(&reason, LONGEST_REASON)))?;
        if let Some((first, announced)) = known.first().filter(|(_, it)| it.nccl != own.nccl) {
            let [ours, theirs] = [announced.nccl, own.nccl].map(NcclVersion::from_code);
            return Err(format!(
                "rank {first} has NCCL {ours}, rank {rank} has NCCL {theirs}; install the same on all \
                 machines, or name one in EVERBURN_NCCL_LIBRARY"
            ));
        }
        if let Some((twin, _)) = known.iter().find(|(_, it)| it.gpu == own.gpu) {
            return Err(format!(
                "ranks {twin} and {rank} are both on the GPU {}, and NCCL connects no GPU with itself; \
                 give each rank its own, or use the backend `host`",
                plain::line(&own.gpu, LONGEST_REASON)
            ));
        }
        known.push((*rank, own));
    }
    let id = known.first().map(|(_, it)| it.id.as_slice());
    let id = id.and_then(|id| <[u8; UniqueId::BYTES]>::try_from(id).ok());
    id.map(UniqueId::new)
        .ok_or_else(|| "rank 0 has sent no unique id of NCCL".to_owned())
}

impl Core {
    /// Has NCCL connect this rank with the others of `id`.
    pub(super) fn connect(&self, id: &UniqueId) -> Result<(), CollectiveError> {
        let call = self.calls.device_call(Call::Named(CONNECT));
        let timeout = self.calls.timeout();
        let deadline = Instant::now() + timeout;
        let (rank, world_size) = (self.calls.rank(), self.calls.world_size());
        let (communicator, status) = self.api.init(id, rank, world_size);
        let Some(communicator) = communicator else {
            return Err(self.failed(call.fail(status.describe(&self.api.last_error()))));
        };
        match self.communicator.take_until(deadline) {
            Some(mut slot) => *slot = Some(communicator),
            // Nobody else has it yet.
            None => return Err(self.blocked(&call)),
        }
        let backoff = Backoff::new();
        loop {
            self.check(&call)?;
            match self.async_status() {
                Status::Success => return Ok(()),
                Status::InProgress if Instant::now() < deadline => backoff.sleep(),
                Status::InProgress => {
                    return Err(self.failed(call.no_path(format!(
                        "NCCL has not connected them within {:.1} s; check that the machines reach each other \
                         on the interface that NCCL takes (NCCL_SOCKET_IFNAME), on all ports, and what \
                         NCCL_DEBUG=INFO says",
                        timeout.as_secs_f64()
                    ))));
                }
                wrong => return Err(self.refused(&call, wrong)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(nccl: u32, gpu: &str, id: usize) -> Vec<u8> {
        let (gpu, id) = (gpu.to_owned(), vec![7; id]);
        serde_json::to_vec(&Ok::<_, String>(Announcement { nccl, gpu, id })).unwrap()
    }

    #[test]
    fn what_another_rank_sends_is_not_believed() {
        let zero = announced(22105, "a", UniqueId::BYTES);
        let of_two = |second: &[u8]| verdict(&[zero.clone(), second.to_vec()], &[5, 7]);
        assert_eq!(
            of_two(&announced(22105, "b", 0)).unwrap().bytes(),
            &[7; 128]
        );
        for garbage in [&b""[..], b"{}", b"\xff", b"[1,2]"] {
            let refused = of_two(garbage).unwrap_err();
            assert!(refused.starts_with("the settings of rank 7 cannot be read"));
        }
        let refused = of_two(&serde_json::to_vec(&Err::<Announcement, _>("no \x1b[2J")).unwrap());
        assert_eq!(refused.unwrap_err(), "rank 7: no \u{fffd}[2J");
        for bytes in [0, 127, 129] {
            let refused = verdict(&[announced(22105, "a", bytes)], &[0]).unwrap_err();
            assert!(refused.contains("no unique id"), "{refused}");
        }
        assert!(verdict(&[], &[]).is_err());
    }
}
