//! Where a monitor learns of a run: from its folder, or from a server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use crate::error::MonitorError;
use crate::tail::RunTail;
use crate::update::Update;
use crate::wire::{self, GREETING, WELCOME};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a server may say nothing: it says every second whether the run goes on.
const SILENCE: Duration = Duration::from_secs(10);

/// The pause before a lost connection is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// How many updates may wait to be shown.
const MOST_WAITING: usize = 4096;

/// How many updates are handed out at once: between them a key is heard.
const MOST_AT_ONCE: usize = 8192;

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
        let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
        let runs_there = entries.filter_map(|entry| {
            let path = entry.path();
            let of_run = |name: &str| path.join(name).metadata().ok()?.modified().ok();
            let config = of_run("config.toml")?;
            let written = of_run("live.json").map_or(config, |live| live.max(config));
            Some((written, path))
        });
        let newest = runs_there.max();
        let folder = runs.to_path_buf();
        newest.map_or(Err(MonitorError::NoRuns { folder }), |(_, path)| {
            Ok(Self::Folder(path))
        })
    }

    /// Begins to follow the run.
    ///
    /// # Errors
    /// As [`RunTail::open`]; [`MonitorError::Unreachable`], [`MonitorError::Protocol`] and [`MonitorError::Refused`] of a
    /// server.
    pub fn open(&self, token: Option<&str>) -> Result<Source, MonitorError> {
        match self {
            Self::Folder(folder) => Ok(Source(Kind::Local(Box::new(RunTail::open(folder)?)))),
            Self::Server(address) => {
                Remote::connect(address, token).map(|it| Source(Kind::Remote(it)))
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
///
/// ```
/// use everburn_monitor::Target;
///
/// let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("config.toml"), "model = 'mnist'").unwrap();
/// let mut source = Target::Folder(folder.path().into()).open(None)?;
/// assert!(!source.poll().is_empty());
/// # Ok::<(), everburn_monitor::MonitorError>(())
/// ```
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
    updates: Receiver<Update>,
    more: bool,
}

impl Remote {
    fn connect(address: &str, token: Option<&str>) -> Result<Self, MonitorError> {
        // The first time, what is wrong is the user's to know.
        let connection = enter(address, token)?;
        let (sender, updates) = sync_channel(MOST_WAITING);
        let (address, token) = (address.to_string(), token.map(str::to_string));
        std::thread::Builder::new()
            .name("everburn-monitor-source".to_string())
            .spawn(move || follow(connection, &address, token.as_deref(), &sender))
            .map_err(MonitorError::terminal)?;
        Ok(Self {
            updates,
            more: false,
        })
    }

    fn poll(&mut self) -> Vec<Update> {
        let mut updates = Vec::new();
        self.more = true;
        while updates.len() < MOST_AT_ONCE {
            match self.updates.try_recv() {
                Ok(update) => updates.push(update),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    self.more = false;
                    break;
                }
            }
        }
        updates
    }
}

/// Reads until nobody wants to know any more.
fn follow(first: TcpStream, address: &str, token: Option<&str>, updates: &SyncSender<Update>) {
    let mut connection = Some(first);
    loop {
        match connection.take() {
            Some(mut open) => {
                while let Ok(update) = wire::take(&mut open) {
                    let Some(update) = update else { continue };
                    if updates.send(update).is_err() {
                        return;
                    }
                }
            }
            None => std::thread::sleep(AGAIN),
        }
        connection = enter(address, token).ok();
        let reached = connection.is_some();
        if reached && updates.send(Update::Reset).is_err() {
            return;
        }
        if let Err(TrySendError::Disconnected(_)) = updates.try_send(Update::Reached(reached)) {
            return;
        }
    }
}

/// Connects, and is let in.
fn enter(address: &str, token: Option<&str>) -> Result<TcpStream, MonitorError> {
    let unreachable = |error: std::io::Error| MonitorError::Unreachable {
        address: address.to_string(),
        reason: error.to_string(),
    };
    let protocol = |reason: String| MonitorError::Protocol {
        address: address.to_string(),
        reason,
    };
    let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(unreachable)?.collect();
    let mut last = std::io::Error::other("the name has no address");
    let connected = addresses.iter().find_map(|address| {
        let tried = TcpStream::connect_timeout(address, CONNECT);
        tried.map_err(|error| last = error).ok()
    });
    let Some(mut connection) = connected else {
        return Err(unreachable(last));
    };
    let mut shake = || -> std::io::Result<([u8; 19], u8)> {
        connection.set_read_timeout(Some(SILENCE))?;
        connection.set_write_timeout(Some(SILENCE))?;
        let (mut greeting, mut drawn, mut answer) = ([0; 19], [0; 32], [0]);
        connection.read_exact(&mut greeting)?;
        if &greeting != GREETING {
            return Ok((greeting, 0));
        }
        connection.read_exact(&mut drawn)?;
        connection.write_all(&wire::proof(token, &drawn))?;
        connection.read_exact(&mut answer)?;
        Ok((greeting, answer[0]))
    };
    let (greeting, answer) = shake().map_err(|error| protocol(error.to_string()))?;
    if &greeting != GREETING {
        let said = String::from_utf8_lossy(&greeting)
            .escape_debug()
            .to_string();
        return Err(protocol(format!("it says \"{said}\"")));
    }
    match answer {
        WELCOME => Ok(connection),
        _ => Err(MonitorError::Refused {
            address: address.to_string(),
        }),
    }
}
