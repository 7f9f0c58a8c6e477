//! A pending connection: accepted, but not yet authenticated.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Instant;

use everburn_auth::{Key, PROOF_BYTES};

use super::hello::{HELLO_BYTES, Hello, Responder, Verdict, context};
use crate::fields::field;

/// The next message expected of a pending connection.
enum Stage {
    Hello,
    Proof(Box<(Hello, everburn_auth::Acceptor)>),
}

/// The result of advancing a pending connection.
pub(super) enum Progress {
    /// More bytes are needed.
    Waiting,
    /// The connection is authenticated; the verdict is due.
    Proved(Hello),
    /// The connection must be closed, for this reason.
    Refused(String),
}

/// A non-blocking connection during the handshake.
pub(super) struct Pending {
    pub(super) stream: TcpStream,
    pub(super) from: IpAddr,
    pub(super) since: Instant,
    stage: Stage,
    buffer: [u8; HELLO_BYTES],
    filled: usize,
}

impl Pending {
    /// `stream` must be non-blocking.
    pub(super) fn new(stream: TcpStream, from: IpAddr) -> Self {
        Self {
            stream,
            from,
            since: Instant::now(),
            stage: Stage::Hello,
            buffer: [0; HELLO_BYTES],
            filled: 0,
        }
    }

    /// Processes received bytes and answers them, without waiting.
    pub(super) fn advance(&mut self, key: &Key, own: Responder) -> Progress {
        loop {
            let wanted = match self.stage {
                Stage::Hello => HELLO_BYTES,
                Stage::Proof(_) => PROOF_BYTES,
            };
            if self.filled < wanted {
                match self.stream.read(&mut self.buffer[self.filled..wanted]) {
                    Ok(0) => {
                        let reason = match self.stage {
                            Stage::Hello => "it closed the connection",
                            Stage::Proof(_) => {
                                "it closed the connection instead of proving the job's secret; check that it \
                                 has the same EVERBURN_JOB_TOKEN"
                            }
                        };
                        return Progress::Refused(reason.to_owned());
                    }
                    Ok(bytes) => self.filled += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        return Progress::Waiting;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Progress::Refused(error.to_string()),
                }
                continue;
            }
            self.filled = 0;
            match std::mem::replace(&mut self.stage, Stage::Hello) {
                Stage::Hello => match self.challenge(key, own) {
                    Ok(stage) => self.stage = stage,
                    Err(reason) => return Progress::Refused(reason),
                },
                Stage::Proof(waiting) => {
                    let (hello, acceptor) = *waiting;
                    return match acceptor.verify(&field(&self.buffer, 0)) {
                        Ok(()) => Progress::Proved(hello),
                        Err(error) => Progress::Refused(error.to_string()),
                    };
                }
            }
        }
    }

    fn challenge(&mut self, key: &Key, own: Responder) -> Result<Stage, String> {
        let (hello, nonce) = Hello::decode(&self.buffer)?;
        let (acceptor, challenge) =
            everburn_auth::Acceptor::new(key, &context(&hello, own), &nonce)
                .map_err(|error| error.to_string())?;
        // The send buffer of a new connection has room for this; an error means a broken connection.
        self.stream
            .write_all(&own.encode(&challenge))
            .map_err(|error| error.to_string())?;
        Ok(Stage::Proof(Box::new((hello, acceptor))))
    }

    /// Sends `verdict` and returns the connection.
    pub(super) fn decide(mut self, verdict: Verdict) -> std::io::Result<TcpStream> {
        self.stream.write_all(&verdict.encode())?;
        Ok(self.stream)
    }
}
