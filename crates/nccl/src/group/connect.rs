//! How ranks become a group.
//!
//! Each announces itself in the store: NCCL's version, its GPU. Rank 0 waits for all, compares, and
//! publishes one verdict for everybody: NCCL's unique id, or why there will be no group. Then all
//! connect, which NCCL does beside; each looks until it is done, has failed, or the deadline passes.

use std::fmt;
use std::time::{Duration, Instant};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use everburn_collectives::printable;
use everburn_collectives::store::{Store, StoreError};
use serde::{Deserialize, Serialize};

use super::core::{Core, OpContext};
use super::error::NcclError;
use super::failure_notifier::{FailureNotifier, bounded};
use super::status::Status;
use super::timed_mutex::Backoff;
use crate::api::UniqueId;
use crate::version::NcclVersion;

/// How often a rank that waits for the store looks whether another has failed.
const LOOKING: Duration = Duration::from_millis(200);

/// How much longer than rank 0 the others wait: it knows who is missing.
const PATIENCE: Duration = Duration::from_secs(5);

const VERDICT: &str = "verdict";

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Announcement {
    /// Tells two processes apart that take themselves for the same rank.
    process: u32,
    nccl: u32,
    gpu: String,
}

/// The longest reason of rank 0 that is shown.
const LONGEST_REASON: usize = 1000;

/// What rank 0 has found.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// NCCL's unique id, in hexadecimal digits.
    Connect(String),
    /// These numbers in the group have not come.
    Missing(Vec<usize>),
    Refused(String),
}

impl Core {
    /// Connects this rank with the others.
    pub(crate) fn connect(&self) -> Result<(), NcclError> {
        let group = &self.config.name;
        let context = self.context(format!("connect(group `{group}`)"), None);
        let deadline = context.started + self.config.timeout;
        let id = match &self.notifier {
            None => self.unique_id(&context)?,
            Some(notifier) => {
                self.announce(notifier)?;
                let verdict = match self.config.rank {
                    0 => self.judge(&context, notifier, deadline)?,
                    _ => self.verdict(&context, notifier, deadline + PATIENCE)?,
                };
                self.follow(&context, verdict)?
            }
        };
        let (rank, world_size) = (self.config.rank, self.config.world_size());
        let (communicator, status) = self.api.init(&id, rank, world_size);
        let Some(communicator) = communicator else {
            return Err(self.init_failed(&context, status));
        };
        match self.communicator.take_until(deadline) {
            Some(mut slot) => *slot = Some(communicator),
            // Nobody else has it yet.
            None => return Err(self.no_answer(&context)),
        }
        let backoff = Backoff::new();
        loop {
            self.health(&context)?;
            match self.async_status() {
                Status::Success => return Ok(()),
                Status::InProgress if Instant::now() < deadline => backoff.sleep(deadline),
                Status::InProgress => return Err(self.unconnected(&context)),
                wrong => return Err(self.init_failed(&context, wrong)),
            }
        }
    }

    fn unique_id(&self, context: &OpContext) -> Result<UniqueId, NcclError> {
        let id = self.api.unique_id();
        id.map_err(|status| self.init_failed(context, status))
    }

    fn announce(&self, notifier: &FailureNotifier) -> Result<(), NcclError> {
        let rank = self.config.rank;
        let own = Announcement {
            process: std::process::id(),
            nccl: self.api.version().code(),
            gpu: self.api.gpu(),
        };
        let own = serde_json::to_vec(&own).unwrap_or_default();
        if notifier.store.compare_set(&here(rank), b"", &own)? == own {
            return Ok(());
        }
        Err(self.refused_to_join(format!(
            "another process has joined as rank {} in generation {}; check that every rank is \
             started once, and that a group which forms anew counts its generations up",
            self.job_rank(),
            self.config.generation
        )))
    }

    /// As rank 0: waits for all, compares them, and tells them.
    fn judge(
        &self,
        context: &OpContext,
        notifier: &FailureNotifier,
        deadline: Instant,
    ) -> Result<Verdict, NcclError> {
        let mut ranks = Vec::with_capacity(self.config.world_size());
        let mut missing = Vec::new();
        for rank in 0..self.config.world_size() {
            match self.read(context, notifier, &here(rank), deadline)? {
                Some(value) => ranks.push(serde_json::from_slice::<Announcement>(&value).ok()),
                None => missing.push(rank),
            }
        }
        let (verdict, failed) = match missing.is_empty() {
            false => (Verdict::Missing(missing), None),
            true => match self.incompatible(&ranks) {
                Some(reason) => (Verdict::Refused(reason), None),
                None => match self.api.unique_id() {
                    Ok(id) => (Verdict::Connect(HEXLOWER.encode(id.bytes())), None),
                    Err(status) => {
                        let error = self.init_failed(context, status);
                        (Verdict::Refused(error.to_string()), Some(error))
                    }
                },
            },
        };
        let value = serde_json::to_vec(&verdict).unwrap_or_default();
        if notifier.store.compare_set(VERDICT, b"", &value)? != value {
            let reason = format!(
                "a group of this name and generation {} has been there before; count the generation up",
                self.config.generation
            );
            return Err(self.invalid(context, reason));
        }
        failed.map_or(Ok(verdict), Err)
    }

    /// What keeps the ranks from being one group, if something does.
    fn incompatible(&self, ranks: &[Option<Announcement>]) -> Option<String> {
        let job_rank = |rank: usize| self.config.job_ranks[rank];
        let mut known = Vec::with_capacity(ranks.len());
        for (rank, announcement) in ranks.iter().enumerate() {
            let Some(announcement) = announcement else {
                let rank = job_rank(rank);
                return Some(format!(
                    "the settings of rank {rank} cannot be read; check that every rank runs the \
                     same build of Everburn"
                ));
            };
            known.push(announcement);
        }
        let first = known[0];
        for (rank, announcement) in known.iter().enumerate() {
            if announcement.nccl != first.nccl {
                let [ours, theirs] = [first.nccl, announcement.nccl].map(NcclVersion::from_code);
                return Some(format!(
                    "rank {} has NCCL {ours}, rank {} has NCCL {theirs}; install the same on all \
                     machines, or name one in EVERBURN_NCCL_LIBRARY",
                    job_rank(0),
                    job_rank(rank)
                ));
            }
            let twin = known[..rank]
                .iter()
                .position(|other| other.gpu == announcement.gpu);
            if let Some(twin) = twin {
                return Some(format!(
                    "ranks {} and {} are both on the GPU {}, and NCCL connects no GPU with itself; \
                     give each rank its own, or use the backend `host`",
                    job_rank(twin),
                    job_rank(rank),
                    announcement.gpu
                ));
            }
        }
        None
    }

    /// As any other rank: waits for what rank 0 has found.
    fn verdict(
        &self,
        context: &OpContext,
        notifier: &FailureNotifier,
        deadline: Instant,
    ) -> Result<Verdict, NcclError> {
        let Some(value) = self.read(context, notifier, VERDICT, deadline)? else {
            return Ok(Verdict::Missing(vec![0]));
        };
        let verdict = bounded(&value).and_then(|value| serde_json::from_slice(value).ok());
        let unreadable = "what rank 0 has found cannot be read; check that every rank runs the same \
                          build of Everburn, and that nothing else uses its store";
        Ok(verdict.unwrap_or_else(|| Verdict::Refused(unreadable.to_owned())))
    }

    fn follow(&self, context: &OpContext, verdict: Verdict) -> Result<UniqueId, NcclError> {
        match verdict {
            Verdict::Connect(digits) => bytes_of(&digits).ok_or_else(|| {
                self.refused_to_join("rank 0 has sent no unique id of NCCL".to_owned())
            }),
            Verdict::Refused(reason) => {
                Err(self.refused_to_join(printable(&reason, LONGEST_REASON)))
            }
            Verdict::Missing(missing) => {
                let job_ranks = &self.config.job_ranks;
                let missing = missing
                    .iter()
                    .filter_map(|rank| job_ranks.get(*rank).copied());
                let reason = "check in their logs whether they have come so far, and that all ranks \
                              make the same groups in the same order";
                Err(self.incomplete(context, missing.collect(), reason))
            }
        }
    }

    /// The value of `key`, or `None` when `deadline` passes.
    fn read(
        &self,
        context: &OpContext,
        notifier: &FailureNotifier,
        key: &str,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, NcclError> {
        loop {
            self.health(context)?;
            let left = deadline.saturating_duration_since(Instant::now());
            match notifier.store.get_within(key, left.min(LOOKING)) {
                Ok(value) => return Ok(Some(value)),
                Err(StoreError::Timeout { .. }) if left > LOOKING => {}
                Err(StoreError::Timeout { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn unconnected(&self, context: &OpContext) -> NcclError {
        let reason = "all ranks have come, but NCCL has not connected them; check that the machines \
                      reach each other on the interface that NCCL takes (NCCL_SOCKET_IFNAME), on all \
                      ports, and what NCCL_DEBUG=INFO says";
        self.incomplete(context, Vec::new(), reason)
    }

    fn incomplete(&self, context: &OpContext, missing: Vec<usize>, reason: &str) -> NcclError {
        NcclError::Incomplete {
            rank: self.job_rank(),
            world_size: self.config.world_size(),
            group: self.config.name.clone(),
            missing,
            waited: context.started.elapsed(),
            reason: reason.to_owned(),
        }
    }

    fn init_failed(&self, context: &OpContext, status: Status) -> NcclError {
        self.status_error(context, status, Vec::new(), self.api.last_error())
    }

    fn refused_to_join(&self, reason: String) -> NcclError {
        NcclError::Refused {
            rank: self.job_rank(),
            group: self.config.name.clone(),
            reason,
        }
    }
}

impl fmt::Debug for Verdict {
    /// Leaves the id out: whoever has it can join.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(_) => f.write_str("Connect(..)"),
            Self::Missing(missing) => f.debug_tuple("Missing").field(missing).finish(),
            Self::Refused(reason) => f.debug_tuple("Refused").field(reason).finish(),
        }
    }
}

fn here(rank: usize) -> String {
    format!("here/{rank}")
}

fn bytes_of(digits: &str) -> Option<UniqueId> {
    let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?;
    bytes.try_into().ok().map(UniqueId::new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_is_read_back(bytes in prop::collection::vec(any::<u8>(), UniqueId::BYTES)) {
            prop_assert_eq!(bytes_of(&HEXLOWER.encode(&bytes)).unwrap().bytes().to_vec(), bytes);
        }

        #[test]
        fn anything_else_is_no_id(text in ".{0,300}") {
            let is_one = text.len() == 256 && text.chars().all(|c| c.is_ascii_hexdigit());
            prop_assert_eq!(bytes_of(&text).is_some(), is_one);
        }
    }

    #[test]
    fn a_sign_is_no_digit() {
        assert!(bytes_of(&"00".repeat(UniqueId::BYTES)).is_some());
        assert!(bytes_of(&"+0".repeat(UniqueId::BYTES)).is_none());
    }

    #[test]
    fn a_verdict_is_one_word_and_what_it_is_about() {
        let text = |verdict: &Verdict| serde_json::to_string(verdict).unwrap();
        assert_eq!(text(&Verdict::Missing(vec![1, 3])), r#"{"missing":[1,3]}"#);
        assert_eq!(text(&Verdict::Connect("00".into())), r#"{"connect":"00"}"#);
    }

    #[test]
    fn no_id_is_printed() {
        let verdict = Verdict::Connect("5ec2e7".into());
        assert_eq!(format!("{verdict:?}"), "Connect(..)");
        let missing = format!("{:?}", Verdict::Missing(vec![1]));
        assert_eq!(missing, "Missing([1])");
    }
}
