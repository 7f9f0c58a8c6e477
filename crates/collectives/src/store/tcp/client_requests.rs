//! Requests and writes of a client over the connection that its threads share.

use everburn_record::units;

use super::TcpStore;
use super::connection::{Connection, Deadline, Unconfirmed};
use super::fault::Fault;
use crate::store::StoreError;

/// A write of at least this size is confirmed at once.
const LARGE_WRITE: usize = 256 << 10;

/// After this many bytes of smaller writes the next one is confirmed.
const CONFIRM_AFTER: usize = 4 << 20;

impl TcpStore {
    /// Sends a write, which has no reply.
    ///
    /// In PyTorch's protocol a server refuses a write by closing the connection, so a refusal shows only at
    /// the next reply. A round trip per write would be slow. So writes are noted as unconfirmed, and the
    /// next request is sent together with a ping, whose reply confirms them. Large writes, and writes after
    /// [`CONFIRM_AFTER`] unconfirmed bytes, are confirmed at once: they are the likeliest to be refused, and
    /// a round trip costs them little.
    pub(super) fn send_write(
        &self,
        operation: &'static str,
        key: &str,
        message: &[u8],
    ) -> Result<(), StoreError> {
        let deadline = Deadline::within(self.options.timeout);
        self.on_connection(operation, deadline, |connection| {
            let length = message.len();
            let unconfirmed = connection.unconfirmed_bytes() + length;
            if length < LARGE_WRITE && unconfirmed < CONFIRM_AFTER {
                connection.send(message, deadline)?;
                return connection.note(operation, key, length, deadline);
            }
            connection.note(operation, key, length, deadline)?;
            connection.send(message, deadline)?;
            connection.confirm(&[], deadline)
        })
    }

    /// Sends a request over the shared connection and reads its reply.
    pub(super) fn ask<R>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        message: &[u8],
        read: impl FnOnce(&mut Connection, Deadline) -> Result<R, Fault>,
    ) -> Result<R, StoreError> {
        self.on_connection(operation, deadline, |connection| {
            connection.confirm(message, deadline)?;
            read(connection, deadline)
        })
    }

    /// Uses the shared connection for one request.
    fn on_connection<R>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        request: impl FnOnce(&mut Connection) -> Result<R, Fault>,
    ) -> Result<R, StoreError> {
        let failed = |fault| self.failed(operation, fault, deadline);
        let mut guard = self
            .connection
            .acquire(deadline)
            .ok_or(Fault::Timeout)
            .map_err(failed)?;
        // Taken out, so that a connection that failed is not used again.
        let mut connection = match guard.connection.take() {
            Some(connection) => connection,
            None => self.open(deadline).map_err(failed)?.answering_at_once(),
        };
        let fault = match request(&mut connection) {
            Ok(reply) => {
                guard.connection = Some(connection);
                return Ok(reply);
            }
            Err(fault) => fault,
        };
        if let (Fault::Closed, Some(writes)) = (&fault, connection.into_unconfirmed())
            // A server that still accepts connections has closed this one because of a write.
            && let Ok(anew) = self.open(self.at_least(deadline))
        {
            guard.connection = Some(anew.answering_at_once());
            return Err(self.refused(writes));
        }
        Err(failed(fault))
    }

    fn refused(&self, writes: Unconfirmed) -> StoreError {
        StoreError::WriteRefused {
            address: self.address.clone(),
            operation: writes.operation,
            key: writes.key,
            others: match writes.count {
                1 => String::new(),
                count => format!(", or one of the {} writes before it", count - 1),
            },
        }
    }

    /// Opens another connection to the same server, in one attempt.
    pub(super) fn open(&self, deadline: Deadline) -> Result<Connection, Fault> {
        let key = self.options.access.key();
        Connection::open(self.server, key.as_ref(), deadline)
    }

    pub(super) fn failed(
        &self,
        operation: &'static str,
        fault: Fault,
        deadline: Deadline,
    ) -> StoreError {
        let address = self.address.clone();
        let reason = match fault {
            Fault::Protocol(reason) => return StoreError::Protocol { address, reason },
            Fault::Timeout => format!(
                "no answer within {}; the process that hosts the store may be stopped or \
                 overloaded, or the network cut",
                units::seconds(deadline.elapsed().as_secs_f64())
            ),
            Fault::Closed => "the server closed the connection; the process that hosts the store \
                              (rank 0 or the launcher) has probably ended, look at its output"
                .into(),
            Fault::UnknownName(reason) => reason,
            Fault::Io(error) => format!(
                "{error}; the process that hosts the store (rank 0 or the launcher) has probably \
                 ended, look at its output"
            ),
            Fault::NeedsToken | Fault::WrongSecret | Fault::OpenStore => format!(
                "another store now has this address: {fault}; the process that hosted the first store \
                 has probably ended, look at its output"
            ),
        };
        StoreError::Unreachable {
            address,
            operation,
            reason,
        }
    }
}
