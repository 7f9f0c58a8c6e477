//! Where a monitor learns of a run: from its folder, or from a server.

mod queue;

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use everburn_auth::{AuthError, JobToken, Key};
use everburn_record::runs_in;

use self::queue::{Closed, Receiver, Sender, queue};
use crate::error::MonitorError;
use crate::tail::RunTail;
use crate::update::Update;
use crate::wire::{self, Paced, Refusal};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// How long the whole handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a server may take for an update, or for a piece of a long one: it says every second whether the run
/// continues.
const SILENCE: Duration = Duration::from_secs(10);

/// The pause before a lost connection is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Which run is looked at.
///
/// ```
/// use everburn_monitor::Target;
///
/// assert_eq!("runs/a".parse(), Ok(Target::Folder("runs/a".into())));
/// assert_eq!("gpu-1:7000".parse(), Ok(Target::Server("gpu-1:7000".into())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The run in a folder of this machine.
    Folder(PathBuf),
    /// A run that is served, at `HOST:PORT`.
    Server(String),
}

impl FromStr for Target {
    type Err = std::convert::Infallible;

    /// What ends in `:` and a number is a server, unless there is a folder of that name.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        Ok(match port {
            Some(Ok(_)) if !Path::new(text).exists() => Self::Server(text.to_string()),
            _ => Self::Folder(text.into()),
        })
    }
}

impl Target {
    /// The run in `runs` whose folder was written to last.
    ///
    /// # Errors
    /// [`MonitorError::NoRuns`] if there is none.
    pub fn newest_in(runs: &Path) -> Result<Self, MonitorError> {
        let newest = runs_in(runs).into_iter().next();
        let folder = runs.to_path_buf();
        newest
            .map(Self::Folder)
            .ok_or(MonitorError::NoRuns { folder })
    }

    /// Begins to follow the run. A folder needs no token; a server must prove that it knows it.
    ///
    /// # Errors
    /// As [`RunTail::open`]; for a server [`MonitorError::TokenNeeded`], [`MonitorError::Unreachable`],
    /// [`MonitorError::Protocol`] and [`MonitorError::Refused`].
    pub fn open(&self, token: Option<&JobToken>) -> Result<Source, MonitorError> {
        match self {
            Self::Folder(folder) => Ok(Source(Kind::Local(Box::new(RunTail::open(folder)?)))),
            Self::Server(address) => {
                let needed = || MonitorError::TokenNeeded {
                    address: address.clone(),
                };
                let remote = Remote::connect(address, token.ok_or_else(needed)?)?;
                Ok(Source(Kind::Remote(remote)))
            }
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Server(address) => f.write_str(address),
        }
    }
}

/// A run that is followed: what [`Target::open`] gives.
#[derive(Debug)]
pub struct Source(Kind);

#[derive(Debug)]
enum Kind {
    Local(Box<RunTail>),
    Remote(Remote),
}

impl Source {
    /// What is new. Waits for nothing.
    pub fn poll(&mut self) -> Vec<Update> {
        match &mut self.0 {
            Kind::Local(tail) => tail.poll(),
            Kind::Remote(remote) => remote.poll(),
        }
    }

    /// Whether there may be more at once.
    #[must_use]
    pub fn has_more(&self) -> bool {
        match &self.0 {
            Kind::Local(tail) => tail.has_more(),
            Kind::Remote(remote) => remote.more,
        }
    }
}

/// A run on another machine; its connection is made again when it is lost.
#[derive(Debug)]
struct Remote {
    updates: Receiver,
    more: bool,
}

impl Remote {
    fn connect(address: &str, token: &JobToken) -> Result<Self, MonitorError> {
        let key = wire::key(token);
        // The first time, what is wrong is the user's to know.
        let connection = enter(address, &key)?;
        let (sender, updates) = queue();
        let address = address.to_string();
        std::thread::Builder::new()
            .name("everburn-monitor-source".to_string())
            .spawn(move || follow(connection, &address, &key, &sender))
            .map_err(MonitorError::terminal)?;
        Ok(Self {
            updates,
            more: false,
        })
    }

    fn poll(&mut self) -> Vec<Update> {
        let updates = self.updates.take();
        self.more = !updates.is_empty();
        updates
    }
}

/// Reads until the monitor ends.
fn follow(first: TcpStream, address: &str, key: &Key, updates: &Sender) {
    let mut connection = Some(first);
    loop {
        match connection.take() {
            Some(open) => {
                if read(&open, updates) == Err(Closed) {
                    return;
                }
            }
            None => std::thread::sleep(AGAIN),
        }
        connection = enter(address, key).ok();
        let reached = connection.is_some();
        let mut told = Ok(());
        if reached {
            told = updates.send(Update::Reset, 0);
        }
        if told.and_then(|()| updates.send(Update::Reached(reached), 0)) == Err(Closed) {
            return;
        }
    }
}

/// Reads until the connection is lost.
fn read(connection: &TcpStream, updates: &Sender) -> Result<(), Closed> {
    let mut paced = Paced::new(connection, SILENCE);
    while let Ok((update, bytes)) = wire::take(&mut paced) {
        if let Some(update) = update.filter(|update| !matches!(update, Update::Reached(_))) {
            updates.send(update, bytes)?;
        }
        // Not before the monitor had time for it.
        paced.begin();
    }
    Ok(())
}

/// Connects; both sides prove that they know the token.
fn enter(address: &str, key: &Key) -> Result<TcpStream, MonitorError> {
    let unreachable = |error: std::io::Error| MonitorError::Unreachable {
        address: address.to_string(),
        reason: error.to_string(),
    };
    let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(unreachable)?.collect();
    let mut last = std::io::Error::other("the name has no address");
    let connected = addresses.iter().find_map(|address| {
        let tried = TcpStream::connect_timeout(address, CONNECT);
        tried.map_err(|error| last = error).ok()
    });
    let Some(connection) = connected else {
        return Err(unreachable(last));
    };
    wire::enter(&mut Paced::new(&connection, HANDSHAKE), key)
        .map_err(|refusal| refused(address, refusal))?;
    Ok(connection)
}

fn refused(address: &str, refusal: Refusal) -> MonitorError {
    let address = address.to_string();
    let reason = match refusal {
        Refusal::Auth(AuthError::WrongSecret) => return MonitorError::Refused { address },
        Refusal::Auth(error) => return MonitorError::Token(error),
        Refusal::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "it closes the connection".to_string()
        }
        Refusal::Io(error) => error.to_string(),
        Refusal::Protocol(said) if said.starts_with(b"everburn-monitor ") => {
            "it has another version of Everburn".to_string()
        }
        Refusal::Protocol(said) => {
            format!(
                "it says \"{}\"",
                String::from_utf8_lossy(&said).escape_debug()
            )
        }
    };
    MonitorError::Protocol { address, reason }
}
