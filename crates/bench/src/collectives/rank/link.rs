//! How fast a link is for a plain TCP stream: what bounds every exchange over it.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use everburn::collectives::group::ProcessGroup;

use crate::failure::Failure;

/// How much is written or read at a time: large against the cost of a call.
const PIECE: usize = 256 << 10;

/// How long one call may find nothing to read, or no room to write.
const PATIENCE: Duration = Duration::from_secs(30);

/// The message that tells a port.
const PORT_TAG: u64 = 0x706f_7274;

/// Bytes received a second by this rank, of a stream of `bytes` bytes: from rank 0 to rank 1, or
/// from every rank to the next at the same time. `None` where this rank receives nothing.
pub(crate) fn measure(
    group: &ProcessGroup,
    address: IpAddr,
    bytes: u64,
    everyone: bool,
) -> Result<Option<f64>, Failure> {
    let (rank, ranks) = (group.rank(), group.world_size());
    if ranks < 2 {
        return Err(Failure::new("a stream needs two ranks"));
    }
    let sends = everyone || rank == 0;
    let receives = everyone || rank == 1;
    let listener = if receives {
        let listener = TcpListener::bind((address, 0))?;
        // Addresses are told as text, so that either family will do.
        let told = listener.local_addr()?.to_string().into_bytes();
        let sender = (rank + ranks - 1) % ranks;
        group.send(told, sender, PORT_TAG).wait()?;
        Some(listener)
    } else {
        None
    };
    let outward = if sends {
        let told = group.recv::<u8>((rank + 1) % ranks, PORT_TAG).wait()?;
        let to: SocketAddr = String::from_utf8(told)?.parse()?;
        Some(TcpStream::connect_timeout(&to, PATIENCE)?)
    } else {
        None
    };
    let inward = listener.map(|listener| listener.accept()).transpose()?;
    group.barrier().wait()?;
    thread::scope(|scope| {
        let sender = outward.map(|stream| scope.spawn(move || send(stream, bytes)));
        let rate = inward.map(|(stream, _)| receive(stream, bytes)).transpose();
        match sender.map(thread::ScopedJoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => return Err(error.into()),
            Some(Err(_)) => return Err(Failure::new("the sending thread has panicked")),
        }
        Ok(rate?)
    })
}

fn send(mut stream: TcpStream, bytes: u64) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let piece = vec![7; PIECE];
    let mut left = bytes;
    while left > 0 {
        let now = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        stream.write_all(&piece[..now])?;
        left -= now as u64;
    }
    stream.flush()
}

/// The rate from the first bytes to the last: how long the connection took to begin is not the
/// link's.
fn receive(mut stream: TcpStream, bytes: u64) -> std::io::Result<f64> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut piece = vec![0; PIECE];
    let first = stream.read(&mut piece)? as u64;
    let start = Instant::now();
    let mut received = first;
    while received < bytes {
        match stream.read(&mut piece)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            more => received += more as u64,
        }
    }
    Ok((received - first) as f64 / start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use everburn::collectives::group::GroupOptions;

    use super::*;

    #[test]
    fn a_stream_needs_a_receiver() {
        let group = ProcessGroup::alone(GroupOptions::default());
        let refused = measure(&group, Ipv4Addr::LOCALHOST.into(), 1, true);
        assert!(refused.unwrap_err().to_string().contains("two ranks"));
    }
}
