//! Ports that nobody uses.

use std::net::TcpListener;

/// A port of the loopback device that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback device has a free port");
    let address = listener.local_addr().expect("a bound socket has a port");
    address.port()
}

/// Calls `attempt` with free ports until it returns something: it should return `None` when
/// somebody else has taken the port meanwhile.
pub fn on_a_free_port<T>(mut attempt: impl FnMut(u16) -> Option<T>) -> T {
    (0..5)
        .find_map(|_| attempt(free_port()))
        .expect("one of five free ports stays free for a moment")
}
