//! How ranks would reach each other: loopback, this machine's name, its addresses.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use everburn_record::Finding;

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
    let advice = "with several machines give `--rendezvous` (ranks of srun and mpirun: MASTER_ADDR) an address and not this name";
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

/// Where machines are to meet. `ours` on machine 0, which listens there.
pub(super) fn rendezvous(given: &str, ours: bool) -> Finding {
    let subject = "rendezvous";
    match given.to_socket_addrs() {
        Ok(addresses) => judge_rendezvous(given, &addresses.collect::<Vec<_>>(), ours),
        Err(error) => Finding::fail(
            subject,
            format!("{given}: {error}"),
            "give HOST:PORT, with a name that this machine can resolve or an address",
        ),
    }
}

fn judge_rendezvous(given: &str, addresses: &[SocketAddr], ours: bool) -> Finding {
    let subject = "rendezvous";
    let listed: Vec<_> = addresses.iter().map(|it| it.ip().to_string()).collect();
    let found = format!("{given} is {}", listed.join(", "));
    let host = given.rsplit_once(':').map_or(given, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    let on_purpose = host == "localhost" || host.parse::<IpAddr>().is_ok();
    if addresses.iter().all(|address| address.ip().is_loopback()) {
        return match on_purpose {
            true => Finding::warn(
                subject,
                format!("{found}: loopback"),
                "only processes of this machine meet there",
            ),
            false => Finding::fail(
                subject,
                format!("{found}: loopback only, which other machines cannot reach"),
                "take the name out of the lines of 127.0.0.1 and 127.0.1.1 in /etc/hosts, or give \
                 the address of machine 0",
            ),
        };
    }
    // A datagram socket binds without disturbing anyone.
    let has = |address: &SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
    if ours && !addresses.iter().any(has) {
        return Finding::warn(
            subject,
            format!("{found}: no address of this machine"),
            "right where a service or address translation leads here; else start this command with \
             the --node-rank of this machine",
        );
    }
    Finding::ok(subject, found)
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

#[cfg(test)]
mod tests {
    use everburn_record::Verdict;

    use super::*;

    fn judge(given: &str, addresses: &[&str], ours: bool) -> Finding {
        let parse = |address: &&str| SocketAddr::new(address.parse().unwrap(), 29500);
        let addresses: Vec<_> = addresses.iter().map(parse).collect();
        judge_rendezvous(given, &addresses, ours)
    }

    #[test]
    fn a_name_that_stands_for_loopback_is_a_trap() {
        let trap = judge("node0:29500", &["127.0.1.1"], true);
        assert_eq!(trap.verdict, Verdict::Fail);
        assert!(trap.to_string().contains("/etc/hosts"), "{trap}");
        assert_eq!(
            judge("127.0.0.1:29500", &["127.0.0.1"], true).verdict,
            Verdict::Warn
        );
        assert_eq!(judge("[::1]:29500", &["::1"], true).verdict, Verdict::Warn);
    }

    #[test]
    fn machine_0_should_have_the_address() {
        // Kept for documentation: no machine has it.
        assert_eq!(
            judge("node0:1", &["192.0.2.1"], true).verdict,
            Verdict::Warn
        );
        assert_eq!(judge("node0:1", &["192.0.2.1"], false).verdict, Verdict::Ok);
        assert_eq!(rendezvous("nowhere", true).verdict, Verdict::Fail);
    }
}
