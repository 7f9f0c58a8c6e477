//! The first connection to a store, from the address that the user gave.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use everburn_auth::Key;
use everburn_record::units;

use super::StoreOptions;
use super::connection::{Connection, Deadline};
use super::fault::Fault;
use crate::rendezvous::RanksAwaited;
use crate::store::backoff::Backoff;
use crate::store::{StoreError, split_address};
use crate::wait_notice::WaitNotice;

const FIRST_PAUSE: Duration = Duration::from_millis(10);

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The timeout of one attempt, so that a lost packet does not use up the whole deadline.
const ATTEMPT: Duration = Duration::from_secs(10);

/// After this many closed handshakes in a row the client gives up.
const BROKEN_HANDSHAKES: u32 = 10;

/// After this many closed or unanswered attempts in a row, a client with a secret probes once whether the
/// store is open. Only once: a slow or overloaded store counts each probe as an unauthenticated client.
const ATTEMPTS_BEFORE_PROBE: u32 = 3;

/// With less time than this left it probes at once, since the deadline may pass during the next attempt.
const LAST_ATTEMPT: Duration = Duration::from_secs(1);

const SILENT: &str = "connections are accepted and nothing answers: it is no store, or the process that serves the store is \
                      stopped or overloaded";

const UNKNOWN_NAME: &str = "check how it is spelled (MASTER_ADDR, or `LaunchConfig::rendezvous`), and that DNS or /etc/hosts of \
                            this machine has it (`getent hosts`), or give the address";

const NO_STORE: &str = "it closed the connection during ten handshakes; it may be another service: \
                        check the port";

/// Connects to `host:port`. Retries until the deadline passes: the server may start after its clients.
pub(super) fn connect(
    address: &str,
    options: &StoreOptions,
    deadline: Deadline,
) -> Result<(SocketAddr, Connection), StoreError> {
    let (host, port) = split_address(address)?;
    let key = options.access.key();
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut attempts = 0_u32;
    let mut broken_handshakes = 0_u32;
    let mut unanswered = 0_u32;
    // A client without a secret never probes.
    let mut has_probed = key.is_none();
    let mut notice = WaitNotice::new();
    let mut last = None;
    loop {
        attempts += 1;
        // An attempt that the deadline cuts off says less than the one before.
        let is_cut_off = attempts > 1 && deadline.left() < LAST_ATTEMPT;
        // Half of the time left, so that there is time for the probe.
        let share = if has_probed { 1 } else { 2 };
        let Failed {
            fault,
            target,
            silent,
        } = match attempt(host, port, key.as_ref(), deadline, share) {
            Ok(connected) => return Ok(connected),
            Err(failed) => failed,
        };
        unanswered = silent.map_or(0, |_| unanswered + 1);
        let due = unanswered >= ATTEMPTS_BEFORE_PROBE || deadline.left() < LAST_ATTEMPT;
        let fault = match silent {
            Some(candidate) if due && !std::mem::replace(&mut has_probed, true) => {
                match is_open(candidate, deadline) {
                    true => Fault::OpenStore,
                    false => fault,
                }
            }
            _ => fault,
        };
        let refused = match &fault {
            Fault::NeedsToken | Fault::WrongSecret | Fault::OpenStore => {
                return Err(StoreError::Unauthenticated {
                    address: address.to_owned(),
                    reason: fault.to_string(),
                });
            }
            Fault::Protocol(reason) => Some(reason.clone()),
            Fault::Closed => {
                broken_handshakes += 1;
                (broken_handshakes >= BROKEN_HANDSHAKES).then(|| NO_STORE.into())
            }
            Fault::Timeout | Fault::Io(_) | Fault::UnknownName(_) => {
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
        let problem = Problem::of(&fault, silent.is_some());
        if !is_cut_off {
            last = Some(problem.clone());
        }
        let left = deadline.left();
        if left.is_zero() {
            let last = last.as_ref().unwrap_or(&problem);
            return Err(unreachable(address, target, attempts, deadline, last));
        }
        if notice.is_due(deadline.elapsed()) {
            let on_wait = options.on_wait.clone().unwrap_or_default();
            on_wait.tell(&not_reached_yet(address, &problem, left));
        }
        backoff.sleep(left);
    }
}

/// Why the last attempt failed, in words, and what of it decides what to check.
#[derive(Debug, Clone)]
struct Problem {
    fault: String,
    cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    UnknownName,
    /// Nobody listens there.
    Refused,
    Other,
}

impl Problem {
    /// That of an attempt with this fault; what was connected to has not answered if it `is_silent`.
    fn of(fault: &Fault, is_silent: bool) -> Self {
        let cause = match fault {
            Fault::UnknownName(_) => Cause::UnknownName,
            Fault::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => Cause::Refused,
            _ => Cause::Other,
        };
        let fault = match fault {
            Fault::Timeout if is_silent => SILENT.to_owned(),
            _ => fault.to_string(),
        };
        Self { fault, cause }
    }
}

/// What is said of a store that is still tried for.
fn not_reached_yet(address: &str, problem: &Problem, left: Duration) -> RanksAwaited {
    let advice = match problem.cause {
        Cause::Refused => ": nobody listens there; is machine 0 (or rank 0) started?".to_owned(),
        Cause::UnknownName => format!(": {UNKNOWN_NAME}"),
        Cause::Other => String::new(),
    };
    let fault = &problem.fault;
    let text = format!(
        "the store at {address} is not reached yet ({fault}); it is tried for {:.0} s more{advice}",
        left.as_secs_f64()
    );
    RanksAwaited {
        joined: Vec::new(),
        left,
        text,
    }
}

/// The error of a client whose deadline is over; `last` is the problem of its last attempt.
fn unreachable(
    address: &str,
    target: Option<SocketAddr>,
    attempts: u32,
    deadline: Deadline,
    last: &Problem,
) -> StoreError {
    let target = target.map(|target| target.to_string());
    let target = target.filter(|target| target != address);
    let target = target.map_or_else(String::new, |target| format!(" at {target}"));
    let advice = match last.cause {
        Cause::UnknownName => UNKNOWN_NAME,
        Cause::Refused | Cause::Other => {
            "check that rank 0 or the launcher has started the store, that its host and port are the same there (MASTER_ADDR and \
             MASTER_PORT, or `LaunchConfig::rendezvous`; where the port was taken, machine 0 may have been given another), and \
             that no firewall is in between"
        }
    };
    StoreError::Unreachable {
        address: address.to_owned(),
        operation: "connect",
        reason: format!(
            "tried {attempts} times{target} in {}, last: {}; {advice}",
            units::seconds(deadline.elapsed().as_secs_f64()),
            last.fault
        ),
    }
}

/// Why an attempt failed at all addresses of a host.
struct Failed {
    fault: Fault,
    /// The last address.
    target: Option<SocketAddr>,
    /// The last address that closed the connection or did not answer.
    silent: Option<SocketAddr>,
}

/// Tries each address of the host once. Each may take one `share`th of the time left.
fn attempt(
    host: &str,
    port: u16,
    key: Option<&Key>,
    deadline: Deadline,
    share: u32,
) -> Result<(SocketAddr, Connection), Failed> {
    let mut failed = Failed {
        fault: Fault::Timeout,
        target: None,
        silent: None,
    };
    let candidates = match resolve(host, port, deadline) {
        Ok(candidates) => candidates,
        Err(fault) => return Err(Failed { fault, ..failed }),
    };
    for candidate in candidates {
        let longest = (deadline.left() / share).min(ATTEMPT);
        if longest.is_zero() && failed.target.is_some() {
            break;
        }
        match Connection::open(candidate, key, deadline.at_most(longest)) {
            Ok(connection) => return Ok((candidate, connection)),
            Err(fault) => {
                if matches!(fault, Fault::Closed | Fault::Timeout) {
                    failed.silent = Some(candidate);
                }
                failed.target = Some(candidate);
                failed.fault = fault;
            }
        }
    }
    Err(failed)
}

/// Whether the address serves an open store. Such a store closes the connection of a client that
/// authenticates, or does not answer, like PyTorch's newer one. A store with a secret that is overloaded
/// or shutting down does the same, but it serves no client without the secret.
fn is_open(candidate: SocketAddr, deadline: Deadline) -> bool {
    Connection::open(candidate, None, deadline.at_most(ATTEMPT)).is_ok()
}

/// Whether the machine of a store at `address` (`host:port`) answers within `limit`, at all of its addresses, that nobody
/// listens there: the store has ended, or has not begun.
#[must_use]
pub fn nobody_listens(address: &str, limit: Duration) -> bool {
    let deadline = Deadline::within(limit);
    let found = split_address(address).map(|(host, port)| resolve(host, port, deadline));
    let Ok(Ok(found)) = found else {
        return false;
    };
    let refuses = |address: &SocketAddr| {
        let left = deadline.left();
        let connected = || TcpStream::connect_timeout(address, left);
        !left.is_zero()
            && connected().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    !found.is_empty() && found.iter().all(refuses)
}

/// The addresses of a host. The system's resolver has no deadline, so it runs in a thread that may
/// outlive the call.
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
            // The receiver is gone once the deadline has passed.
            let _ = answer.send(found.map(Iterator::collect::<Vec<_>>));
        })
        .map_err(Fault::Io)?;
    let unknown = match answered.recv_timeout(deadline.left()) {
        Ok(Ok(found)) if found.is_empty() => "has no address".to_owned(),
        Ok(Ok(found)) => return Ok(found),
        Ok(Err(error)) => format!("cannot be resolved: {error}"),
        Err(_) => "was not resolved in time".to_owned(),
    };
    Err(Fault::UnknownName(format!("the name `{host}` {unknown}")))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Duration;

    use super::{Cause, Deadline, Problem, nobody_listens, not_reached_yet, resolve, unreachable};

    fn problem(cause: Cause) -> Problem {
        let fault = "a fault".to_owned();
        Problem { fault, cause }
    }

    #[test]
    fn a_store_has_ended_where_its_address_refuses_and_not_where_no_time_is_left_to_ask() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let long = Duration::from_secs(60);
        assert!(!nobody_listens(&address, long));
        drop(listener);
        assert!(nobody_listens(&address, long));
        let by_name = address.replace("127.0.0.1", "localhost");
        for unknown in [&address, &by_name, &"a host:1".to_owned()] {
            assert!(!nobody_listens(unknown, Duration::ZERO), "{unknown}");
        }
    }

    #[test]
    fn of_a_store_that_is_still_tried_for_it_is_asked_whether_it_is_started() {
        let text = |cause| {
            let left = Duration::from_secs(290);
            not_reached_yet("node1:29500", &problem(cause), left).text
        };
        let begin =
            "the store at node1:29500 is not reached yet (a fault); it is tried for 290 s more";
        assert_eq!(text(Cause::Other), begin);
        let why = ": nobody listens there; is machine 0 (or rank 0) started?";
        assert_eq!(text(Cause::Refused), format!("{begin}{why}"));
    }

    #[test]
    fn of_a_store_that_is_not_reached_the_port_may_be_another_and_the_name_unknown() {
        let over = Deadline::within(Duration::ZERO);
        let text = |cause| unreachable("node1:29500", None, 3, over, &problem(cause)).to_string();
        let refused = text(Cause::Refused);
        let begin = "the store at node1:29500 cannot be reached: tried 3 times in ";
        assert!(refused.starts_with(begin), "{refused}");
        let what = "machine 0 may have been given another), and that no firewall is in between";
        assert!(refused.ends_with(what), "{refused}");
        let unknown = text(Cause::UnknownName);
        assert!(
            unknown.contains("DNS or /etc/hosts") && !unknown.contains("firewall"),
            "{unknown}"
        );
        let named = resolve("node1", 1, over);
        let fault = named.unwrap_err();
        assert_eq!(Problem::of(&fault, false).cause, Cause::UnknownName);
    }
}
