//! Whether a rank is reached where its peers would dial it, and how far its clock is from another's.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// How long a connection, or an answer on it, may take: a path that takes longer is broken.
const PATIENCE: Duration = Duration::from_secs(3);

/// Questions for the time; the one with the shortest way is taken.
const QUESTIONS: usize = 16;

/// Whether one rank reached another.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::commands::doctor) struct ReachReport {
    pub(in crate::commands::doctor) from: usize,
    pub(in crate::commands::doctor) to: usize,
    /// Where it dialled.
    pub(in crate::commands::doctor) address: String,
    /// Why not.
    pub(in crate::commands::doctor) error: Option<String>,
}

/// How far a rank's clock is ahead of rank 0's, in microseconds, and how far off that may be: half
/// of the way there and back.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::commands::doctor) struct ClockReport {
    pub(in crate::commands::doctor) rank: usize,
    pub(in crate::commands::doctor) ahead_us: f64,
    pub(in crate::commands::doctor) error_us: f64,
}

/// A listener that tells the time to whoever asks with a byte; it ends with its value.
pub(super) struct Listening {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens on a free port of `address`.
    pub(super) fn open(address: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((address, 0))
            .map_err(|error| io::Error::other(format!("cannot listen on {address}: {error}")))?;
        let address = listener.local_addr()?;
        let closed = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&closed);
        let thread = std::thread::Builder::new()
            .name("doctor-listener".to_owned())
            .spawn(move || {
                for stream in listener.incoming() {
                    if ended.load(Ordering::Acquire) {
                        return;
                    }
                    // Each has a thread, so that nobody waits for a silent one. Who dials says what
                    // went wrong with its connection.
                    let _ = stream.map(|stream| std::thread::spawn(move || tell_time(stream)));
                }
            })?;
        Ok(Self {
            address,
            closed,
            thread: Some(thread),
        })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // `accept` has no deadline: a last connection wakes it.
        let woken = TcpStream::connect_timeout(&self.address, PATIENCE);
        if let Some(thread) = self.thread.take()
            && woken.is_ok()
        {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

fn tell_time(stream: TcpStream) -> io::Result<()> {
    let mut stream = impatient(stream)?;
    let mut question = [0];
    while stream.read(&mut question)? > 0 {
        stream.write_all(&now_us().to_le_bytes())?;
    }
    Ok(())
}

fn now_us() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64() * 1e6)
}

/// Dials the listener of rank `to`, and asks it something.
pub(super) fn dial(from: usize, to: usize, address: &str) -> ReachReport {
    let asked = connect(address).and_then(|mut stream| ask(&mut stream));
    ReachReport {
        from,
        to,
        address: address.to_owned(),
        error: asked.err().map(|error| error.to_string()),
    }
}

/// Compares this clock with that of rank 0; `None` where it cannot be reached, which
/// [`dial`] reports.
pub(super) fn clock(rank: usize, address: &str) -> Option<ClockReport> {
    let mut stream = connect(address).ok()?;
    let mut best: Option<ClockReport> = None;
    for _ in 0..QUESTIONS {
        let (before, start) = (now_us(), Instant::now());
        let theirs = ask(&mut stream).ok()?;
        let error_us = start.elapsed().as_secs_f64() * 1e6 / 2.0;
        if best.as_ref().is_none_or(|best| error_us < best.error_us) {
            best = Some(ClockReport {
                rank,
                ahead_us: before + error_us - theirs,
                error_us,
            });
        }
    }
    best
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    impatient(TcpStream::connect_timeout(&address, PATIENCE)?)
}

/// The connection, on which nothing is waited for longer than [`PATIENCE`].
fn impatient(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The time of the other side.
fn ask(stream: &mut TcpStream) -> io::Result<f64> {
    stream.write_all(&[0])?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    Ok(f64::from_le_bytes(answer))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_listener_is_reached_until_it_is_closed() {
        let listening = Listening::open(Ipv4Addr::LOCALHOST.into()).unwrap();
        let address = listening.address().to_string();
        assert_eq!(dial(1, 0, &address).error, None);
        let clock = clock(1, &address).unwrap();
        // It is the same clock; the error of the measurement is its bound.
        assert!(
            clock.ahead_us.abs() <= clock.error_us * 2.0 + 1e3,
            "{clock:?}"
        );
        drop(listening);
        let refused = dial(1, 0, &address).error.unwrap();
        assert!(refused.contains("refused"), "{refused}");
    }
}
