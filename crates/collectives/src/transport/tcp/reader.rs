//! The receiving half of a link: reads elements directly into the receiver's buffer.

use std::io::{ErrorKind, IoSliceMut, Read};
use std::sync::Arc;
use std::time::Instant;

use super::TURN;
use super::link::Link;
use crate::transport::backlog::{Admission, Reservation};
use crate::transport::frame::{FrameKind, HEADER_BYTES, WireHeader};
use crate::transport::inbox::Inbox;
use crate::transport::payload::Payload;

/// The reading half of a link.
pub(super) struct Reader {
    pub(super) link: Arc<Link>,
    inbox: Arc<Inbox>,
    max_message_bytes: u64,
    /// The next frame's header; the first `filled` bytes have arrived.
    header: [u8; HEADER_BYTES],
    filled: usize,
    arriving: Option<Arriving>,
    /// The peer has ended the stream: it is read to its end.
    pub(super) is_ended: bool,
    /// Data arrived since the last tick.
    pub(super) moved: bool,
}

/// A frame whose header has arrived.
struct Arriving {
    wire: WireHeader,
    payload: Payload,
    filled: usize,
    /// Kept until the frame is delivered.
    _reservation: Option<Reservation>,
}

/// The reason for which a reader has stopped for now.
pub(super) enum Turn {
    /// No data.
    Empty,
    /// There is more to read after the turn of the other peers.
    More,
    /// A pause was requested; the reader waits until then, so that the request reaches the peer.
    Paused(Instant),
}

/// The reason for which a reader ends.
pub(super) enum End {
    /// The stream ended or this rank has closed the link.
    Closed,
    /// The stream broke.
    Broken(String),
    /// The peer sent an invalid frame.
    Invalid(String),
}

impl Reader {
    pub(super) const fn new(link: Arc<Link>, inbox: Arc<Inbox>, max_message_bytes: u64) -> Self {
        Self {
            link,
            inbox,
            max_message_bytes,
            header: [0; HEADER_BYTES],
            filled: 0,
            arriving: None,
            is_ended: false,
            moved: false,
        }
    }

    /// Reads and delivers about [`TURN`] bytes.
    pub(super) fn read(&mut self) -> Result<Turn, End> {
        let mut total = 0;
        loop {
            while self.filled == HEADER_BYTES && self.arriving.is_none() {
                if let Some(until) = self.begin()? {
                    return Ok(Turn::Paused(until));
                }
                self.deliver_if_complete()?;
            }
            if total >= TURN {
                return Ok(Turn::More);
            }
            match self.read_once() {
                Ok((bytes, is_full)) => {
                    total += bytes;
                    self.moved = true;
                    self.deliver_if_complete()?;
                    // A short read has emptied the socket; another one would be a wasted system call.
                    if !is_full && !self.is_ended {
                        return Ok(Turn::Empty);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::UnexpectedEof => return Err(End::Closed),
                    ErrorKind::WouldBlock => return Ok(Turn::Empty),
                    ErrorKind::Interrupted => {}
                    _ => return Err(End::Broken(error.to_string())),
                },
            }
        }
    }

    /// Reads the rest of the elements and the next header with one system call. Returns the number of bytes,
    /// and whether that is all it had space for.
    fn read_once(&mut self) -> std::io::Result<(usize, bool)> {
        let header = &mut self.header[self.filled..];
        let payload = match &mut self.arriving {
            Some(arriving) => &mut arriving.payload.bytes_mut()[arriving.filled..],
            None => &mut [],
        };
        let (payload, header) = match payload.split_at_mut_checked(TURN) {
            Some((part, _)) => (part, &mut header[..0]),
            None => (payload, header),
        };
        let of_payload = payload.len();
        let wanted = of_payload + header.len();
        let mut parts = [IoSliceMut::new(payload), IoSliceMut::new(header)];
        let bytes = (&self.link.stream).read_vectored(&mut parts)?;
        if bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Some(arriving) = &mut self.arriving {
            arriving.filled += bytes.min(of_payload);
        }
        self.filled += bytes.saturating_sub(of_payload);
        Ok((bytes, bytes == wanted))
    }

    /// Begins the frame whose header has arrived. Returns when to try again if a pause was requested.
    fn begin(&mut self) -> Result<Option<Instant>, End> {
        let decoded = WireHeader::decode(&self.header, self.max_message_bytes);
        let wire = decoded.map_err(End::Invalid)?;
        let mut reservation = None;
        match wire.header.kind {
            kind if kind.is_data() => {
                let admission = self.inbox.reserve(self.link.peer, wire.payload_bytes);
                match admission.map_err(End::Invalid)? {
                    Admission::Now(reserved) => reservation = Some(reserved),
                    Admission::After(until) => return Ok(Some(until)),
                }
            }
            FrameKind::Pause => self.link.set_paused(true),
            // After a goodbye the peer accepts all remaining data.
            FrameKind::Resume | FrameKind::Goodbye => self.link.set_paused(false),
            _ => {}
        }
        let payload = Payload::zeroed(wire.dtype, wire.payload_bytes).ok_or_else(|| {
            let bytes = wire.payload_bytes;
            End::Invalid(format!(
                "a frame of {bytes} bytes, more than there is memory"
            ))
        })?;
        self.filled = 0;
        self.arriving = Some(Arriving {
            wire,
            payload,
            filled: 0,
            _reservation: reservation,
        });
        Ok(None)
    }

    fn deliver_if_complete(&mut self) -> Result<(), End> {
        let is_complete =
            |arriving: &mut Arriving| arriving.filled as u64 == arriving.wire.payload_bytes;
        let Some(arriving) = self.arriving.take_if(is_complete) else {
            return Ok(());
        };
        let delivered = self
            .inbox
            .deliver(self.link.peer, &arriving.wire.header, arriving.payload);
        delivered.map_err(End::Invalid)
    }
}
