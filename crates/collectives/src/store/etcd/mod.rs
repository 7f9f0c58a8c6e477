//! A store in etcd, whose members may die one after the other without the job.
//!
//! The keys of a job are below `everburn/<job>/` in etcd:
//!
//! | key | value |
//! |---|---|
//! | `job` | made by the first process, with the [lease](lease) of all keys |
//! | `keys/<key>` | a value of the store, [sealed](sealed) under the job's secret |
//! | `writers/<random>` | how many [writes](writes) a writer has done, as the key's version |
//!
//! Requests go to etcd's JSON gateway (`/v3/..`, etcd 3.4 or newer) by HTTP, or [TLS](tls), to one member after the
//! other until one answers: see [`gateway`]. All reads are linearizable. A wait watches the
//! first key that is not there.

mod address;
mod gateway;
mod lease;
mod messages;
mod reads;
mod sealed;
mod spans;
mod tls;
mod writes;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

pub use address::EtcdAddress;

use self::gateway::{CONNECT, Gateway};
use self::lease::JobLease;
use self::messages::Range;
use self::sealed::{SEAL_BYTES, Seal};
use self::writes::{Change, Markers, Step};
use super::semantics::{self, CompareSet};
use super::{
    Deadline, Store, StoreAccess, StoreError, StoreOptions, check_key, check_keys, check_value,
    resolve,
};

/// The longest value: etcd takes 1.5 MiB a request, with the key and all.
const MAX_ETCD_VALUE_BYTES: usize = (1 << 20) + (1 << 18);

/// How long a request that waits for nobody may take, where its own deadline is shorter: etcd elects a leader in one
/// or two seconds, and on a busy machine in many.
const FAILOVER: Duration = Duration::from_secs(30);

/// A [`Store`] in etcd, for jobs that no single machine may end.
///
/// [`StoreOptions::access`] says who may take part: with a token, processes of another one are refused, and values that
/// others have written are too. etcd's operator protects the rest: who can reach etcd can read all values and
/// delete keys. Keys vanish ten minutes after the last process of the job.
///
/// ```no_run
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn_auth::JobToken;
/// use everburn::collectives::store::{EtcdStore, Store, StoreAccess, StoreOptions};
///
/// let address = "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/digits".parse()?;
/// let token: JobToken = "the secret of the job".parse()?;
/// let store = EtcdStore::connect(&address, &StoreOptions::new(StoreAccess::Token(token)))?;
/// assert_eq!(store.add("arrived", 1)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EtcdStore {
    gateway: Arc<Gateway>,
    /// What all keys of the job begin with.
    namespace: String,
    seal: Seal,
    lease: JobLease,
    markers: Markers,
    local: IpAddr,
    timeout: Duration,
}

impl EtcdStore {
    /// Joins the job at `address`, or makes it. Without a name there, the name is made from the token. Of the options,
    /// the access, the timeout and `on_wait` count.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] when no member has answered in time, [`StoreError::Unauthenticated`] when a job of
    /// this name has another token, or certificates are not accepted, [`StoreError::Protocol`] when it is no etcd,
    /// [`StoreError::Invalid`] when there is neither a name nor a token, and when a file of the address cannot be read.
    pub fn connect(address: &EtcdAddress, options: &StoreOptions) -> Result<Self, StoreError> {
        let deadline = Deadline::within(options.timeout);
        let job = match (address.job(), &options.access) {
            (Some(job), _) => job.to_owned(),
            (None, StoreAccess::Token(token)) => {
                token.derived("etcd job").reveal()[..NAME_DIGITS].to_owned()
            }
            (None, StoreAccess::Open) => {
                let reason = format!(
                    "`{address}` names no job, and there is no secret to make a name of: append /job-name"
                );
                let operation = CONNECT;
                return Err(StoreError::Invalid { operation, reason });
            }
        };
        let namespace = format!("everburn/{job}/");
        let on_wait = options.on_wait.clone().unwrap_or_default();
        let gateway = Arc::new(Gateway::new(address, on_wait)?);
        let seal = Seal::new(&options.access);
        let lease = JobLease::join(&gateway, &namespace, &seal, deadline)?;
        Ok(Self {
            gateway,
            namespace,
            seal,
            lease,
            markers: Markers::default(),
            local: local_address(address, deadline),
            timeout: options.timeout,
        })
    }

    /// This machine's address towards etcd: the one under which peers may reach this rank.
    #[must_use]
    pub fn local_ip(&self) -> IpAddr {
        self.local
    }

    /// Ends the job: deletes all its keys at once. Other processes of the job fail from now on.
    ///
    /// # Errors
    /// [`StoreError`] when etcd cannot be reached; the keys vanish later then.
    pub fn end_job(&self) -> Result<(), StoreError> {
        self.lease
            .end(&self.gateway, Deadline::within(self.timeout.min(FAILOVER)))
    }

    /// The name of `key` in etcd.
    fn full(&self, key: &str) -> Vec<u8> {
        format!("{}keys/{key}", self.namespace).into()
    }

    /// The deadline of a request that waits for nobody.
    fn at_least(&self, deadline: Deadline) -> Deadline {
        deadline.at_least(self.timeout.min(FAILOVER))
    }

    fn check_lease(&self, operation: &'static str) -> Result<(), StoreError> {
        match self.lease.is_over() {
            true => Err(self.gone(operation)),
            false => Ok(()),
        }
    }
}

/// How much of a code names a job: 96 bits.
const NAME_DIGITS: usize = 24;

/// The address towards the first member that is elsewhere. Connecting a datagram socket sends nothing.
fn local_address(address: &EtcdAddress, deadline: Deadline) -> IpAddr {
    let towards = |(host, port): &(String, u16)| {
        let member = resolve(host, *port, deadline).ok()?.first().copied()?;
        let any = match member {
            _ if member.is_ipv4() => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            _ => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(member).ok()?;
        Some(socket.local_addr().ok()?.ip().to_canonical())
    };
    let mut found = address.endpoints().iter().filter_map(towards);
    found
        .find(|ip| !ip.is_loopback())
        .unwrap_or(Ipv4Addr::LOCALHOST.into())
}

fn check_etcd_value(operation: &'static str, key: &str, value: &[u8]) -> Result<(), StoreError> {
    check_value(operation, key, value)?;
    if value.len() + SEAL_BYTES <= MAX_ETCD_VALUE_BYTES {
        return Ok(());
    }
    Err(StoreError::Invalid {
        operation,
        reason: format!(
            "the value for `{key}` has {} bytes, and a store in etcd takes at most {}: etcd takes 1.5 MiB a request",
            value.len(),
            MAX_ETCD_VALUE_BYTES - SEAL_BYTES
        ),
    })
}

impl Store for EtcdStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_key("set", key)?;
        check_etcd_value("set", key, value)?;
        self.put("set", key, value, Deadline::within(self.timeout))
    }

    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        let values = self.wait_for("get", &[key], Deadline::within(deadline))?;
        Ok(values.into_iter().next().unwrap_or_default())
    }

    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let deadline = Deadline::within(self.timeout);
        check_keys("try_get", keys)?;
        let mut values = Vec::with_capacity(keys.len());
        while values.len() < keys.len() {
            let found = self.read_some("try_get", &keys[values.len()..], deadline)?;
            values.extend(found.values);
        }
        Ok(values)
    }

    fn multi_get_within(
        &self,
        keys: &[&str],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.wait_for("multi_get", keys, Deadline::within(deadline))
    }

    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError> {
        self.wait_for("wait", keys, Deadline::within(deadline))
            .map(drop)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.add_within(key, amount, self.timeout)
    }

    fn add_within(&self, key: &str, amount: i64, limit: Duration) -> Result<i64, StoreError> {
        check_key("add", key)?;
        self.update("add", key, Deadline::within(limit), |current| {
            let sum = semantics::counter_after(current, amount)
                .map_err(|fault| fault.into_error(key, amount))?;
            Ok(Step::Write(Change::Put(sum.to_string().into()), sum))
        })
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        check_key("compare_set", key)?;
        check_etcd_value("compare_set", key, desired)?;
        let deadline = Deadline::within(self.timeout);
        self.update("compare_set", key, deadline, |current| {
            Ok(match semantics::compare_set(current, expected) {
                CompareSet::Store => Step::Write(Change::Put(desired.to_vec()), desired.to_vec()),
                CompareSet::Return(value) => Step::Leave(value.to_vec()),
            })
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        Ok(self.try_get_many(keys)?.iter().all(Option::is_some))
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        check_key("delete", key)?;
        let deadline = Deadline::within(self.timeout);
        self.update("delete", key, deadline, |current| {
            Ok(match current {
                Some(_) => Step::Write(Change::Delete, true),
                None => Step::Leave(false),
            })
        })
    }

    fn delete_many(&self, keys: &[&str]) -> Result<(), StoreError> {
        check_keys("delete", keys)?;
        self.delete_all("delete", keys, Deadline::within(self.timeout))
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.check_lease("num_keys")?;
        let deadline = Deadline::within(self.timeout);
        let request = messages::count(format!("{}keys/", self.namespace).as_bytes());
        let answer: Range = self
            .gateway
            .call("num_keys", "/v3/kv/range", &request, deadline)?;
        Ok(u64::try_from(answer.count).unwrap_or(0))
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}
