//! A server, its clients, and a connection on which a test writes bytes itself.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use everburn_collectives::store::{
    Store, StoreAccess, StoreError, StoreOptions, TcpStore, TcpStoreServer,
};

pub const LONG: Duration = Duration::from_secs(60);
pub const VALIDATE: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];

pub const TOKEN: &str = "a token of the tests";

/// For everybody; most of what the server does is the same with a token.
pub fn open() -> StoreOptions {
    with_access(StoreAccess::Open)
}

/// For who has this token.
pub fn with_token(token: &str) -> StoreOptions {
    with_access(StoreAccess::Token(token.parse().unwrap()))
}

fn with_access(access: StoreAccess) -> StoreOptions {
    StoreOptions {
        timeout: LONG,
        ..StoreOptions::new(access)
    }
}

pub fn serve(options: StoreOptions) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap()
}

pub fn connect(server: &TcpStoreServer, options: StoreOptions) -> Result<TcpStore, StoreError> {
    TcpStore::connect(&server.local_addr().to_string(), options)
}

pub fn client(server: &TcpStoreServer) -> TcpStore {
    connect(server, open()).unwrap()
}

/// The server still serves its clients.
pub fn assert_serves(server: &TcpStoreServer) {
    let store = client(server);
    store.set("alive", b"yes").unwrap();
    assert_eq!(store.get("alive").unwrap(), b"yes");
}

/// A connection on which a test writes and expects raw bytes.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn connect(server: &TcpStoreServer) -> Self {
        let stream = TcpStream::connect(server.local_addr()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    pub fn validated(server: &TcpStoreServer) -> Self {
        let mut raw = Self::connect(server);
        raw.send(&VALIDATE);
        raw
    }

    /// A connection that is validated, whatever its deadline: who comes too late on
    /// a busy machine comes again.
    pub fn surely_validated(server: &TcpStoreServer) -> Self {
        let begun = Instant::now();
        let ping = [&VALIDATE[..], &[13, 1, 2, 3, 4]].concat();
        loop {
            let mut raw = Self::connect(server);
            let mut pong = [0; 4];
            let asked = raw.0.write_all(&ping);
            match asked.and_then(|()| raw.0.read_exact(&mut pong)) {
                Ok(()) => {
                    assert_eq!(pong, [1, 2, 3, 4]);
                    return raw;
                }
                Err(error) => assert!(begun.elapsed() < LONG, "never in time: {error}"),
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn expect(&mut self, expected: &[u8]) {
        let mut reply = vec![0; expected.len()];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply, expected);
    }

    pub fn ask(&mut self, request: &[u8], reply: &[u8]) {
        self.send(request);
        self.expect(reply);
    }

    /// The server has closed this connection; returns what it said before.
    pub fn closed(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("the connection was not closed: {error}"),
        }
    }
}

pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_ne_bytes()[..], bytes].concat()
}

pub fn message(opcode: u8, parts: &[&[u8]]) -> Vec<u8> {
    let strings = parts.iter().flat_map(|part| string(part));
    std::iter::once(opcode).chain(strings).collect()
}

pub fn list(opcode: u8, count: u64, parts: &[&[u8]]) -> Vec<u8> {
    let tail = message(opcode, parts);
    [&[opcode][..], &count.to_ne_bytes(), &tail[1..]].concat()
}

pub fn number(n: i64) -> [u8; 8] {
    n.to_ne_bytes()
}
