//! Writes that are carried out once, however often they are sent.
//!
//! When a member dies, nobody can say whether it has still passed on the write that it was sent. So each write is a
//! transaction that also writes a *marker*, a key of this writer alone, and is carried out only if the marker has
//! the version that it had before: sent again, a write that was carried out does nothing, and the marker shows that.
//! A write whose value depends on what was read is also bound to the revision of its key, and begins anew where
//! another write has come first. One round trip a write, one more where the present value must be read.
//!
//! A marker has one write at a time; a thread that finds none idle makes one. One whose write had no answer in time is
//! not used again, because that write may still arrive.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use super::EtcdStore;
use super::gateway::GONE;
use super::messages::{
    self, KeyValue, MOST_OPERATIONS, Transaction, if_revision, if_version, requested_delete,
    requested_put, requested_range,
};
use crate::store::backoff::Backoff;
use crate::store::{Deadline, StoreError, random_u64};
use crate::sync::lock;

/// The first pause after another writer has come first.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// A key that counts the writes of one writer.
#[derive(Debug)]
struct Marker {
    key: Vec<u8>,
    /// How often it was written.
    version: i64,
}

/// The markers on which no write is under way.
#[derive(Debug, Default)]
pub(super) struct Markers(Mutex<Vec<Marker>>);

impl Markers {
    fn take(&self, namespace: &str) -> Marker {
        let idle = lock(&self.0).pop();
        idle.unwrap_or_else(|| Marker {
            key: format!(
                "{namespace}writers/{:016x}{:016x}",
                random_u64(),
                random_u64()
            )
            .into(),
            version: 0,
        })
    }

    fn give_back(&self, marker: Marker) {
        lock(&self.0).push(marker);
    }
}

/// What is to be under a key.
pub(super) enum Change {
    Put(Vec<u8>),
    Delete,
}

/// What an update does with the value that it finds.
pub(super) enum Step<R> {
    /// Nothing.
    Leave(R),
    /// This.
    Write(Change, R),
}

/// What has become of a write.
enum Written {
    Done,
    /// Another write has come first, and has left this.
    Outrun(Option<KeyValue>),
}

impl EtcdStore {
    /// Does what `decide` says of the value of `key`, which may be asked several times.
    pub(super) fn update<R>(
        &self,
        operation: &'static str,
        key: &str,
        deadline: Deadline,
        decide: impl Fn(Option<&[u8]>) -> Result<Step<R>, StoreError>,
    ) -> Result<R, StoreError> {
        let full = self.full(key);
        // Most keys are new when they are written: that is tried without reading.
        let mut found = match decide(None)? {
            Step::Write(..) => None,
            Step::Leave(_) => self.read_one(operation, &full, deadline)?,
        };
        let mut backoff = None;
        loop {
            let current = match &found {
                Some(entry) => Some(self.opened(key, &full, entry)?),
                None => None,
            };
            let (change, outcome) = match decide(current)? {
                Step::Leave(outcome) => return Ok(outcome),
                Step::Write(change, outcome) => (change, outcome),
            };
            let revision = found.as_ref().map_or(0, |entry| entry.mod_revision);
            match self.write(operation, &full, Some(revision), &change, deadline)? {
                Written::Done => return Ok(outcome),
                Written::Outrun(now) => found = now,
            }
            let left = deadline.left();
            if left.is_zero() {
                return Err(StoreError::Timeout {
                    operation,
                    keys: vec![key.to_owned()],
                    waited: deadline.elapsed(),
                });
            }
            // The first time, the key was there already.
            match &mut backoff {
                None => backoff = Some(Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)),
                Some(backoff) => backoff.sleep(left),
            }
        }
    }

    /// Puts `value` under `key`, whatever is there.
    pub(super) fn put(
        &self,
        operation: &'static str,
        key: &str,
        value: &[u8],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let (full, change) = (self.full(key), Change::Put(value.to_vec()));
        // Bound to no revision, it cannot be outrun.
        self.write(operation, &full, None, &change, deadline)
            .map(drop)
    }

    /// Deletes `keys`, as many with one request as it takes.
    pub(super) fn delete_all(
        &self,
        operation: &'static str,
        keys: &[&str],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        // One operation is for the marker.
        for keys in keys.chunks(MOST_OPERATIONS - 1) {
            let full: Vec<Vec<u8>> = keys.iter().map(|key| self.full(key)).collect();
            let deletes = full.iter().map(|key| requested_delete(key)).collect();
            // Bound to no revision, it cannot be outrun.
            self.commit(operation, &full[0], None, deletes, deadline)?;
        }
        Ok(())
    }

    /// Writes once, if `key` still has the revision.
    fn write(
        &self,
        operation: &'static str,
        key: &[u8],
        revision: Option<i64>,
        change: &Change,
        deadline: Deadline,
    ) -> Result<Written, StoreError> {
        let changed = match change {
            Change::Put(value) => requested_put(key, &self.seal.seal(key, value), self.lease.id),
            Change::Delete => requested_delete(key),
        };
        let bound = revision.map(|revision| if_revision(key, revision));
        self.commit(operation, key, bound, vec![changed], deadline)
    }

    /// Carries out `changes` once, if `key` is as it is to be.
    fn commit(
        &self,
        operation: &'static str,
        key: &[u8],
        bound: Option<Value>,
        mut changes: Vec<Value>,
        deadline: Deadline,
    ) -> Result<Written, StoreError> {
        self.check_lease(operation)?;
        let mut marker = self.markers.take(&self.namespace);
        let condition = if_version(&marker.key, marker.version);
        let conditions: Vec<_> = bound.into_iter().chain([condition]).collect();
        changes.push(requested_put(&marker.key, b"", self.lease.id));
        let request = messages::transaction(
            &conditions,
            &changes,
            &[requested_range(key), requested_range(&marker.key)],
        );
        let answer: Transaction = self
            .gateway
            .call(operation, "/v3/kv/txn", &request, deadline)?;
        let (written, done) = match answer.succeeded {
            true => (Written::Done, true),
            false => {
                let [now, mark] = answer
                    .found()
                    .map_err(|reason| self.gateway.malformed(reason))?;
                let version = mark.map_or(0, |mark| mark.version);
                if version == marker.version + 1 {
                    // An attempt that had no answer.
                    (Written::Done, true)
                } else if version == marker.version {
                    (Written::Outrun(now), false)
                } else {
                    return Err(self.gone(operation));
                }
            }
        };
        marker.version += i64::from(done);
        self.markers.give_back(marker);
        Ok(written)
    }

    pub(super) fn gone(&self, operation: &'static str) -> StoreError {
        let reason = GONE.trim_start_matches("; ").into();
        self.gateway.unreachable(operation, reason)
    }
}
