//! Serves the figures of a run to Prometheus: `GET /metrics`, in its text format, to clients with the credential.

mod exposition;
mod request;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use everburn_auth::JobToken;
use everburn_record::sync::lock;

use self::exposition::exposition;
pub(crate) use self::request::{Answer, Request, answer};
use crate::error::MonitorError;
use crate::listening::{Connections, Listening, Why};
use crate::state::RunState;
use crate::tail::RunTail;
use crate::wire::Paced;

/// How long a client may take for its request, and then for each 64 KiB of the answer.
const SLOWEST: Duration = Duration::from_secs(5);

/// How long a client may take to close the connection after its answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// For how long one scrape reads the run's files. Prometheus waits 10 s unless it is configured otherwise; the rest
/// of a long run is read by the next scrapes.
const LONGEST_READ: Duration = Duration::from_secs(3);

/// A server of one run's figures. It ends when it is dropped. It reads the run's files only when it is asked.
#[derive(Debug)]
pub struct PrometheusServer {
    listening: Listening,
}

impl PrometheusServer {
    /// Serves the figures of the run in `folder` on `address`, `HOST:PORT`, to clients with the
    /// [`credential`](Self::credential) of `token`, on loopback too: other users of this machine can connect there.
    ///
    /// # Errors
    /// [`MonitorError::Listen`] if the address cannot be had; as [`RunTail::open`].
    pub fn start(address: &str, folder: &Path, token: &JobToken) -> Result<Self, MonitorError> {
        let figures = Figures {
            run: Mutex::new((RunTail::open(folder)?, RunState::default())),
            credential: Self::credential(token),
        };
        let listening =
            Listening::start(address, "scrapes", move |connections, it, from, slot| {
                figures.attend(connections, it, from);
                drop(slot);
            })?;
        Ok(Self { listening })
    }

    /// Where it listens; the port is the real one where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// What a client sends as `Authorization: Bearer`. It is derived from the job's token and not the token itself:
    /// HTTP sends it as it is, and who reads it on the way can read the figures, but not join the job.
    #[must_use]
    pub fn credential(token: &JobToken) -> JobToken {
        token.derived("prometheus")
    }
}

/// The run that is served, and what clients must send.
#[derive(Debug)]
struct Figures {
    run: Mutex<(RunTail, RunState)>,
    credential: JobToken,
}

impl Figures {
    fn attend(&self, connections: &Connections, connection: &TcpStream, from: SocketAddr) {
        let mut paced = Paced::new(connection, SLOWEST);
        let request = match Request::read(&mut paced) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!("the client at {from} has sent no request: {error}");
                connections.refuse(Why::Unproved, from);
                if error.kind() == io::ErrorKind::InvalidData {
                    // It may have gone.
                    let _ = send(&Answer::malformed(&error), &mut paced, connection);
                }
                return;
            }
        };
        let answer = answer(&request, &self.credential, || self.text());
        if answer.refused() {
            connections.refuse(Why::Unproved, from);
        }
        paced.begin();
        if let Err(error) = send(&answer, &mut paced, connection) {
            tracing::debug!("the client at {from} has left: {error}");
        }
    }

    /// The figures as they are now.
    fn text(&self) -> String {
        let mut run = lock(&self.run);
        let (tail, state) = &mut *run;
        let began = Instant::now();
        loop {
            state.take_all(&tail.poll());
            if !tail.has_more() || began.elapsed() >= LONGEST_READ {
                break;
            }
        }
        exposition(state, everburn_record::unix_time_ms())
    }
}

/// Sends the answer and waits for the client to close: with bytes of the client unread, the system would take the
/// answer back.
fn send(answer: &Answer, paced: &mut Paced<'_>, connection: &TcpStream) -> io::Result<()> {
    paced.write_all(&answer.bytes())?;
    connection.shutdown(Shutdown::Write)?;
    let mut rest = Paced::new(connection, FAREWELL).take(request::LONGEST_HEAD as u64);
    io::copy(&mut rest, &mut io::sink()).map(drop)
}
