//! Waits of a client for keys that are missing.

use std::time::Duration;

use super::connection::{Connection, Deadline};
use super::fault::Fault;
use super::requests::keys_message;
use super::wire::{STOP_WAITING, WAIT_CANCELED, opcode};
use super::{StoreAccess, TcpStore};
use crate::store::StoreError;
use crate::store::backoff::Backoff;
use crate::sync::lock;

/// Connections kept for the next calls that wait.
const IDLE_CONNECTIONS: usize = 4;

/// How long the server may take to confirm that a wait is called off.
const CANCEL_DEADLINE: Duration = Duration::from_secs(5);

/// The first pause before a wait that was answered too early is repeated: a few round trips.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The longest of these pauses: ten requests per second at the most, where a server answers every wait at once.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl TcpStore {
    /// The deadline for an answer that needs no waiting, when little or nothing is left.
    pub(super) fn at_least(&self, deadline: Deadline) -> Deadline {
        Deadline::within(
            deadline
                .left()
                .max(self.options.timeout.min(CANCEL_DEADLINE)),
        )
    }

    /// Whether the server may be PyTorch's. Its newer one (libuv) answers a WAIT for a missing key as soon as another
    /// client compares that key with a value, although nothing is stored then.
    pub(super) const fn may_be_pytorchs(&self) -> bool {
        matches!(self.options.access, StoreAccess::Open)
    }

    pub(super) fn wait_for(
        &self,
        operation: &'static str,
        keys: &[&str],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        if self.ready(operation, keys, self.at_least(deadline))? {
            return Ok(());
        }
        let mut pauses = early_wait_pauses();
        while !deadline.left().is_zero() && self.wait_once(operation, keys, deadline)? {
            if !self.may_be_pytorchs() || self.ready(operation, keys, self.at_least(deadline))? {
                return Ok(());
            }
            pauses.sleep(deadline.left());
        }
        // Which of them are missing is worth a few questions more, unless they are very many.
        let missing = |key: &&&str| {
            let answer = self.ready(operation, &[**key], self.at_least(deadline));
            !matches!(answer, Ok(true))
        };
        let mut named: Vec<&str> = keys.iter().take(64).filter(missing).copied().collect();
        if named.is_empty() {
            named = keys.to_vec();
        }
        Err(timed_out(operation, &named, deadline))
    }

    /// Sends one WAIT for all keys, on a connection of its own; false when the deadline came first.
    fn wait_once(
        &self,
        operation: &'static str,
        keys: &[&str],
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        let failed = |fault| self.failed(operation, fault, deadline);
        let idle = lock(&self.idle).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            // However little time is left: being late is a timeout, not a lost connection.
            None => self.open(self.at_least(deadline)).map_err(failed)?,
        };
        let answered = wait_on(&mut connection, keys, deadline).map_err(failed)?;
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_CONNECTIONS {
            idle.push(connection);
        }
        Ok(answered)
    }
}

/// Waits on the server for all keys; false when the deadline came first. Either way the
/// connection can be used again.
fn wait_on(connection: &mut Connection, keys: &[&str], deadline: Deadline) -> Result<bool, Fault> {
    let request = keys_message(opcode::WAIT, keys);
    connection.send(&request, deadline.at_least(CANCEL_DEADLINE))?;
    match connection.byte(deadline) {
        Ok(STOP_WAITING) => return Ok(true),
        Ok(other) => return Err(unexpected(other)),
        Err(Fault::Timeout) => {}
        Err(fault) => return Err(fault),
    }
    let deadline = Deadline::within(CANCEL_DEADLINE);
    connection.send(&[opcode::CANCEL_WAIT], deadline)?;
    match connection.byte(deadline)? {
        WAIT_CANCELED => Ok(false),
        // The keys came while the cancellation was on its way.
        STOP_WAITING => match connection.byte(deadline)? {
            WAIT_CANCELED => Ok(true),
            other => Err(unexpected(other)),
        },
        other => Err(unexpected(other)),
    }
}

/// The pauses before a wait is repeated that a server has answered while keys were missing.
pub(super) const fn early_wait_pauses() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}

pub(super) fn timed_out(
    operation: &'static str,
    missing: &[&str],
    deadline: Deadline,
) -> StoreError {
    StoreError::Timeout {
        operation,
        keys: missing.iter().map(|key| (*key).to_owned()).collect(),
        waited: deadline.elapsed(),
    }
}

fn unexpected(answer: u8) -> Fault {
    Fault::Protocol(format!("{answer} is no answer to a wait"))
}
