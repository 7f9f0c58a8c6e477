//! One client's connection as the server sees it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::time::{Duration, Instant};

use everburn_auth::AuthError;
use mio::net::TcpStream;

use super::StoreOptions;
use super::contents::{ClientId, Contents, FREE_BUFFER, Refusal, buffer_cost};
use super::greeting::{GREETING_BYTES, Greeting, Step};
use super::wire::{AUTH_REFUSED, Request, STOP_WAITING, Scanner, WireFault};

/// With more than this to send, a client's next requests wait until it has taken its replies.
const HIGH_WATER: usize = 1 << 20;

/// Requests carried out for one client before it is another one's turn.
const REQUESTS_IN_A_ROW: usize = 256;

/// After this many requests in one turn without an answer, the client sends a stream of writes.
const STREAM_REQUESTS: usize = 2;

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
    #[error("it has a job token, and this store is open")]
    OpenStore,
    #[error(
        "its job token does not match, or it has none; check that EVERBURN_JOB_TOKEN is the same on \
         every machine"
    )]
    WrongToken,
    #[error("{0}")]
    Auth(AuthError),
    #[error("it had not finished its handshake when newer connections needed its place")]
    Evicted,
    #[error("it took longer than allowed for its handshake, for one request or to read a reply")]
    Late,
}

impl Closing {
    /// Whether the client did not prove the job's secret, or speaks another version.
    pub(super) const fn is_unproved(&self) -> bool {
        matches!(
            self,
            Self::NoClient | Self::OpenStore | Self::WrongToken | Self::Auth(_)
        )
    }
}

/// Whether a connection has more to do at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing until the socket is ready again.
    Done,
    /// It had its share; others first.
    Again,
}

#[derive(Debug)]
enum Phase {
    /// Not a client yet.
    Greeting(Greeting),
    Validated,
    /// It was refused; what it sends is thrown away until it leaves.
    Refused,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) stream: TcpStream,
    /// Where it connects from, as long as that was known.
    pub(super) from: Option<IpAddr>,
    id: ClientId,
    phase: Phase,
    /// The other side sends no more: read to the end even after a short read.
    pub(super) half_closed: bool,
    /// It had closed the connection before it was challenged, so it left for another reason than the server's proof.
    gone_unchallenged: bool,
    input: Vec<u8>,
    /// Requests before this offset of `input` are done.
    done: usize,
    scanner: Scanner,
    output: Vec<u8>,
    sent: usize,
    /// What the two buffers take from the budget of the contents.
    charged: usize,
    /// Something has been sent since the owner last looked.
    pub(super) answered: bool,
    /// Its stream of writes is acknowledged at once; see [`Peer::acknowledge_at_once`].
    acknowledges_at_once: bool,
    deadline: Option<Instant>,
}

impl Peer {
    pub(super) fn new(id: ClientId, stream: TcpStream, options: &StoreOptions) -> Self {
        let from = stream.peer_addr().map(|address| address.ip());
        Self {
            from: from.ok(),
            stream,
            id,
            phase: Phase::Greeting(Greeting::New),
            half_closed: false,
            gone_unchallenged: false,
            input: Vec::new(),
            done: 0,
            scanner: Scanner::default(),
            output: Vec::new(),
            sent: 0,
            charged: 0,
            answered: false,
            acknowledges_at_once: false,
            deadline: Some(Instant::now() + options.handshake_timeout),
        }
    }

    /// Whether it has still to show that it is a client.
    pub(super) const fn is_pending(&self) -> bool {
        !matches!(self.phase, Phase::Validated)
    }

    /// Gives back what the connection held of the contents' budget; it is of no use afterwards.
    pub(super) fn release(self, contents: &mut Contents) {
        contents.forget(self.id);
        // Giving back is never refused.
        let _ = contents.charge(0, self.charged);
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
                if !self.next_message(contents, options, woken)? {
                    needs_more = true;
                    break;
                }
                requests -= 1;
                if self.unsent() > HIGH_WATER && !self.flush()? {
                    break;
                }
                self.settle(contents)?;
            }
            self.flush()?;
            self.settle(contents)?;
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
            self.settle(contents)?;
            // Of a pending connection only the greeting is read.
            let room = match self.phase {
                Phase::Greeting(_) => GREETING_BYTES.min(scratch.len()),
                Phase::Validated | Phase::Refused => scratch.len(),
            };
            match self.stream.read(&mut scratch[..room]) {
                Ok(0) => return Err(self.left()),
                // One piece at a time: who sends without end must not keep the others waiting.
                Ok(_) if matches!(self.phase, Phase::Refused) => break Turn::Again,
                Ok(count) => {
                    self.take_in(&scratch[..count], contents)?;
                    // A short read has emptied the socket: the next bytes come with an event.
                    drained = count < room && !self.half_closed;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Turn::Done,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        if !self.answered && REQUESTS_IN_A_ROW - requests >= STREAM_REQUESTS {
            self.acknowledge_at_once()?;
        }
        self.watch(options);
        Ok(turn)
    }

    /// Ends the kernel's habit, after an answer, of waiting up to 40 ms for the next one to take the
    /// acknowledgement along. A client that sends a stream of writes may hold the rest of it back until then.
    fn acknowledge_at_once(&mut self) -> io::Result<()> {
        if !self.acknowledges_at_once {
            #[cfg(target_os = "linux")]
            rustix::net::sockopt::set_tcp_quickack(&self.stream, true)?;
            self.acknowledges_at_once = true;
        }
        Ok(())
    }

    /// Why the client has closed the connection. A client with another token does so after the server's proof
    /// or refusal.
    fn left(&self) -> Closing {
        match self.phase {
            Phase::Greeting(Greeting::Challenged(_)) if self.gone_unchallenged => Closing::Left,
            Phase::Refused | Phase::Greeting(Greeting::Challenged(_)) => Closing::WrongToken,
            Phase::Greeting(_) | Phase::Validated => Closing::Left,
        }
    }

    /// Tells the client that its wait is over.
    pub(super) fn stop_waiting(&mut self, options: &StoreOptions) -> Result<(), Closing> {
        self.output.push(STOP_WAITING);
        self.flush()?;
        self.watch(options);
        Ok(())
    }

    /// Keeps bytes of a request, where the budget has room for the buffer that they need.
    fn take_in(&mut self, bytes: &[u8], contents: &mut Contents) -> Result<(), Refusal> {
        let (length, capacity) = (self.input.len(), self.input.capacity());
        if length + bytes.len() > capacity {
            // By a quarter: large values should not take twice their size.
            let grown = (length + bytes.len()).max(capacity + capacity / 4);
            contents.fits(buffer_cost(grown) - buffer_cost(capacity))?;
            self.input.reserve_exact(grown - length);
        }
        self.input.extend_from_slice(bytes);
        self.settle(contents)
    }

    /// Charges the buffers as they are now.
    fn settle(&mut self, contents: &mut Contents) -> Result<(), Refusal> {
        let cost = buffer_cost(self.input.capacity()) + buffer_cost(self.output.capacity());
        if cost != self.charged {
            contents.charge(cost, self.charged)?;
            self.charged = cost;
        }
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
                    self.acknowledges_at_once = false;
                    self.progressed();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.forget_sent_output();
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.sent = 0;
        empty(&mut self.output);
        Ok(true)
    }

    /// A client that always has something to read would have its output grow without end.
    fn forget_sent_output(&mut self) {
        if self.sent > HIGH_WATER {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn progressed(&mut self) {
        if matches!(self.phase, Phase::Validated) {
            self.deadline = None;
        }
    }

    /// Sets the deadline for what the client owes: the rest of a request, or taking its reply.
    fn watch(&mut self, options: &StoreOptions) {
        if !matches!(self.phase, Phase::Validated) {
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

    /// Carries out the next whole message of the input; false where there is none.
    fn next_message(
        &mut self,
        contents: &mut Contents,
        options: &StoreOptions,
        woken: &mut Vec<ClientId>,
    ) -> Result<bool, Closing> {
        let input = &self.input[self.done..];
        match &mut self.phase {
            Phase::Refused => return Ok(false),
            Phase::Greeting(greeting) => {
                match greeting.step(input, &options.access, &mut self.output)? {
                    Step::Unfinished => return Ok(false),
                    Step::Message(length) => {
                        self.done += length;
                        self.gone_unchallenged |= self.half_closed;
                    }
                    Step::Done(length) => {
                        self.done += length;
                        self.phase = Phase::Validated;
                        self.deadline = None;
                    }
                    Step::Refuse => {
                        self.refuse()?;
                        return Ok(false);
                    }
                }
            }
            Phase::Validated => {
                let Some(length) = self.scanner.scan(input)? else {
                    return Ok(false);
                };
                let request = Request::parse(&input[..length])?;
                contents.apply(self.id, &request, &mut self.output, woken)?;
                self.deadline = None;
                self.done += length;
            }
        }
        Ok(true)
    }

    /// Sends a refusal. The connection is then read to its end: closing a socket with unread data resets the
    /// connection, and the client would not receive the refusal.
    fn refuse(&mut self) -> Result<(), Closing> {
        self.phase = Phase::Refused;
        self.output.push(AUTH_REFUSED);
        if !self.flush()? {
            return Err(Closing::WrongToken);
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
    if buffer.capacity() > FREE_BUFFER {
        *buffer = Vec::new();
    }
}

#[cfg(test)]
mod tests;
