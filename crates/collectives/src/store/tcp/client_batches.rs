//! Requests for many keys at once.

use super::TcpStore;
use super::client_waits::{early_wait_pauses, timed_out};
use super::connection::{Connection, Deadline};
use super::fault::Fault;
use super::requests::{compare_message, key_message, keys_message};
use super::wire::{MAX_MESSAGE_BYTES, opcode};
use crate::store::{StoreError, check_key};

/// How many bytes of requests are sent before their replies are read: few enough for the buffers of a connection,
/// since a server that cannot send replies takes no further requests. 400 usual keys.
const PIPELINE_BYTES: usize = 32 << 10;

impl TcpStore {
    /// Waits for all keys and returns their values in the same order.
    pub(super) fn get_all(
        &self,
        keys: &[&str],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
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

    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>, StoreError> {
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
}
