//! The client: a [`Store`] at the other end of a TCP connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use super::StoreOptions;
use super::client_waits::{early_wait_pauses, timed_out};
use super::connect::connect;
use super::connection::{Connection, Deadline, random_u64};
use super::fault::Fault;
use super::requests::{add_message, check_message, compare_message, key_message, keys_message};
use super::shared_connection::SharedConnection;
use super::wire::{CHECK_READY, MAX_MESSAGE_BYTES, opcode, put_string};
use crate::store::{Store, StoreError, check_key, check_keys, check_value, semantics, user_key};

/// The counter of clients that have come, for a server of PyTorch.
const WORKER_COUNTER: &[u8] = b"init/";

/// How many bytes of requests are sent before their replies are read: few enough for the buffers of a connection,
/// since a server that cannot send replies takes no further requests. 400 usual keys.
const PIPELINE_BYTES: usize = 32 << 10;

/// A [`Store`] served by a [`TcpStoreServer`](super::TcpStoreServer) or by PyTorch's `TCPStore`.
///
/// What is answered at once goes over one connection that the threads of a process take in turn,
/// so that a thread's `set` is seen by every later call. Only a call that finds a key missing and
/// has to wait does so on a connection of its own, because it may occupy it for minutes.
///
/// Connecting is repeated until the deadline; afterwards nothing is sent twice, since a lost
/// connection does not show whether an `add` was carried out.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn_auth::JobToken;
/// use everburn::collectives::store::{Store, StoreAccess, StoreOptions, TcpStore, TcpStoreServer};
///
/// let options = StoreOptions::new(StoreAccess::Token(JobToken::random()?));
/// let server = TcpStoreServer::bind("127.0.0.1:0".parse()?, options.clone())?;
/// let address = server.local_addr().to_string();
/// let store = TcpStore::connect(&address, options)?;
/// store.set("a", b"1")?;
/// assert_eq!(store.add("a", 2)?, 3);
/// assert_eq!(store.get("a")?, b"3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TcpStore {
    pub(super) address: String,
    pub(super) server: SocketAddr,
    local: IpAddr,
    pub(super) options: StoreOptions,
    pub(super) connection: SharedConnection,
    /// Connections on which nobody waits at present.
    pub(super) idle: Mutex<Vec<Connection>>,
    /// A value that nobody stores; see [`TcpStore::peek`].
    pub(super) nobodys_value: [u8; 16],
}

impl TcpStore {
    /// Connects to the store at `address` (`host:port`), trying again until
    /// [`StoreOptions::timeout`] has passed.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] when no connection came about in time,
    /// [`StoreError::Protocol`] when the server is no store,
    /// [`StoreError::Unauthenticated`] when its job token does not match [`StoreOptions::access`],
    /// [`StoreError::Invalid`] when `address` is not of the form `host:port`.
    pub fn connect(address: &str, options: StoreOptions) -> Result<Self, StoreError> {
        let limit = options.timeout;
        Self::connect_within(address, options, limit)
    }

    /// [`TcpStore::connect`], trying again until `limit` has passed. Later operations have [`StoreOptions::timeout`].
    ///
    /// # Errors
    /// As [`TcpStore::connect`].
    pub fn connect_within(
        address: &str,
        options: StoreOptions,
        limit: Duration,
    ) -> Result<Self, StoreError> {
        let deadline = Deadline::within(limit);
        let (server, connection) = connect(address, &options, deadline)?;
        let local = connection.local_addr().map(|local| local.ip());
        let store = Self {
            address: address.to_owned(),
            server,
            local: local.unwrap_or_else(|_| server.ip()),
            options,
            connection: SharedConnection::new(connection.answering_at_once()),
            idle: Mutex::default(),
            nobodys_value: bytemuck::cast([random_u64(), random_u64()]),
        };
        // PyTorch's server waits for this when it expects a number of clients.
        let message = add_message(WORKER_COUNTER, 1);
        store.ask("connect", deadline, &message, Connection::i64)?;
        Ok(store)
    }

    /// This machine's address towards the server: the one under which peers may reach this rank.
    #[must_use]
    pub fn local_ip(&self) -> IpAddr {
        self.local.to_canonical()
    }

    /// The value of `key` if it is there, in one round trip.
    ///
    /// GET itself answers an absent key as an empty value (and a server of PyTorch's older
    /// kind drops whoever asks), so PyTorch's client sends WAIT before each GET. Comparing with a
    /// value that nobody stores answers both questions at once: it comes back only where the key
    /// is absent, and nothing is ever stored.
    fn peek(
        &self,
        operation: &'static str,
        key: &str,
        deadline: Deadline,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let nobodys = &self.nobodys_value;
        let message = compare_message(key, nobodys, nobodys);
        let found = self.ask(operation, deadline, &message, Connection::value)?;
        Ok(Some(found).filter(|found| found != nobodys))
    }

    pub(super) fn ready(
        &self,
        operation: &'static str,
        keys: &[&str],
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        check_keys(operation, keys)?;
        let message = keys_message(opcode::CHECK, keys);
        check_message(operation, keys.len(), &message)?;
        let answer = self.ask(operation, deadline, &message, Connection::byte)?;
        Ok(answer == CHECK_READY)
    }

    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>, StoreError> {
        let message = keys_message(opcode::MULTI_GET, keys);
        self.ask("multi_get", deadline, &message, |connection, deadline| {
            values_of(connection, keys.len(), deadline)
        })
    }

    /// Sends the requests of many keys together, and lets `read` read that many replies; as often as it takes.
    /// PyTorch's protocol has no such requests.
    fn ask_for_each(
        &self,
        operation: &'static str,
        keys: &[&str],
        request: impl Fn(&str) -> Vec<u8>,
        mut read: impl FnMut(&mut Connection, usize, Deadline) -> Result<(), Fault>,
    ) -> Result<(), StoreError> {
        let deadline = Deadline::within(self.options.timeout);
        let mut rest = keys;
        while !rest.is_empty() {
            let mut message = Vec::new();
            let mut count = 0;
            for key in rest {
                check_key(operation, key)?;
                message.extend_from_slice(&request(key));
                count += 1;
                if message.len() >= PIPELINE_BYTES {
                    break;
                }
            }
            self.ask(operation, deadline, &message, |connection, deadline| {
                read(connection, count, deadline)
            })?;
            rest = &rest[count..];
        }
        Ok(())
    }
}

/// Reads `count` values of one reply, or of one after the other.
fn values_of(
    connection: &mut Connection,
    count: usize,
    deadline: Deadline,
) -> Result<Vec<Vec<u8>>, Fault> {
    let mut total = 0;
    let mut values = Vec::new();
    for _ in 0..count {
        let value = connection.value(deadline)?;
        total += value.len();
        if total > MAX_MESSAGE_BYTES {
            let reason = format!("its reply has more than {MAX_MESSAGE_BYTES} bytes");
            return Err(Fault::Protocol(reason));
        }
        values.push(value);
    }
    Ok(values)
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_key("set", key)?;
        check_value("set", key, value)?;
        let mut message = key_message(opcode::SET, key);
        put_string(&mut message, value);
        self.send_write("set", key, &message)
    }

    fn get_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        check_key("get", key)?;
        let deadline = Deadline::within(deadline);
        // A comparison would wake all who wait for the key at a server of PyTorch's: there CHECK comes first.
        let mut waits = self.may_be_pytorchs();
        let mut pauses = early_wait_pauses();
        loop {
            if waits {
                self.wait_for("get", &[key], deadline)?;
            }
            match self.peek("get", key, self.at_least(deadline))? {
                Some(value) if !value.is_empty() => return Ok(value),
                // A server may one day answer an absent key so.
                Some(value) if self.ready("get", &[key], self.at_least(deadline))? => {
                    return Ok(value);
                }
                _ if !waits => waits = true,
                _ if deadline.left().is_zero() => return Err(timed_out("get", &[key], deadline)),
                // It was deleted after the wait for it.
                _ => pauses.sleep(deadline.left()),
            }
        }
    }

    fn multi_get_within(
        &self,
        keys: &[&str],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let deadline = Deadline::within(deadline);
        let mut pauses = early_wait_pauses();
        loop {
            self.wait_for("multi_get", keys, deadline)?;
            let values = self.multi_get(keys, self.at_least(deadline))?;
            // An absent key is answered as an empty value: one of them may have been deleted after the wait.
            if values.iter().all(|value| !value.is_empty())
                || self.ready("multi_get", keys, self.at_least(deadline))?
            {
                return Ok(values);
            }
            if deadline.left().is_zero() {
                return Err(timed_out("multi_get", keys, deadline));
            }
            pauses.sleep(deadline.left());
        }
    }

    fn try_get_many(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let nobodys = &self.nobodys_value;
        let request = |key: &str| compare_message(key, nobodys, nobodys);
        let mut found = Vec::with_capacity(keys.len());
        self.ask_for_each("try_get", keys, request, |connection, count, deadline| {
            let values = values_of(connection, count, deadline)?.into_iter();
            found.extend(values.map(|value| Some(value).filter(|value| value != nobodys)));
            Ok(())
        })?;
        Ok(found)
    }

    fn wait_within(&self, keys: &[&str], deadline: Duration) -> Result<(), StoreError> {
        self.wait_for("wait", keys, Deadline::within(deadline))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.add_within(key, amount, self.options.timeout)
    }

    fn add_within(&self, key: &str, amount: i64, limit: Duration) -> Result<i64, StoreError> {
        check_key("add", key)?;
        let deadline = Deadline::within(limit);
        let message = add_message(&user_key(key), amount);
        let failed = match self.ask("add", deadline, &message, Connection::i64) {
            Ok(sum) => return Ok(sum),
            Err(error) => error,
        };
        // The protocol's only answer to a counter that is not a number is to hang up.
        match self.peek("add", key, self.at_least(deadline)) {
            Ok(Some(value)) => match semantics::counter_after(Some(&value), amount) {
                Err(fault) => Err(fault.into_error(key, amount)),
                Ok(_) => Err(failed),
            },
            _ => Err(failed),
        }
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        check_key("compare_set", key)?;
        check_value("compare_set", key, expected)?;
        check_value("compare_set", key, desired)?;
        let deadline = Deadline::within(self.options.timeout);
        let message = compare_message(key, expected, desired);
        self.ask("compare_set", deadline, &message, Connection::value)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.ready("check", keys, Deadline::within(self.options.timeout))
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        check_key("delete", key)?;
        let deadline = Deadline::within(self.options.timeout);
        let message = key_message(opcode::DELETE_KEY, key);
        let deleted = self.ask("delete", deadline, &message, Connection::i64)?;
        Ok(deleted > 0)
    }

    fn delete_many(&self, keys: &[&str]) -> Result<(), StoreError> {
        let request = |key: &str| key_message(opcode::DELETE_KEY, key);
        self.ask_for_each("delete", keys, request, |connection, count, deadline| {
            (0..count).try_for_each(|_| connection.i64(deadline).map(drop))
        })
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        // The counter of clients is the protocol's and not the job's, so it is not counted.
        let mut message = vec![opcode::GETNUMKEYS, opcode::CHECK];
        message.extend_from_slice(&1_u64.to_ne_bytes());
        put_string(&mut message, WORKER_COUNTER);
        let deadline = Deadline::within(self.options.timeout);
        let (all, counter) = self.ask("num_keys", deadline, &message, |connection, deadline| {
            Ok((connection.i64(deadline)?, connection.byte(deadline)?))
        })?;
        let own = i64::from(counter == CHECK_READY);
        Ok(u64::try_from(all - own).unwrap_or(0))
    }

    fn timeout(&self) -> Duration {
        self.options.timeout
    }
}
