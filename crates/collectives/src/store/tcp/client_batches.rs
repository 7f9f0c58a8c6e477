//! What the TCP store offers beyond [`Store`](crate::store::Store): appending, batches and queues.

use std::time::Duration;

use super::TcpStore;
use super::connection::{Connection, Deadline, Fault};
use super::requests::{check_message, compare_message, key_message, keys_message};
use super::wire::{MAX_MESSAGE_BYTES, opcode, put_string};
use crate::store::{StoreError, check_key, check_value, user_key};

/// How many bytes of requests are sent before their replies are read: few enough for the buffers of a connection,
/// since a server that cannot send replies takes no further requests. 400 usual keys.
const PIPELINE_BYTES: usize = 32 << 10;

impl TcpStore {
    /// Appends `value` to what is under `key` (absent counts as empty).
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or the arguments are out of bounds.
    pub fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.put("append", opcode::APPEND, key, value)
    }

    /// Waits for all keys and returns their values in the same order.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when a key has not appeared within the store's timeout.
    pub fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.get_all(keys, Deadline::within(self.options.timeout))
    }

    pub(super) fn get_all(
        &self,
        keys: &[&str],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.wait_for("multi_get", keys, deadline)?;
        let deadline = self.at_least(deadline);
        let message = keys_message(opcode::MULTI_GET, keys);
        self.ask("multi_get", deadline, &message, |connection| {
            let mut total = 0;
            let mut values = Vec::new();
            for _ in keys {
                let value = connection.value(deadline)?;
                total += value.len();
                if total > MAX_MESSAGE_BYTES {
                    let reason = format!("its reply has more than {MAX_MESSAGE_BYTES} bytes");
                    return Err(Fault::Protocol(reason));
                }
                values.push(value);
            }
            Ok(values)
        })
    }

    /// The values that are there, as [`Store::try_get_many`](crate::store::Store::try_get_many). PyTorch's protocol
    /// has no such request: those of single keys are sent together, and their replies read together.
    pub(super) fn peek_all(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let nobodys = &self.nobodys_value;
        let request = |key: &str| compare_message(key, nobodys, nobodys);
        let mut found = Vec::with_capacity(keys.len());
        self.ask_for_each("try_get", keys, request, |connection, count, deadline| {
            let mut total = 0;
            for _ in 0..count {
                let value = connection.value(deadline)?;
                total += value.len();
                if total > MAX_MESSAGE_BYTES {
                    let reason = format!("its replies have more than {MAX_MESSAGE_BYTES} bytes");
                    return Err(Fault::Protocol(reason));
                }
                found.push(Some(value).filter(|value| value != nobodys));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Deletes keys, as [`Store::delete_many`](crate::store::Store::delete_many): requests of single keys are sent
    /// together.
    pub(super) fn delete_all(&self, keys: &[&str]) -> Result<(), StoreError> {
        let request = |key: &str| key_message(opcode::DELETE_KEY, key);
        self.ask_for_each("delete", keys, request, |connection, count, deadline| {
            (0..count).try_for_each(|_| connection.i64(deadline).map(drop))
        })
    }

    /// Sends the requests of many keys together, and lets `read` read that many replies; as often as it takes.
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
            self.ask(operation, deadline, &message, |connection| {
                read(connection, count, deadline)
            })?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Stores several values in one request.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or the arguments are out of bounds; at most
    /// 131,072 pairs and 64 MiB fit in one call.
    pub fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let operation = "multi_set";
        let mut message = vec![opcode::MULTI_SET];
        message.extend_from_slice(&(pairs.len() as u64).to_ne_bytes());
        for (key, value) in pairs {
            check_key(operation, key)?;
            check_value(operation, key, value)?;
            put_string(&mut message, &user_key(key));
            put_string(&mut message, value);
        }
        check_message(operation, pairs.len(), &message)?;
        let first = pairs.first().map_or("", |(key, _)| key);
        self.send_write(operation, first, &message)
    }

    /// Appends an item to the queue under `key` and wakes one of those who wait for it.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached or the arguments are out of bounds.
    pub fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.put("queue_push", opcode::QUEUE_PUSH, key, value)
    }

    /// Takes the first item of the queue under `key`; `None` where there is none now.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.pop(key, Deadline::within(self.options.timeout))
    }

    /// Takes the first item of the queue under `key`, waiting for one until `deadline` has passed.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] when no item has come in time.
    pub fn queue_pop_within(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        let deadline = Deadline::within(deadline);
        loop {
            // The time to ask is not taken from a deadline that is over already.
            if let Some(item) = self.pop(key, self.at_least(deadline))? {
                return Ok(item);
            }
            self.wait_for("queue_pop", &[key], deadline)?;
            // The key may be there without an item: as a plain value, or another took the item.
            if deadline.left().is_zero() {
                return Err(StoreError::Timeout {
                    operation: "queue_pop",
                    keys: vec![key.to_owned()],
                    waited: deadline.elapsed(),
                });
            }
        }
    }

    /// How many items the queue under `key` holds.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        check_key("queue_len", key)?;
        let deadline = Deadline::within(self.options.timeout);
        let message = key_message(opcode::QUEUE_LEN, key);
        let length = self.ask("queue_len", deadline, &message, |connection| {
            connection.i64(deadline)
        })?;
        Ok(u64::try_from(length).unwrap_or(0))
    }

    fn pop(&self, key: &str, deadline: Deadline) -> Result<Option<Vec<u8>>, StoreError> {
        check_key("queue_pop", key)?;
        let message = key_message(opcode::QUEUE_POP, key);
        self.ask(
            "queue_pop",
            deadline,
            &message,
            |connection| match connection.i64(deadline)? {
                0 => Ok(None),
                _ => connection.value(deadline).map(Some),
            },
        )
    }
}
