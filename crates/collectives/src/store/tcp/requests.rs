//! Requests as a client writes them.

use super::wire::{MAX_KEYS, MAX_MESSAGE_BYTES, opcode, put_string};
use crate::store::{StoreError, user_key};

pub(super) fn key_message(opcode: u8, key: &str) -> Vec<u8> {
    let mut message = vec![opcode];
    put_string(&mut message, &user_key(key));
    message
}

pub(super) fn keys_message(opcode: u8, keys: &[&str]) -> Vec<u8> {
    let mut message = vec![opcode];
    message.extend_from_slice(&(keys.len() as u64).to_ne_bytes());
    for key in keys {
        put_string(&mut message, &user_key(key));
    }
    message
}

pub(super) fn add_message(raw_key: &[u8], amount: i64) -> Vec<u8> {
    let mut message = vec![opcode::ADD];
    put_string(&mut message, raw_key);
    message.extend_from_slice(&amount.to_ne_bytes());
    message
}

pub(super) fn compare_message(key: &str, expected: &[u8], desired: &[u8]) -> Vec<u8> {
    let mut message = key_message(opcode::COMPARE_SET, key);
    put_string(&mut message, expected);
    put_string(&mut message, desired);
    message
}

/// Refuses a request that the server would refuse.
pub(super) fn check_message(
    operation: &'static str,
    keys: usize,
    message: &[u8],
) -> Result<(), StoreError> {
    if keys <= MAX_KEYS && message.len() <= MAX_MESSAGE_BYTES {
        return Ok(());
    }
    Err(StoreError::Invalid {
        operation,
        reason: format!(
            "{keys} keys and {} bytes are too many for one request; at most {MAX_KEYS} keys and \
             {MAX_MESSAGE_BYTES} bytes are allowed",
            message.len()
        ),
    })
}
