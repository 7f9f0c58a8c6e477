//! Sleeping until a lane has news.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Interest, Lane};

/// Where one rank sleeps.
pub(super) struct Wake {}

impl Wake {
    pub(super) fn ticket(&self) -> u32 {
        0
    }

    pub(super) fn wait(
        &self,
        _ticket: u32,
        lanes: &[Option<Lane>],
        interests: &[Interest],
        most: Duration,
    ) {
        wait_for_sockets(lanes, interests, most);
    }
}

/// Waits until a socket of interest can be read or written; whether there is any.
fn wait_for_sockets(lanes: &[Option<Lane>], interests: &[Interest], most: Duration) {
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
    let timeout = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: i64::from(most.subsec_nanos()),
    };
    // An interruption is a reason to look again, as is everything else.
    let _ = poll(&mut sockets, Some(&timeout));
}
