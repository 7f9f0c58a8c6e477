//! Reads, and waits for what is not there yet.

use std::collections::HashMap;
use std::time::Duration;

use super::EtcdStore;
use super::messages::{self, KeyValue, MOST_KEY_BYTES, MOST_OPERATIONS, Range, Transaction};
use super::sealed::Foreign;
use super::spans::Span;
use crate::store::backoff::Backoff;
use crate::store::{Deadline, StoreError, check_keys};

const FIRST_PAUSE: Duration = Duration::from_millis(5);

const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// After how long a key that nobody has written is read again.
const WATCH: Duration = Duration::from_secs(1);

pub(super) struct ReadResult {
    /// By key; `None` where there is none.
    pub(super) values: Vec<Option<Vec<u8>>>,
    /// The revision of etcd then.
    revision: i64,
}

/// What one transaction has read.
struct Found<'a> {
    entries: HashMap<&'a [u8], KeyValue>,
    revision: i64,
}

impl EtcdStore {
    pub(super) fn opened<'a>(
        &self,
        key: &str,
        full: &[u8],
        entry: &'a KeyValue,
    ) -> Result<&'a [u8], StoreError> {
        self.seal.open(full, &entry.value).map_err(|Foreign| {
            self.gateway.unauthenticated(format!(
                "the value of `{key}` was not written by a process with this job's secret: see who else can write to this etcd"
            ))
        })
    }

    pub(super) fn read_one(
        &self,
        operation: &'static str,
        full: &[u8],
        deadline: Deadline,
    ) -> Result<Option<KeyValue>, StoreError> {
        self.check_lease(operation)?;
        let request = messages::range(full);
        let answer: Range = self
            .gateway
            .call(operation, "/v3/kv/range", &request, deadline)?;
        Ok(answer.kvs.into_iter().next())
    }

    /// The values of as many of the first `keys` as one request takes.
    pub(super) fn read_some(
        &self,
        operation: &'static str,
        keys: &[&str],
        deadline: Deadline,
    ) -> Result<ReadResult, StoreError> {
        self.check_lease(operation)?;
        let mut bytes = 0;
        let taken = keys.iter().take_while(|key| {
            bytes += self.namespace.len() + key.len();
            bytes <= MOST_KEY_BYTES
        });
        let mut full: Vec<Vec<u8>> = taken.map(|key| self.full(key)).collect();
        let spans = Span::together(&full);
        let together = match spans.len() <= MOST_OPERATIONS {
            true => self.read_spans(operation, &spans, deadline)?,
            false => None,
        };
        let found = match together {
            Some(found) => Some(found),
            None => {
                full.truncate(MOST_OPERATIONS);
                self.read_spans(operation, &Span::each(&full), deadline)?
            }
        };
        let found = found.ok_or_else(|| self.gateway.malformed("it keeps a key back"))?;
        let values = full
            .iter()
            .zip(keys)
            .map(|(full, key)| match found.entries.get(&**full) {
                Some(entry) => Ok(Some(self.opened(key, full, entry)?.to_vec())),
                None => Ok(None),
            });
        let values = values.collect::<Result<_, StoreError>>()?;
        Ok(ReadResult {
            values,
            revision: found.revision,
        })
    }

    /// What is under the keys of `spans`, all at one revision, and that; `None` where keys must be read one by one.
    fn read_spans<'a>(
        &self,
        operation: &'static str,
        spans: &[Span<'a>],
        deadline: Deadline,
    ) -> Result<Option<Found<'a>>, StoreError> {
        let reads: Vec<_> = spans.iter().map(Span::request).collect();
        let request = messages::transaction(&[], &reads, &[]);
        let answer: Transaction = self
            .gateway
            .call(operation, "/v3/kv/txn", &request, deadline)?;
        let revision = answer.revision();
        let answers = answer.ranges(spans.len());
        let answers = answers.map_err(|reason| self.gateway.malformed(reason))?;
        let mut entries = HashMap::new();
        for (span, answer) in spans.iter().zip(answers) {
            let Some(found) = span.found(answer) else {
                return Ok(None);
            };
            entries.extend(found);
        }
        Ok(Some(Found { entries, revision }))
    }

    /// Waits for all keys and returns their values, each as it was when it was first seen.
    pub(super) fn wait_for(
        &self,
        operation: &'static str,
        keys: &[&str],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        check_keys(operation, keys)?;
        let mut values: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let missing: Vec<usize> = (0..keys.len()).filter(|&i| values[i].is_none()).collect();
            if missing.is_empty() {
                return Ok(values.into_iter().flatten().collect());
            }
            let wanted: Vec<&str> = missing.iter().map(|&i| keys[i]).collect();
            let found = self.read_some(operation, &wanted, self.at_least(deadline))?;
            let absent = found.values.iter().position(Option::is_none);
            for (place, value) in missing.iter().zip(found.values) {
                values[*place] = value;
            }
            // The next keys at once.
            let Some(absent) = absent else {
                continue;
            };
            let left = deadline.left();
            if left.is_zero() {
                let missing = keys
                    .iter()
                    .zip(&values)
                    .filter(|(_, value)| value.is_none());
                return Err(StoreError::Timeout {
                    operation,
                    keys: missing.map(|(key, _)| (*key).to_owned()).collect(),
                    waited: deadline.elapsed(),
                });
            }
            let key = self.full(wanted[absent]);
            let next = found.revision + 1;
            if let Err(problem) = self.gateway.watch(&key, next, left.min(WATCH)) {
                tracing::debug!("`{}` is not watched: {problem}", wanted[absent]);
                backoff.sleep(deadline.left());
            }
        }
    }
}
