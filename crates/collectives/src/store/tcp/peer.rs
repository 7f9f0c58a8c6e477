//! One client's connection as the server sees it.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::StoreOptions;
use super::contents::{ClientId, Contents, Refusal};
use super::wire::{
    AUTH_ACCEPTED, AUTH_OPCODE, AUTH_REFUSED, Request, STOP_WAITING, Scanner, VALIDATION_MAGIC,
    WireFault, opcode,
};

/// With more than this to send, a client's next requests wait until it has taken its replies.
const HIGH_WATER: usize = 1 << 20;

/// Buffers larger than this are given back once they are empty.
const KEPT_BUFFER: usize = 64 * 1024;

/// Requests carried out for one client before it is another one's turn.
const REQUESTS_IN_A_ROW: usize = 256;

/// How long a refused client may take to read that it is.
const REFUSED_LINGER: Duration = Duration::from_secs(2);

/// Why a connection is closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Closing {
    #[error("the client left")]
    Left,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("{0}")]
    Wire(#[from] WireFault),
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("it did not begin with PyTorch's validation message")]
    NoClient,
    #[error("it was refused for want of the job token")]
    NoToken,
    #[error("it took longer than allowed for its handshake, for one request or to read a reply")]
    Late,
}

/// Whether a connection has more to do at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing until the socket is ready again.
    Done,
    /// It had its share; others first.
    Again,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing said yet.
    New,
    /// The token was right; validation is next.
    Authenticated,
    Validated,
    /// Told that it is refused; what it sends is thrown away until it leaves.
    Refused,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stream: TcpStream,
    id: ClientId,
    phase: Phase,
    /// The other side sends no more: read to the end even after a short read.
    pub(super) half_closed: bool,
    input: Vec<u8>,
    /// Requests before this offset of `input` are done.
    done: usize,
    scanner: Scanner,
    output: Vec<u8>,
    sent: usize,
    /// Something has been sent since the owner last looked.
    pub(super) answered: bool,
    deadline: Option<Instant>,
}

impl Peer {
    pub(super) fn new(id: ClientId, stream: TcpStream, options: &StoreOptions) -> Self {
        Self {
            stream,
            id,
            phase: Phase::New,
            half_closed: false,
            input: Vec::new(),
            done: 0,
            scanner: Scanner::default(),
            output: Vec::new(),
            sent: 0,
            answered: false,
            deadline: Some(Instant::now() + options.handshake_timeout),
        }
    }

    /// When the connection is closed unless it gets further; `None` while nothing is expected.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Does all that can be done without waiting. Clients that this one has woken are appended to
    /// `woken`.
    pub(super) fn take_turn(
        &mut self,
        contents: &mut Contents,
        options: &StoreOptions,
        scratch: &mut [u8],
        woken: &mut Vec<ClientId>,
    ) -> Result<Turn, Closing> {
        let mut requests = REQUESTS_IN_A_ROW;
        let mut drained = false;
        let turn = loop {
            let mut needs_more = false;
            while requests > 0 {
                let Some(length) = self.next_request(options)? else {
                    needs_more = true;
                    break;
                };
                self.carry_out(length, contents, options, woken)?;
                requests -= 1;
                if self.unsent() > HIGH_WATER && !self.flush()? {
                    break;
                }
            }
            self.flush()?;
            if self.unsent() > HIGH_WATER {
                break Turn::Done;
            }
            if !needs_more {
                if requests == 0 {
                    break Turn::Again;
                }
                continue;
            }
            if drained {
                break Turn::Done;
            }
            self.forget_done_input();
            match self.stream.read(scratch) {
                Ok(0) => return Err(Closing::Left),
                // One piece at a time: who sends without end must not keep the others waiting.
                Ok(_) if self.phase == Phase::Refused => break Turn::Again,
                Ok(count) => {
                    self.input.extend_from_slice(&scratch[..count]);
                    // A short read has emptied the socket: the next bytes come with an event.
                    drained = count < scratch.len() && !self.half_closed;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Turn::Done,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        self.watch(options);
        Ok(turn)
    }

    /// Tells the client that its wait is over.
    pub(super) fn stop_waiting(&mut self, options: &StoreOptions) -> Result<(), Closing> {
        self.output.push(STOP_WAITING);
        self.flush()?;
        self.watch(options);
        Ok(())
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Sends what the socket takes; true when nothing is left.
    fn flush(&mut self) -> Result<bool, Closing> {
        while self.unsent() > 0 {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(Closing::Left),
                Ok(count) => {
                    self.sent += count;
                    self.answered = true;
                    self.progressed();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.sent = 0;
        empty(&mut self.output);
        Ok(true)
    }

    fn progressed(&mut self) {
        if self.phase == Phase::Validated {
            self.deadline = None;
        }
    }

    /// Sets the deadline for what the client owes: the rest of a request, or taking its reply.
    fn watch(&mut self, options: &StoreOptions) {
        if self.phase != Phase::Validated {
            return;
        }
        let owes = self.done < self.input.len() || self.unsent() > 0;
        self.deadline = match self.deadline {
            _ if !owes => None,
            None => Some(Instant::now() + options.request_timeout),
            running => running,
        };
    }

    fn forget_done_input(&mut self) {
        if self.done == self.input.len() {
            empty(&mut self.input);
        } else {
            self.input.drain(..self.done);
        }
        self.done = 0;
    }

    fn next_request(&mut self, options: &StoreOptions) -> Result<Option<usize>, Closing> {
        if self.phase == Phase::Refused {
            return Ok(None);
        }
        self.check_first_byte(options)?;
        if self.phase == Phase::Refused {
            return Ok(None);
        }
        Ok(self.scanner.scan(&self.input[self.done..])?)
    }

    /// Before validation two opcodes are allowed, and nobody waits for more bytes to see that.
    fn check_first_byte(&mut self, options: &StoreOptions) -> Result<(), Closing> {
        let Some(&first) = self.input.get(self.done) else {
            return Ok(());
        };
        let needs_token = options.job_token.is_some();
        match (self.phase, first) {
            (Phase::Validated | Phase::Refused, _)
            | (Phase::New, AUTH_OPCODE)
            | (Phase::Authenticated, opcode::VALIDATE) => Ok(()),
            (Phase::New, opcode::VALIDATE) if !needs_token => Ok(()),
            (Phase::New, _) if needs_token => self.refuse(),
            _ => Err(Closing::NoClient),
        }
    }

    fn carry_out(
        &mut self,
        length: usize,
        contents: &mut Contents,
        options: &StoreOptions,
        woken: &mut Vec<ClientId>,
    ) -> Result<(), Closing> {
        let request = Request::parse(&self.input[self.done..self.done + length])?;
        match (self.phase, &request) {
            (Phase::Validated, request) => {
                contents.apply(self.id, request, &mut self.output, woken)?;
                self.deadline = None;
            }
            (Phase::New, Request::Auth(token)) => {
                let right = options
                    .job_token
                    .as_ref()
                    .is_none_or(|expected| equal_in_constant_time(expected.as_bytes(), token));
                if !right {
                    return self.refuse();
                }
                self.output.push(AUTH_ACCEPTED);
                self.phase = Phase::Authenticated;
            }
            (_, Request::Validate(VALIDATION_MAGIC)) => {
                self.phase = Phase::Validated;
                self.deadline = None;
            }
            _ => return Err(Closing::NoClient),
        }
        self.done += length;
        Ok(())
    }

    /// Says that the token is needed. Closing at once would make the kernel throw that answer
    /// away together with what the client may still be sending, so it is read to its end first.
    fn refuse(&mut self) -> Result<(), Closing> {
        self.phase = Phase::Refused;
        self.output.push(AUTH_REFUSED);
        if !self.flush()? {
            return Err(Closing::NoToken);
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.input = Vec::new();
        self.done = 0;
        let linger = Instant::now() + REFUSED_LINGER;
        self.deadline = Some(self.deadline.map_or(linger, |already| already.min(linger)));
        Ok(())
    }
}

fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_BUFFER {
        *buffer = Vec::new();
    }
}

/// Compares without telling by the time it takes how much of the token was right.
fn equal_in_constant_time(expected: &[u8], given: &[u8]) -> bool {
    let mut difference = u8::from(expected.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        let own = expected.get(index % expected.len().max(1)).unwrap_or(&0);
        difference |= black_box(byte ^ own);
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::equal_in_constant_time;

    #[test]
    fn tokens_are_equal_only_as_a_whole() {
        assert!(equal_in_constant_time(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secretsecret", b"Secret"] {
            assert!(!equal_in_constant_time(b"secret", wrong));
        }
    }
}
