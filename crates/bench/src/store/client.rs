//! A client of a store, ours or PyTorch's, that does one operation again and again and says how long
//! that took: `crates/bench/peers/pytorch_store.py` in Rust.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use everburn::collectives::store::{
    Store, StoreAccess, StoreOptions, TcpStore, raise_descriptor_limit,
};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// What is got and set: about as long as an address or a verdict.
const VALUE: [u8; 32] = [b'v'; 32];

/// Opcode, length and bytes of the key, number.
const ADD_REQUEST: usize = 1 + 8 + "/bench/sum".len() + 8;

/// The sum.
const ADD_ANSWER: usize = 8;

/// A connection's thread needs little of a stack.
const STACK_BYTES: usize = 256 << 10;

/// No call takes so long unless something is broken.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What the benchmark wants measured now.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Order {
    /// Calls of one operation by one client, one after the other.
    Calls {
        address: String,
        operation: Operation,
        calls: usize,
    },
    /// Clients that connect, all at once and for this many seconds, and add 1.
    Connect {
        address: String,
        clients: usize,
        patience_s: u64,
    },
    /// Bare messages over TCP of this process and back, each as long as an `add` and its answer: what
    /// no store can be faster than.
    Echo { calls: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    Get,
    Add,
    Set,
}

/// What a client tells of an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) seconds: f64,
    /// Of clients that connect: how many could not.
    #[serde(default)]
    pub(super) failed: usize,
    /// Why the first of them could not.
    #[serde(default)]
    pub(super) why: Option<String>,
}

impl Answer {
    fn of(start: Instant) -> Self {
        Self {
            seconds: start.elapsed().as_secs_f64(),
            failed: 0,
            why: None,
        }
    }
}

impl Operation {
    pub(super) const ALL: [Self; 3] = [Self::Get, Self::Add, Self::Set];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Add => "add",
            Self::Set => "set",
        }
    }
}

/// Carries out the orders on standard input until it ends.
pub(crate) fn run() -> Result<(), Failure> {
    let mut stores = HashMap::new();
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            Order::Calls {
                address,
                operation,
                calls,
            } => {
                if !stores.contains_key(&address) {
                    stores.insert(address.clone(), connect(&address, TIMEOUT)?);
                }
                measure(&stores[&address], operation, calls)?
            }
            Order::Connect {
                address,
                clients,
                patience_s,
            } => connect_all(&address, clients, Duration::from_secs(patience_s))?,
            Order::Echo { calls } => echo(calls)?,
        };
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}

fn connect(address: &str, timeout: Duration) -> Result<TcpStore, Failure> {
    let options = StoreOptions {
        timeout,
        // As the peer's.
        ..StoreOptions::new(StoreAccess::Open)
    };
    Ok(TcpStore::connect(address, options)?)
}

fn measure(store: &TcpStore, operation: Operation, calls: usize) -> Result<Answer, Failure> {
    store.set("bench/value", &VALUE)?;
    let sum = store.add("bench/sum", 0)?;
    let start = Instant::now();
    match operation {
        Operation::Get => {
            for _ in 0..calls {
                store.get("bench/value")?;
            }
        }
        Operation::Add => {
            for _ in 0..calls {
                store.add("bench/sum", 1)?;
            }
        }
        Operation::Set => {
            for _ in 0..calls {
                store.set("bench/value", &VALUE)?;
            }
            // Nothing answers a set: the last of them are done when this is.
            store.check(&["bench/value"])?;
        }
    }
    let answer = Answer::of(start);
    let added = if operation == Operation::Add {
        calls
    } else {
        0
    };
    if store.add("bench/sum", 0)? != sum + added as i64 || store.get("bench/value")? != VALUE {
        return Err(Failure::new("the store has lost what was done to it"));
    }
    Ok(answer)
}

/// All threads are there before the first of them connects; the time is that until all have added.
fn connect_all(address: &str, clients: usize, patience: Duration) -> Result<Answer, Failure> {
    raise_descriptor_limit()?;
    let ready = Barrier::new(clients + 1);
    thread::scope(|scope| {
        let mut members = Vec::new();
        for _ in 0..clients {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            members.push(builder.spawn_scoped(scope, || {
                ready.wait();
                let store = connect(address, patience).map_err(|error| error.to_string())?;
                let sum = store.add("bench/clients", 1);
                sum.map(|_| store).map_err(|error| error.to_string())
            })?);
        }
        ready.wait();
        let start = Instant::now();
        // Kept, so that all are connected at the same time.
        let stores: Vec<_> = members.into_iter().map(ScopedJoinHandle::join).collect();
        let answer = Answer::of(start);
        let failures = stores.iter().filter_map(|store| match store {
            Ok(Ok(_)) => None,
            Ok(Err(why)) => Some(why.clone()),
            Err(_) => Some("a client has panicked".to_owned()),
        });
        let failures: Vec<_> = failures.collect();
        Ok(Answer {
            failed: failures.len(),
            why: failures.into_iter().next(),
            ..answer
        })
    })
}

/// One thread asks and the other answers, by blocking calls and nothing else.
fn echo(calls: usize) -> Result<Answer, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut asker = TcpStream::connect(listener.local_addr()?)?;
    let (mut answerer, _) = listener.accept()?;
    for stream in [&asker, &answerer] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
    }
    let answer = thread::scope(|scope| {
        let answering = scope.spawn(move || -> io::Result<()> {
            let mut request = [0; ADD_REQUEST];
            for _ in 0..calls {
                answerer.read_exact(&mut request)?;
                answerer.write_all(&[0; ADD_ANSWER])?;
            }
            Ok(())
        });
        let start = Instant::now();
        let mut answer = [0; ADD_ANSWER];
        for _ in 0..calls {
            asker.write_all(&[0; ADD_REQUEST])?;
            asker.read_exact(&mut answer)?;
        }
        let told = Answer::of(start);
        match answering.join() {
            Ok(done) => done.map(|()| told),
            Err(_) => Err(io::Error::other("the answering thread has panicked")),
        }
    })?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_written_as_the_peer_reads_them() {
        let order = Order::Calls {
            address: "a:1".to_owned(),
            operation: Operation::Get,
            calls: 3,
        };
        let line = r#"{"order":"calls","address":"a:1","operation":"get","calls":3}"#;
        assert_eq!(serde_json::to_string(&order).unwrap(), line);
        let answer: Answer = serde_json::from_str(r#"{"seconds": 0.5}"#).unwrap();
        assert_eq!((answer.seconds, answer.failed), (0.5, 0));
    }
}
