//! Fuzz targets: unauthenticated clients and faulty peers. The fuzzers in `fuzz/` and a test with random
//! bytes call them. Compiled only for tests and under `--cfg fuzzing`.
//!
//! A target plays the other side of a protocol with arbitrary bytes. It panics if our side serves an
//! unauthenticated client, exceeds its memory budget, misses a deadline, or differs from its model.

use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::SockRef;

pub use crate::channel::hostile::channel_peer;
pub use crate::elastic::hostile::elastic_records;
pub use crate::heartbeat::hostile::heartbeats;
pub use crate::net::hostile::{rank_answer, rank_hello};
pub use crate::rendezvous::hostile::{join_entries, settings};
pub use crate::store::hostile::{store_client, store_requests, store_server, store_stream};
pub use crate::transport::hostile::mesh_frames;

/// A fuzz target.
#[doc(hidden)]
pub type Target = fn(&[u8]);

/// All targets by name; `fuzz/fuzz_targets` has a file for each.
pub const TARGETS: [(&str, Target); 12] = [
    ("store_requests", store_requests),
    ("store_stream", store_stream),
    ("store_server", store_server),
    ("store_client", store_client),
    ("join_entries", join_entries),
    ("settings", settings),
    ("rank_hello", rank_hello),
    ("rank_answer", rank_answer),
    ("mesh_frames", mesh_frames),
    ("channel_peer", channel_peer),
    ("heartbeats", heartbeats),
    ("elastic_records", elastic_records),
];

/// The time limit for operations that need no waiting, on a busy machine.
pub(crate) const GENEROUS: Duration = Duration::from_secs(60);

/// Arbitrary bytes as a source of decisions; after the last byte every decision is 0.
pub(crate) struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        byte
    }

    /// A number below `limit`, which is at most 256.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    pub(crate) fn chance(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Small numbers, the ends of the ranges, and all others.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => u64::from(small),
            200..=209 => u64::MAX - u64::from(self.byte()),
            210..=219 => i64::MAX as u64 - u64::from(self.byte()),
            220..=229 => (1 << self.below(64)) + u64::from(self.byte()),
            _ => {
                let mut bytes = [0; 8];
                bytes.fill_with(|| self.byte());
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// As many bytes as the first says, fewer where the script ends.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let wanted = usize::from(self.byte());
        let (bytes, rest) = self.rest.split_at(wanted.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

/// Both ends of a connection over loopback. Closing either resets it, so that a million of them leave
/// no ports after that wait.
pub(crate) fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for stream in [&near, &far] {
        leave_no_port(stream)?;
        stream.set_nodelay(true)?;
    }
    Ok((near, far))
}

/// Closing `stream` resets the connection.
pub(crate) fn leave_no_port(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// All that the other side still says; panics where it does not close the connection.
pub(crate) fn read_to_the_end(stream: &mut TcpStream) -> Vec<u8> {
    stream
        .set_read_timeout(Some(GENEROUS))
        .expect("a timeout that is not zero");
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => said,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => said,
        Err(error) => panic!("the connection was not closed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// How many random inputs each target gets, how many at least, and how long more than that may take in
    /// all: some wait.
    const INPUTS: u64 = 300;
    const FEWEST: u64 = 30;
    const LIMIT: Duration = Duration::from_secs(4);

    fn drive(name: &str) {
        let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).unwrap();
        let start = Instant::now();
        for seed in 0..INPUTS {
            let mut random = StdRng::seed_from_u64(seed);
            let length = random.random_range(0..=400);
            let input: Vec<u8> = (0..length).map(|_| random.random()).collect();
            target(&input);
            if seed >= FEWEST && start.elapsed() > LIMIT {
                break;
            }
        }
    }

    #[test]
    fn each_target_has_a_file() {
        let folder = "../../fuzz/fuzz_targets";
        for (name, _) in TARGETS {
            let path = format!("{folder}/{name}.rs");
            let program = std::fs::read_to_string(path).unwrap();
            let call = format!("everburn_collectives::hostile::{name}(bytes)");
            assert!(program.contains(&call), "{name}");
        }
    }

    macro_rules! random_bytes {
        ($($name:ident)*) => {$(
            #[test]
            fn $name() {
                drive(stringify!($name));
            }
        )*};
    }

    random_bytes! {
        store_requests store_stream store_server store_client join_entries settings rank_hello
        rank_answer mesh_frames channel_peer heartbeats elastic_records
    }
}
