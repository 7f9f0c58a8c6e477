//! Sleeping until a lane has news.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Interest, Lane};
use crate::shared_memory::{Doorbell, Ticket};

/// How long a rank with lanes of both kinds sleeps on its memory before it looks at its sockets:
/// nothing wakes it for both. About the time of a message over a fast network.
const TURN: Duration = Duration::from_micros(50);

/// Where one rank sleeps.
pub(super) struct Wake {
    /// On which the ranks of this machine ring.
    bell: Option<Doorbell>,
}

impl Wake {
    pub(super) const fn new(bell: Option<Doorbell>) -> Self {
        Self { bell }
    }

    pub(super) fn ticket(&self) -> Option<Ticket> {
        self.bell.as_ref().map(Doorbell::ticket)
    }

    /// Sleeps for at most `most`; a lane of interest that has news since the ticket ends it.
    pub(super) fn wait(
        &self,
        ticket: Option<Ticket>,
        lanes: &[Option<Lane>],
        interests: &[Interest],
        most: Duration,
    ) {
        let sockets = sockets_of_interest(lanes, interests);
        match (&self.bell, ticket) {
            (Some(bell), Some(ticket)) if sockets.is_empty() => {
                bell.wait(ticket, most);
            }
            (Some(bell), Some(ticket)) => {
                if !wait_for(sockets, Duration::ZERO) {
                    bell.wait(ticket, TURN);
                }
            }
            _ => {
                wait_for(sockets, most);
            }
        }
    }
}

fn sockets_of_interest<'a>(lanes: &'a [Option<Lane>], interests: &[Interest]) -> Vec<PollFd<'a>> {
    let mut sockets = Vec::with_capacity(2 * lanes.len());
    for (lane, interest) in lanes.iter().zip(interests) {
        let Some(Lane::Socket(lane)) = lane else {
            continue;
        };
        if interest.read {
            sockets.push(PollFd::new(lane.reads_from(), PollFlags::IN));
        }
        if interest.write {
            sockets.push(PollFd::new(lane.writes_to(), PollFlags::OUT));
        }
    }
    sockets
}

/// Waits until a socket can be read or written; whether one can.
fn wait_for(mut sockets: Vec<PollFd<'_>>, most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: i64::from(most.subsec_nanos()),
    };
    // An interruption is a reason to look again, as is everything else.
    poll(&mut sockets, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
