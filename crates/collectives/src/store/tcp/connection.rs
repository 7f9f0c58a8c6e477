//! One connection of a client to a server.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use everburn_auth::{CHALLENGE_BYTES, Dialer, Key};
use everburn_record::plain;
use socket2::{SockRef, TcpKeepalive};

use super::fault::Fault;
use super::wire::{
    AUTH_ACCEPTED, AUTH_OPCODE, AUTH_REFUSED, MAX_MESSAGE_BYTES, VALIDATION_MAGIC, opcode,
};
use crate::runtime::{self, stopped_parent};

/// The kernel asks after a silent peer this often.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// After this many writes in a row, the kernel joins further ones. Fewer are sent one by one.
const STREAM_WRITES: usize = 32;

/// A write that comes later than this after the one before it is not in a row with it.
const STREAM_GAP: Duration = Duration::from_millis(1);

/// After this long without an answer, a warning is logged.
const OVERDUE: Duration = Duration::from_secs(10);

/// A moment after which an operation has failed, and when it began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn within(limit: Duration) -> Self {
        Self {
            started: runtime::now(),
            limit,
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        runtime::elapsed(self.started)
    }

    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.elapsed())
    }

    /// This deadline, but no earlier than `limit` from now.
    pub(crate) fn at_least(&self, limit: Duration) -> Self {
        Self::within(self.left().max(limit))
    }

    /// This deadline, but no later than `limit` from now.
    pub(super) fn at_most(&self, limit: Duration) -> Self {
        Self::within(self.left().min(limit))
    }
}

/// A validated connection with at most one request outstanding.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// The socket's present timeout, to spare a system call where it is right already.
    armed: Option<Duration>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Only while there are unconfirmed writes; see [`Connection::join_small_writes`].
    joins_writes: bool,
    unconfirmed: Option<Unconfirmed>,
    /// Whether answers come at once, so that a missing one deserves a warning.
    answers_at_once: bool,
}

/// Writes of which it is not known whether the server has taken them.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    /// The last of them.
    pub(super) operation: &'static str,
    pub(super) key: String,
    pub(super) count: usize,
    bytes: usize,
    /// How many came right after one another, up to the last.
    in_a_row: usize,
    latest: Instant,
}

impl Connection {
    /// Connects and shakes hands.
    pub(super) fn open(
        address: SocketAddr,
        key: Option<&Key>,
        deadline: Deadline,
    ) -> Result<Self, Fault> {
        let left = deadline.left();
        if left.is_zero() {
            return Err(Fault::Timeout);
        }
        // What goes wrong here is about the address and not about a server.
        let stream = TcpStream::connect_timeout(&address, left).map_err(Fault::Io)?;
        if stream.local_addr().is_ok_and(|local| local == address) {
            // Without a listener, a port of the ephemeral range can connect to itself.
            return Err(Fault::Io(io::ErrorKind::ConnectionRefused.into()));
        }
        stream.set_nodelay(true)?;
        // A wait may stay silent for minutes: whatever forgets silent connections must not.
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        let mut connection = Self {
            stream,
            armed: None,
            buffer: vec![0; 64 * 1024].into_boxed_slice(),
            start: 0,
            end: 0,
            joins_writes: false,
            unconfirmed: None,
            answers_at_once: false,
        };
        if let Some(key) = key {
            connection.authenticate(key, deadline)?;
        }
        // PyTorch's client sends these as two writes.
        let mut validate = vec![opcode::VALIDATE];
        validate.extend_from_slice(&VALIDATION_MAGIC.to_ne_bytes());
        connection.send(&validate, deadline)?;
        connection.ping(deadline)?;
        Ok(connection)
    }

    fn authenticate(&mut self, key: &Key, deadline: Deadline) -> Result<(), Fault> {
        let dialer = Dialer::new(key, &[])?;
        let mut message = vec![AUTH_OPCODE];
        message.extend_from_slice(dialer.nonce());
        self.send(&message, deadline)?;
        let challenge = self.fixed::<CHALLENGE_BYTES>(deadline)?;
        // A nonce is drawn from all bytes: one of text alone is that of another service, such as HTTP.
        let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
        if challenge.iter().all(is_text) {
            let answer = plain::line(&String::from_utf8_lossy(&challenge), CHALLENGE_BYTES);
            return Err(Fault::Protocol(format!(
                "it is no store: it answered `{answer}`; check the address, or choose another port on every machine"
            )));
        }
        let proof = dialer.answer(&challenge)?;
        self.send(&proof, deadline)?;
        match self.byte(deadline)? {
            AUTH_ACCEPTED => Ok(()),
            _ => Err(Fault::WrongSecret),
        }
    }

    /// Notes a write that has no reply, with the deadline that began when it was asked for.
    pub(super) fn note(
        &mut self,
        operation: &'static str,
        key: &str,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<(), Fault> {
        let now = deadline.started;
        let writes = self.unconfirmed.get_or_insert_with(|| Unconfirmed {
            operation,
            key: String::new(),
            count: 0,
            bytes: 0,
            in_a_row: 0,
            latest: now,
        });
        writes.operation = operation;
        key.clone_into(&mut writes.key);
        writes.count += 1;
        writes.bytes += bytes;
        if now.duration_since(writes.latest) > STREAM_GAP {
            writes.in_a_row = 0;
        }
        writes.in_a_row += 1;
        writes.latest = now;
        let joins = writes.in_a_row >= STREAM_WRITES;
        self.join_small_writes(joins)
    }

    /// Has the kernel hold back what does not fill a packet while the server has not acknowledged what was
    /// sent before it (Nagle's algorithm), or send at once what is held back and what follows.
    ///
    /// A packet for each small write costs its sender several times as much as the write. A stream of them
    /// goes in a few large packets instead, one for each time that the server reads. Ours acknowledges a
    /// stream as it reads it; another one may do so 40 ms later, and the stream's last write then comes as late,
    /// unless a request follows.
    fn join_small_writes(&mut self, joins: bool) -> Result<(), Fault> {
        if joins != self.joins_writes {
            self.stream.set_nodelay(!joins)?;
            self.joins_writes = joins;
        }
        Ok(())
    }

    pub(super) fn unconfirmed_bytes(&self) -> usize {
        self.unconfirmed.as_ref().map_or(0, |writes| writes.bytes)
    }

    pub(super) fn into_unconfirmed(self) -> Option<Unconfirmed> {
        self.unconfirmed
    }

    /// Sends a request, after a ping where writes are unconfirmed. The server answers in order, so
    /// the answer to the ping says that it has taken them.
    pub(super) fn confirm(&mut self, message: &[u8], deadline: Deadline) -> Result<(), Fault> {
        if self.unconfirmed.is_none() {
            return self.send(message, deadline);
        }
        let nonce = random_u64() as u32;
        let request = [&ping_message(nonce)[..], message].concat();
        self.send(&request, deadline)?;
        self.join_small_writes(false)?;
        if self.fixed(deadline).map(u32::from_ne_bytes)? != nonce {
            return Err(altered());
        }
        self.unconfirmed = None;
        Ok(())
    }

    fn ping(&mut self, deadline: Deadline) -> Result<(), Fault> {
        let nonce = random_u64() as u32;
        self.send(&ping_message(nonce), deadline)?;
        let first = self.byte(deadline)?;
        let rest = self.fixed::<3>(deadline);
        if matches!(rest, Err(Fault::Closed)) && first == AUTH_REFUSED {
            return Err(Fault::NeedsToken);
        }
        let [a, b, c] = rest?;
        if u32::from_ne_bytes([first, a, b, c]) != nonce {
            return Err(altered());
        }
        Ok(())
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Makes the socket give up when the deadline comes, or a little before: callers look at the
    /// clock then.
    fn arm(&mut self, deadline: Deadline) -> Result<(), Fault> {
        let left = deadline.left();
        if left.is_zero() {
            return Err(Fault::Timeout);
        }
        let near = |armed: Duration| armed <= left && armed >= left.mul_f64(0.9);
        if !self.armed.is_some_and(near) {
            // A little less than what is left serves many operations of the same deadline.
            let timeout = left.mul_f64(0.99).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(timeout))?;
            self.stream.set_write_timeout(Some(timeout))?;
            self.armed = Some(timeout);
        }
        Ok(())
    }

    pub(super) fn send(&mut self, mut message: &[u8], deadline: Deadline) -> Result<(), Fault> {
        while !message.is_empty() {
            self.arm(deadline)?;
            match self.stream.write(message) {
                Ok(0) => return Err(Fault::Closed),
                Ok(count) => message = &message[count..],
                Err(error) => retry_or_fail(error, deadline)?,
            }
        }
        Ok(())
    }

    /// A connection on which nobody waits: an answer that takes [`OVERDUE`] is warned of.
    pub(super) fn answering_at_once(mut self) -> Self {
        self.answers_at_once = true;
        self
    }

    /// Waits for more bytes and returns how many have come.
    fn receive(&mut self, deadline: Deadline) -> Result<(), Fault> {
        self.start = 0;
        self.end = 0;
        let mut overdue = self.answers_at_once.then(|| Deadline::within(OVERDUE));
        loop {
            if overdue.is_some_and(|overdue| overdue.left().is_zero()) {
                overdue = None;
                self.warn_of_silence(deadline);
            }
            self.arm(overdue.map_or(deadline, |overdue| deadline.at_most(overdue.left())))?;
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(Fault::Closed),
                Ok(count) => {
                    self.end = count;
                    return Ok(());
                }
                Err(error) => retry_or_fail(error, deadline)?,
            }
        }
    }

    fn warn_of_silence(&self, deadline: Deadline) {
        let peer = self.stream.peer_addr();
        let address = peer.map_or_else(|_| "the network".to_owned(), |peer| peer.to_string());
        tracing::warn!(
            "{}",
            not_answered(&address, deadline.left(), stopped_parent())
        );
    }

    fn fixed<const N: usize>(&mut self, deadline: Deadline) -> Result<[u8; N], Fault> {
        let mut raw = [0; N];
        for byte in &mut raw {
            if self.start == self.end {
                self.receive(deadline)?;
            }
            *byte = self.buffer[self.start];
            self.start += 1;
        }
        Ok(raw)
    }

    pub(super) fn byte(&mut self, deadline: Deadline) -> Result<u8, Fault> {
        let [byte] = self.fixed(deadline)?;
        Ok(byte)
    }

    pub(super) fn i64(&mut self, deadline: Deadline) -> Result<i64, Fault> {
        self.fixed(deadline).map(i64::from_ne_bytes)
    }

    /// A value: its length, then its bytes.
    pub(super) fn value(&mut self, deadline: Deadline) -> Result<Vec<u8>, Fault> {
        let length = self.fixed(deadline).map(u64::from_ne_bytes)?;
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= MAX_MESSAGE_BYTES)
            .ok_or_else(|| Fault::Protocol(format!("it announced a value of {length} bytes")))?;
        // The memory grows with what has come, not with what was announced.
        let mut value = Vec::new();
        while value.len() < length {
            if self.start == self.end {
                self.receive(deadline)?;
            }
            let count = (self.end - self.start).min(length - value.len());
            value.extend_from_slice(&self.buffer[self.start..self.start + count]);
            self.start += count;
        }
        Ok(value)
    }
}

/// What is said of a store that has not answered for long, where a request waits for what is `left` and then fails: no step
/// needs one. The launcher of this machine is a `stopped` process, if it is.
fn not_answered(address: &str, left: Duration, stopped: Option<u32>) -> String {
    let what_to_do = match stopped {
        Some(process) => format!(
            "the launcher of this machine (process {process}) is stopped: `kill -CONT {process}`, or `fg` in its terminal, \
             continues it"
        ),
        None => "check whether the process that hosts it, the launcher of machine 0 or rank 0, is stopped (SIGSTOP, Ctrl-Z, a \
                 debugger) or overloaded, and the network to it"
            .to_owned(),
    };
    format!(
        "the store at {address} has not answered for {:.0} s; ranks that train continue without heartbeats, and one that has to \
         meet others, at the start or after a loss, waits {:.0} s more: {what_to_do}",
        OVERDUE.as_secs_f64(),
        left.as_secs_f64()
    )
}

fn ping_message(nonce: u32) -> [u8; 5] {
    let [a, b, c, d] = nonce.to_ne_bytes();
    [opcode::PING, a, b, c, d]
}

fn altered() -> Fault {
    Fault::Protocol("the ping came back altered; this is not a store".into())
}

/// A number that no other client is likely to draw. The standard library seeds its hash maps from
/// the system's randomness; no generator is needed for nonces and jitter.
pub(crate) fn random_u64() -> u64 {
    runtime::simulated_random().unwrap_or_else(|| RandomState::new().build_hasher().finish())
}

/// Continues after an interruption, or where the socket gave up a little before the deadline.
fn retry_or_fail(error: io::Error, deadline: Deadline) -> Result<(), Fault> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if !deadline.left().is_zero() => Ok(()),
        _ => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
