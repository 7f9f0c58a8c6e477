//! How two ranks make the TCP connections of their lane.
//!
//! Each rank listens on a port of its own, makes a key for it, and has told both to all others
//! over the control plane. The higher rank of a pair dials the lower one and presents the key.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rand::TryRng;
use rand::rngs::SysRng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::TICK;
use super::establish::Address;
use crate::group::{Collective, CollectiveError};
use crate::transport::Interruption;

/// The size of a key, in bytes.
pub(super) const KEY_BYTES: usize = 32;

/// How many connections a lane has: two, so that a lost packet holds up half of the bytes.
const STREAMS: usize = 2;

/// The first bytes of a connection, in bytes.
pub(super) const HELLO_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"EVERLANE";

/// How many strangers may be introducing themselves at once; the first come goes first.
const MAX_STRANGERS: usize = 256;

/// How long one try to reach a peer may take before failures are looked for.
const DIAL: Duration = Duration::from_secs(1);

/// The connections to one peer.
type Streams = Vec<TcpStream>;

/// Where this rank is reached.
pub(super) struct Door {
    listener: TcpListener,
    address: Address,
}

/// Asks for loss-based congestion control (CUBIC; Ha, Rhee and Xu 2008), before a connection is
/// made: a host's default may be BBR, whose pacing by timers stays with a connection. Made for one
/// long stream over a wide network, it cost a third of the speed between ranks on one machine.
fn choose_congestion_control(socket: &impl AsFd) {
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    if let Err(error) = rustix::net::sockopt::set_tcp_congestion(socket, "cubic") {
        tracing::debug!(%error, "lanes keep the system's congestion control");
    }
    #[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
    let _ = socket;
}

/// Connects to `address` within `limit`.
fn connect_within(address: SocketAddr, limit: Duration) -> std::io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    choose_congestion_control(&socket);
    socket.connect_timeout(&address.into(), limit)?;
    Ok(socket.into())
}

impl Door {
    pub(super) fn open(
        collective: &Collective<'_>,
        address: IpAddr,
    ) -> Result<Self, CollectiveError> {
        let system = |what: &str, error: &dyn ToString| collective.system(what, error);
        let listener = TcpListener::bind((address, 0))
            .map_err(|error| system(&format!("listen on {address} for lanes"), &error))?;
        // What it accepts takes after it.
        choose_congestion_control(&listener);
        let mut key = [0; KEY_BYTES];
        SysRng
            .try_fill_bytes(&mut key)
            .map_err(|error| system("make a key for lanes", &error))?;
        let address = listener
            .local_addr()
            .and_then(|address| listener.set_nonblocking(true).map(|()| address))
            .map_err(|error| system("learn where its lanes listen", &error))?;
        Ok(Self {
            listener,
            address: Address { address, key },
        })
    }

    pub(super) const fn address(&self) -> &Address {
        &self.address
    }

    /// Connects this rank with the group ranks `peers`.
    pub(super) fn connect(
        self,
        collective: &Collective<'_>,
        addresses: &[Address],
        peers: &[usize],
    ) -> Result<Vec<(usize, Streams)>, CollectiveError> {
        let mut lanes = Vec::with_capacity(peers.len());
        let (lower, higher): (Vec<usize>, Vec<usize>) =
            peers.iter().partition(|peer| **peer < collective.rank());
        for peer in lower {
            let dial = |index| dial(collective, peer, &addresses[peer], index);
            let streams = (0..STREAMS).map(dial).collect::<Result<_, _>>()?;
            lanes.push((peer, streams));
        }
        lanes.extend(self.accept(collective, &higher)?);
        for stream in lanes.iter().flat_map(|(_, streams)| streams) {
            let ready = stream.set_nonblocking(true).and(stream.set_nodelay(true));
            ready.map_err(|error| collective.system("prepare a connection of a lane", &error))?;
        }
        Ok(lanes)
    }

    /// Lets in the group ranks `peers`.
    fn accept(
        &self,
        collective: &Collective<'_>,
        peers: &[usize],
    ) -> Result<Vec<(usize, Streams)>, CollectiveError> {
        let mut found: Vec<(usize, Vec<Option<TcpStream>>)> = peers
            .iter()
            .map(|peer| (*peer, (0..STREAMS).map(|_| None).collect()))
            .collect();
        let mut strangers: Vec<Stranger> = Vec::new();
        loop {
            let complete = |(_, streams): &(usize, Vec<Option<TcpStream>>)| {
                streams.iter().all(Option::is_some)
            };
            if found.iter().all(complete) {
                let streams = found.into_iter();
                return Ok(streams
                    .map(|(peer, streams)| (peer, streams.into_iter().flatten().collect()))
                    .collect());
            }
            let missing = found.iter().filter(|lane| !complete(lane));
            look_around(collective, missing.map(|(peer, _)| *peer))?;
            wait(&self.listener, &strangers);
            self.let_in(&mut strangers);
            let mut index = 0;
            while index < strangers.len() {
                let Some(hello) = strangers[index].listen() else {
                    index += 1;
                    continue;
                };
                let stream = strangers.swap_remove(index).stream;
                let known = hello.and_then(|hello| self.recognise(collective, &hello));
                let place = known.and_then(|(peer, index)| {
                    let lane = found.iter_mut().find(|(known, _)| *known == peer);
                    let place = lane.and_then(|(_, streams)| streams.get_mut(index));
                    place.filter(|place| place.is_none())
                });
                match place {
                    Some(place) => *place = Some(stream),
                    None => tracing::warn!("a connection to the lanes of this rank was refused"),
                }
            }
        }
    }

    fn let_in(&self, strangers: &mut Vec<Stranger>) {
        // An error (nobody is there, or too many files are open) passes or meets the deadline.
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if strangers.len() == MAX_STRANGERS {
                strangers.remove(0);
            }
            strangers.push(Stranger {
                stream,
                hello: [0; HELLO_BYTES],
                filled: 0,
            });
        }
    }

    /// Which rank and which of its connections it is, if it knows the key.
    fn recognise(
        &self,
        collective: &Collective<'_>,
        hello: &[u8; HELLO_BYTES],
    ) -> Option<(usize, usize)> {
        let number = |at: usize| {
            u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]) as usize
        };
        let (rank, index) = (number(8), number(12));
        let expected = encode(rank, index, collective.core.id, &self.address.key);
        // Every byte is looked at, so that the time taken tells nothing about the key.
        let differing = expected
            .iter()
            .zip(hello)
            .fold(0, |all, (a, b)| all | (a ^ b));
        (differing == 0).then_some((rank, index))
    }
}

/// Layout, little-endian: magic 8, rank 4, number of the connection 4, group 8, zero 8, key 32.
pub(super) fn encode(
    rank: usize,
    index: usize,
    group: u64,
    key: &[u8; KEY_BYTES],
) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&(rank as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&(index as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&group.to_le_bytes());
    bytes[32..].copy_from_slice(key);
    bytes
}

/// A connection that has not said who it is.
struct Stranger {
    stream: TcpStream,
    hello: [u8; HELLO_BYTES],
    filled: usize,
}

impl Stranger {
    /// Its hello when it is complete; `Some(None)` if it will never be.
    fn listen(&mut self) -> Option<Option<[u8; HELLO_BYTES]>> {
        loop {
            if self.filled == HELLO_BYTES {
                return Some(Some(self.hello));
            }
            match self.stream.read(&mut self.hello[self.filled..]) {
                Ok(0) => return Some(None),
                Ok(bytes) => self.filled += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(None),
            }
        }
    }
}

fn wait(listener: &TcpListener, strangers: &[Stranger]) {
    let streams = strangers.iter().map(|stranger| stranger.stream.as_fd());
    let all = std::iter::once(listener.as_fd()).chain(streams);
    let mut all: Vec<_> = all
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(TICK.subsec_nanos()),
    };
    // An interruption is a reason to look again, as is everything else.
    let _ = poll(&mut all, Some(&timeout));
}

/// Makes connection `index` of the lane to `peer`, again and again until it answers.
fn dial(
    collective: &Collective<'_>,
    peer: usize,
    address: &Address,
    index: usize,
) -> Result<TcpStream, CollectiveError> {
    let hello = encode(collective.rank(), index, collective.core.id, &address.key);
    loop {
        let left = collective
            .deadline()
            .saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let connection = connect_within(address.address, DIAL.min(left));
            let greeted = connection.and_then(|mut stream| {
                stream.write_all(&hello)?;
                Ok(stream)
            });
            match greeted {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    let to = &address.address;
                    tracing::debug!(peer, %to, %error, "cannot connect a lane yet");
                }
            }
        }
        look_around(collective, std::iter::once(peer))?;
        std::thread::sleep(TICK);
    }
}

/// Looks for what makes waiting for the group ranks `missing` pointless.
fn look_around(
    collective: &Collective<'_>,
    missing: impl Iterator<Item = usize>,
) -> Result<(), CollectiveError> {
    let core = collective.core;
    let missing: Vec<usize> = missing.map(|rank| core.members[rank]).collect();
    core.set_waiting_for(&missing);
    let interruption = if let Some(failure) = core.mailbox.failure() {
        Interruption::Failed(failure)
    } else if let Some((peer, parting)) = missing
        .iter()
        .find_map(|peer| Some((*peer, core.mailbox.parting(*peer)?)))
    {
        let cause = parting.cause;
        Interruption::Gone { peer, cause }
    } else if Instant::now() >= collective.deadline() {
        Interruption::Deadline { missing }
    } else {
        return Ok(());
    };
    Err(core.interrupted(&collective.place, interruption))
}
