//! From an address as a user writes it to a first connection.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use super::StoreOptions;
use super::connection::{Connection, Deadline, Fault, random_u64};
use crate::store::StoreError;

/// The first pause between two attempts; each pause is about twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long one attempt may take; a packet that got lost must not use up the whole deadline.
const ATTEMPT: Duration = Duration::from_secs(10);

/// After so many handshakes in a row that the other side broke off, it is no store for us.
const BROKEN_HANDSHAKES: u32 = 10;

/// Connects to `host:port`, again and again until it succeeds or the deadline passes: the server
/// may be started after its clients.
pub(super) fn connect(
    address: &str,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<(SocketAddr, Connection), StoreError> {
    let (host, port) = split(address)?;
    let token = options.job_token.as_deref();
    let mut pause = FIRST_PAUSE;
    let mut attempts = 0_u32;
    let mut broken_handshakes = 0_u32;
    loop {
        attempts += 1;
        let (target, fault) = match resolve(host, port, deadline) {
            Ok(candidates) => {
                let mut last = (None, Fault::Timeout);
                for candidate in candidates {
                    match Connection::open(candidate, token, deadline.at_most(ATTEMPT)) {
                        Ok(connection) => return Ok((candidate, connection)),
                        Err(fault) => last = (Some(candidate), fault),
                    }
                }
                last
            }
            Err(fault) => (None, fault),
        };
        let refused = match &fault {
            Fault::Token => Some(token_hint(options)),
            Fault::Protocol(reason) => Some(reason.clone()),
            Fault::Closed => {
                broken_handshakes += 1;
                (broken_handshakes >= BROKEN_HANDSHAKES).then(|| handshake_hint(options))
            }
            Fault::Timeout | Fault::Io(_) => {
                broken_handshakes = 0;
                None
            }
        };
        if let Some(reason) = refused {
            return Err(StoreError::Protocol {
                address: address.to_owned(),
                reason,
            });
        }
        let left = deadline.left();
        if left.is_zero() {
            let target = target.map_or_else(String::new, |target| format!(" at {target}"));
            return Err(StoreError::Unreachable {
                address: address.to_owned(),
                operation: "connect",
                reason: format!(
                    "tried {attempts} times{target} in {:.1?}, last: {fault}; check that rank 0 or \
                     the launcher has started the store, that host and port are right, and that \
                     no firewall is in between",
                    deadline.elapsed()
                ),
            });
        }
        // Jitter keeps a thousand ranks from knocking all at once.
        let jitter = 0.5 + (random_u64() % 1024) as f64 / 1024.0;
        std::thread::sleep(pause.mul_f64(jitter).min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn token_hint(options: &StoreOptions) -> String {
    if options.job_token.is_some() {
        "the job token is wrong; give every rank the same EVERBURN_JOB_TOKEN".into()
    } else {
        "it demands a job token and this rank has none; set EVERBURN_JOB_TOKEN (or \
         `StoreOptions::job_token`) to the job's secret"
            .into()
    }
}

fn handshake_hint(options: &StoreOptions) -> String {
    let guess = if options.job_token.is_some() {
        "a store of PyTorch knows no job token: unset EVERBURN_JOB_TOKEN for it"
    } else {
        "it may be another service: check the port"
    };
    format!("it closed the connection during {BROKEN_HANDSHAKES} handshakes; {guess}")
}

/// Splits `host:port`, where an IPv6 host stands in brackets.
pub(crate) fn split(address: &str) -> Result<(&str, u16), StoreError> {
    let invalid = || StoreError::Invalid {
        operation: "connect",
        reason: format!("`{address}` is not of the form host:port, such as 127.0.0.1:29500"),
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(host) => host,
        None if host.contains(':') => return Err(invalid()),
        None => host,
    };
    match port.parse() {
        Ok(port) if !host.is_empty() => Ok((host, port)),
        _ => Err(invalid()),
    }
}

/// The addresses of a host. The system's resolver knows no deadline, so it runs in a thread that
/// may outlive the question, by as long as the resolver itself takes to give up.
pub(crate) fn resolve(host: &str, port: u16, deadline: Deadline) -> Result<Vec<SocketAddr>, Fault> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (answer, answered) = mpsc::channel();
    let name = host.to_owned();
    std::thread::Builder::new()
        .name("everburn-resolve".into())
        .spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs();
            // Nobody listens any more once the deadline has passed.
            let _ = answer.send(found.map(Iterator::collect::<Vec<_>>));
        })
        .map_err(Fault::Io)?;
    match answered.recv_timeout(deadline.left()) {
        Ok(Ok(found)) if found.is_empty() => Err(Fault::Io(io::Error::other(format!(
            "the name `{host}` has no address"
        )))),
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(Fault::Io(io::Error::other(format!(
            "the name `{host}` cannot be resolved: {error}"
        )))),
        Err(_) => Err(Fault::Io(io::Error::other(format!(
            "the name `{host}` was not resolved in time"
        )))),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(split("node1:29500").ok(), Some(("node1", 29500)));
        assert_eq!(split("[::1]:80").ok(), Some(("::1", 80)));
        for wrong in ["node1", ":80", "::1:80", "node1:", "node1:99999", "a:b"] {
            let message = split(wrong).expect_err(wrong).to_string();
            assert!(message.contains("host:port"), "{message}");
        }
    }
}
