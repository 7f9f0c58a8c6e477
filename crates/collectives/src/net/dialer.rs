//! The dialing side of the handshake.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use everburn_auth::{Dialer, Key};
use socket2::{Domain, Protocol, Socket, Type};

use super::hello::{ANSWER_BYTES, Hello, Responder, VERDICT_BYTES, Verdict, context};

/// The timeout of one attempt; between attempts a rank checks for failures, and for another address.
const DIAL: Duration = Duration::from_secs(5);

/// A failed attempt.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The other side has another world size.
    WorldSize { theirs: usize },
    /// Another attempt may succeed.
    Failed(String),
}

/// Makes one attempt to connect to rank `peer` at `address`, which ends no later than `deadline`. `prepare` sets options
/// of the socket. The stream is blocking; its timeouts are of the handshake.
pub(crate) fn dial(
    address: SocketAddr,
    prepare: impl FnOnce(&Socket),
    key: &Key,
    hello: &Hello,
    peer: usize,
    deadline: Instant,
) -> Result<TcpStream, DialError> {
    let deadline = deadline.min(Instant::now() + DIAL);
    let connect = || {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        prepare(&socket);
        socket.connect_timeout(&address.into(), left(deadline)?)?;
        Ok(TcpStream::from(socket))
    };
    let mut stream = connect().map_err(|error: io::Error| DialError::Failed(error.to_string()))?;
    introduce(&mut stream, key, hello, peer, deadline)?;
    Ok(stream)
}

/// Does the handshake on a connection to rank `peer`, and returns once it is accepted there. The stream
/// must be blocking; its timeouts are changed.
pub(crate) fn introduce(
    stream: &mut TcpStream,
    key: &Key,
    hello: &Hello,
    peer: usize,
    deadline: Instant,
) -> Result<(), DialError> {
    let closed =
        |error: io::Error| DialError::Failed(format!("closed during the handshake: {error}"));
    let failed = |reason: String| DialError::Failed(reason);
    // The proofs cover the answer too, so the context is set after it.
    let dialer = Dialer::new(key, &[]).map_err(|error| failed(error.to_string()))?;
    write_within(stream, &hello.encode(dialer.nonce()), deadline).map_err(closed)?;
    let mut answer = [0; ANSWER_BYTES];
    read_within(stream, &mut answer, deadline).map_err(closed)?;
    let (responder, challenge) = Responder::decode(&answer);
    let proof = dialer
        .with_context(&context(hello, responder))
        .answer(&challenge)
        .map_err(|error| {
            failed(format!(
                "{error}; check that EVERBURN_JOB_TOKEN is the same on every machine"
            ))
        })?;
    if responder.rank != peer {
        return Err(failed(format!("rank {} answered", responder.rank)));
    }
    write_within(stream, &proof, deadline).map_err(closed)?;
    let mut verdict = [0; VERDICT_BYTES];
    read_within(stream, &mut verdict, deadline).map_err(closed)?;
    match Verdict::decode(verdict).map_err(failed)? {
        Verdict::Accepted => Ok(()),
        Verdict::WorldSizeDiffers => Err(DialError::WorldSize {
            theirs: responder.world_size,
        }),
        Verdict::Taken => Err(failed(format!(
            "it is connected with another process that is rank {}",
            hello.rank
        ))),
        Verdict::NotExpected => Err(failed("it waits for no such connection".to_owned())),
    }
}

fn write_within(stream: &mut TcpStream, bytes: &[u8], deadline: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(bytes)
}

/// Fills `bytes` before `deadline`.
fn read_within(stream: &mut TcpStream, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The time until `deadline`.
///
/// # Errors
/// [`ErrorKind::TimedOut`] when it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}
