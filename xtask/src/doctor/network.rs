//! How ranks would reach each other: loopback, this machine's name, its addresses.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use super::Finding;

const PATIENCE: Duration = Duration::from_secs(2);

/// An address of the documentation (RFC 5737): routed like any other outside, and nobody's.
const OUTSIDE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

pub(super) fn findings() -> Vec<Finding> {
    vec![loopback(), host_name(), interfaces(), outward_address()]
}

fn loopback() -> Finding {
    let connect = || -> io::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        TcpStream::connect_timeout(&address, PATIENCE)?;
        Ok(address)
    };
    match connect() {
        Ok(address) => Finding::ok("loopback", format!("{address} was bound and reached")),
        Err(error) => Finding::fail(
            "loopback",
            format!("127.0.0.1 cannot be reached: {error}"),
            "several ranks need it: `ip link set lo up`, and no firewall on lo",
        ),
    }
}

fn host_name() -> Finding {
    let subject = "host name";
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let advice = "with several machines give `--rendezvous` an address and not this name";
    match (name.as_str(), 0).to_socket_addrs() {
        Ok(addresses) => {
            let mut addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
            addresses.sort_unstable();
            addresses.dedup();
            let listed: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let found = format!("{name} is {}", listed.join(", "));
            // Some systems map their own name to 127.0.1.1; other machines would call themselves.
            if addresses.iter().all(IpAddr::is_loopback) {
                Finding::warn(subject, format!("{found}: loopback only"), advice)
            } else {
                Finding::ok(subject, found)
            }
        }
        Err(error) => Finding::warn(subject, format!("{name} has no address: {error}"), advice),
    }
}

fn interfaces() -> Finding {
    let Ok(entries) = fs::read_dir("/sys/class/net") else {
        return Finding::warn(
            "interfaces",
            "the system does not list them",
            "see `ip address`",
        );
    };
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| {
            let state = fs::read_to_string(entry.path().join("operstate")).unwrap_or_default();
            format!("{} ({})", entry.file_name().to_string_lossy(), state.trim())
        })
        .collect();
    found.sort_unstable();
    Finding::ok("interfaces", found.join(", "))
}

/// Connecting a datagram socket sends nothing; it only chooses a route.
fn outward_address() -> Finding {
    let address = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(OUTSIDE).and_then(|()| socket.local_addr()));
    match address {
        Ok(address) => Finding::ok("outward", format!("other machines see {}", address.ip())),
        Err(error) => Finding::warn(
            "outward",
            format!("no route to the outside: {error}"),
            "training on this machine works; several machines and downloads do not",
        ),
    }
}
