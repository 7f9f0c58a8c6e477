//! A connection whose other side has to keep a pace.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How many bytes have to pass within each patience.
const PIECE: usize = 64 << 10;

/// A connection with a deadline over all its reads and writes, and not for each of them: a byte now and then
/// does not extend it. The deadline begins anew after each [`PIECE`] bytes, or by [`Paced::begin`].
#[derive(Debug)]
pub(crate) struct Paced<'a> {
    connection: &'a TcpStream,
    patience: Duration,
    deadline: Instant,
    /// How many bytes have passed since the deadline began.
    passed: usize,
}

impl<'a> Paced<'a> {
    pub(crate) fn new(connection: &'a TcpStream, patience: Duration) -> Self {
        Self {
            connection,
            patience,
            deadline: Instant::now() + patience,
            passed: 0,
        }
    }

    /// Begins the deadline anew.
    pub(crate) fn begin(&mut self) {
        self.deadline = Instant::now() + self.patience;
        self.passed = 0;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(self.too_slow()),
            false => Ok(left),
        }
    }

    fn too_slow(&self) -> io::Error {
        let text = format!("the other side takes longer than {:?}", self.patience);
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    fn note(&mut self, outcome: io::Result<usize>) -> io::Result<usize> {
        let count = outcome.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => self.too_slow(),
            _ => error,
        })?;
        self.passed += count;
        if self.passed >= PIECE {
            self.begin();
        }
        Ok(count)
    }
}

impl Read for Paced<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.set_read_timeout(Some(self.left()?))?;
        let outcome = self.connection.read(buffer);
        self.note(outcome)
    }
}

impl Write for Paced<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.connection.set_write_timeout(Some(self.left()?))?;
        // No more than a piece at a time: a write that waits returns only when all of it is taken.
        let outcome = self.connection.write(&buffer[..buffer.len().min(PIECE)]);
        self.note(outcome)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_that_trickle_do_not_extend_the_deadline() {
        let (near, mut far) = connection();
        // All bytes are there at once; the deadline has passed all the same.
        far.write_all(&[7; 64]).unwrap();
        let mut paced = Paced::new(&near, Duration::from_secs(60));
        let mut one = [0];
        paced.read_exact(&mut one).unwrap();
        paced.deadline = Instant::now();
        let error = paced.read_exact(&mut one).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = paced.write_all(&one).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        paced.begin();
        paced.read_exact(&mut one).unwrap();
    }

    #[test]
    fn each_piece_begins_the_deadline_anew() {
        let (near, mut far) = connection();
        let sending = std::thread::spawn(move || far.write_all(&[7; 2 * PIECE]).unwrap());
        let mut paced = Paced::new(&near, Duration::from_secs(60));
        let began = paced.deadline;
        let mut bytes = vec![0; 2 * PIECE];
        paced.read_exact(&mut bytes[..1]).unwrap();
        assert_eq!(paced.deadline, began);
        paced.read_exact(&mut bytes[1..]).unwrap();
        assert!(paced.deadline > began);
        sending.join().unwrap();
    }

    #[test]
    fn a_silent_side_is_given_up() {
        let (near, _far) = connection();
        let mut paced = Paced::new(&near, Duration::from_millis(1));
        let error = paced.read_exact(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
