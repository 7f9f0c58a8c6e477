//! Waiting for events on channels.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Channel, Interest};
use crate::shared_memory::{Doorbell, Ticket};

/// How long a rank with both kinds of channels waits on its doorbell before it polls its sockets:
/// no single call waits for both. About the latency of a fast network.
const DOORBELL_WAIT: Duration = Duration::from_micros(50);

/// Waits for events on the channels of one rank.
pub(super) struct Waiter {
    /// Rung by the ranks of this machine.
    bell: Option<Doorbell>,
}

impl Waiter {
    pub(super) const fn new(bell: Option<Doorbell>) -> Self {
        Self { bell }
    }

    pub(super) fn ticket(&self) -> Option<Ticket> {
        self.bell.as_ref().map(Doorbell::ticket)
    }

    /// Sleeps until one of `interests` has become ready since `ticket` was taken, for at most `most`.
    pub(super) fn wait(
        &self,
        ticket: Option<Ticket>,
        channels: &[Option<Channel>],
        interests: &[Interest],
        most: Duration,
    ) {
        let sockets = sockets_of_interest(channels, interests);
        match (&self.bell, ticket) {
            (Some(bell), Some(ticket)) if sockets.is_empty() => {
                bell.wait(ticket, most);
            }
            (Some(bell), Some(ticket)) => {
                if !wait_for(sockets, Duration::ZERO) {
                    bell.wait(ticket, DOORBELL_WAIT);
                }
            }
            _ => {
                wait_for(sockets, most);
            }
        }
    }
}

fn sockets_of_interest<'a>(
    channels: &'a [Option<Channel>],
    interests: &[Interest],
) -> Vec<PollFd<'a>> {
    let mut sockets = Vec::with_capacity(2 * channels.len());
    for (channel, interest) in channels.iter().zip(interests) {
        let Some(Channel::Socket(channel)) = channel else {
            continue;
        };
        if interest.read {
            sockets.push(PollFd::new(channel.reads_from(), PollFlags::IN));
        }
        if interest.write {
            sockets.push(PollFd::new(channel.writes_to(), PollFlags::OUT));
        }
    }
    sockets
}

/// Waits until a socket is ready, for at most `most`. Returns whether one is.
fn wait_for(mut sockets: Vec<PollFd<'_>>, most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: i64::from(most.subsec_nanos()),
    };
    // On an error (EINTR) the caller checks all channels again.
    poll(&mut sockets, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
