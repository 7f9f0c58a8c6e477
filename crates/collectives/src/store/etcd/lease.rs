//! The lease that all keys of a job have, so that none stays in etcd for ever.
//!
//! The first process of a job makes the lease, together with the key `job`; the others find it there. Each process
//! renews it from a thread of its own. Once none does, etcd deletes the job's keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use super::gateway::{CONNECT, Gateway};
use super::messages::{self, KeptAlive, KeyValue, Lease, Transaction};
use super::sealed::Seal;
use crate::store::{DEFAULT_STORE_TIMEOUT, Deadline, StoreError};

/// How long the keys outlive the last process: twice as long as an operation waits for etcd. While etcd has no leader,
/// no lease ends.
const LIFETIME: Duration = DEFAULT_STORE_TIMEOUT.saturating_mul(2);

/// How often a process renews it: a renewal or two may fail.
const RENEWAL: Duration = Duration::from_secs(LIFETIME.as_secs() / 5);

/// When a lease is looked for again that was not found.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// What the key `job` holds.
const JOB: &[u8] = b"a job of Everburn";

/// A job's lease, renewed until this is dropped.
#[derive(Debug)]
pub(super) struct JobLease {
    pub(super) id: i64,
    is_over: Arc<AtomicBool>,
    /// The thread ends once this is dropped.
    _stop: Sender<()>,
}

impl JobLease {
    /// Finds the lease of the job, or makes the job.
    pub(super) fn join(
        gateway: &Arc<Gateway>,
        namespace: &str,
        seal: &Seal,
        deadline: Deadline,
    ) -> Result<Self, StoreError> {
        let key = format!("{namespace}job");
        let id = loop {
            let found = gateway.call::<messages::Range>(
                CONNECT,
                "/v3/kv/range",
                &messages::range(key.as_bytes()),
                deadline,
            )?;
            let id = match found.kvs.into_iter().next() {
                Some(job) => lease_of(gateway, &key, seal, &job)?,
                None => match create(gateway, &key, seal, deadline)? {
                    Some(id) => break id,
                    None => continue,
                },
            };
            if renewed(gateway, id, deadline)? {
                break id;
            }
            // It ended just now, and the key with it.
            if deadline.left().is_zero() {
                let reason = format!("its lease {id} has ended and its key `{key}` has not");
                return Err(gateway.malformed(reason));
            }
        };
        Self::renew(gateway, id)
    }

    /// Whether etcd has deleted the job's keys.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the lease, and with it all keys of the job.
    pub(super) fn end(&self, gateway: &Gateway, deadline: Deadline) -> Result<(), StoreError> {
        self.is_over.store(true, Ordering::Relaxed);
        let request = messages::lease(self.id);
        match gateway.call("end the job", "/v3/lease/revoke", &request, deadline) {
            Ok(serde_json::Value::Null | serde_json::Value::Object(_)) => Ok(()),
            Ok(other) => Err(gateway.malformed(format!("`{other}` is no answer"))),
            // Another process has come first.
            Err(_) if !renewed(gateway, self.id, deadline)? => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn renew(gateway: &Arc<Gateway>, id: i64) -> Result<Self, StoreError> {
        let (stop, stopped) = mpsc::channel::<()>();
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, thread_gateway) = (Arc::clone(&is_over), Arc::clone(gateway));
        let renew = move || {
            let (mut interval, mut missed) = (RENEWAL, false);
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                let is_renewed = renewed(&thread_gateway, id, Deadline::within(RENEWAL));
                interval = RENEWAL;
                match is_renewed {
                    Ok(true) => missed = false,
                    Ok(false) if missed => {
                        over.store(true, Ordering::Relaxed);
                        return;
                    }
                    // A new leader may not have all leases yet.
                    Ok(false) => (interval, missed) = (SECOND_LOOK, true),
                    Err(error) => tracing::warn!("the job's lease was not renewed: {error}"),
                }
            }
        };
        std::thread::Builder::new()
            .name("everburn-etcd-lease".into())
            .spawn(renew)
            .map_err(|error| {
                let reason =
                    format!("no thread can be started that renews the job's lease: {error}");
                gateway.unreachable(CONNECT, reason)
            })?;
        Ok(Self {
            id,
            is_over,
            _stop: stop,
        })
    }
}

/// The lease of a job that is there, if this process may join it.
fn lease_of(gateway: &Gateway, key: &str, seal: &Seal, job: &KeyValue) -> Result<i64, StoreError> {
    if seal.open(key.as_bytes(), &job.value) != Ok(JOB) {
        let reason = "a job of this name is there whose secret is another (or it is an open one, or this process is): set \
                      the same EVERBURN_JOB_TOKEN on every machine, or give another job another name";
        return Err(gateway.unauthenticated(reason.into()));
    }
    match job.lease {
        0 => Err(gateway.malformed(format!("its key `{key}` has no lease"))),
        id => Ok(id),
    }
}

/// Makes the job; `None`: another process was quicker.
fn create(
    gateway: &Gateway,
    key: &str,
    seal: &Seal,
    deadline: Deadline,
) -> Result<Option<i64>, StoreError> {
    let key = key.as_bytes();
    let request = messages::grant(LIFETIME.as_secs());
    let granted: Lease = gateway.call(CONNECT, "/v3/lease/grant", &request, deadline)?;
    let id = granted.id;
    if id == 0 {
        return Err(gateway.malformed("it grants no lease"));
    }
    let request = messages::transaction(
        &[messages::if_revision(key, 0)],
        &[messages::requested_put(key, &seal.seal(key, JOB), id)],
        &[messages::requested_range(key)],
    );
    let answer: Transaction = gateway.call(CONNECT, "/v3/kv/txn", &request, deadline)?;
    if answer.succeeded {
        return Ok(Some(id));
    }
    let [found] = answer.found().map_err(|reason| gateway.malformed(reason))?;
    if found.is_some_and(|job| job.lease == id) {
        // An attempt that had no answer.
        return Ok(Some(id));
    }
    // A lease that nobody uses; it ends by itself if this fails.
    let request = messages::lease(id);
    let _ = gateway.call::<serde_json::Value>(CONNECT, "/v3/lease/revoke", &request, deadline);
    Ok(None)
}

/// Renews the lease; false where it is over.
fn renewed(gateway: &Gateway, id: i64, deadline: Deadline) -> Result<bool, StoreError> {
    let request = messages::lease(id);
    let answer: KeptAlive =
        gateway.call("renew the lease", "/v3/lease/keepalive", &request, deadline)?;
    match answer.result {
        Some(lease) => Ok(lease.seconds > 0),
        None => Err(gateway.malformed("its answer about the lease is empty")),
    }
}
