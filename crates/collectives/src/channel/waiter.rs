//! Waiting for events on channels.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Channel, Interest};
use crate::shared_memory::{Doorbell, Ticket};

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

    /// Sleeps until one of `interests` has become ready since `ticket` was taken, for at most `most`. No single call
    /// waits for both kinds of channels: a rank that has both sleeps on its doorbell, for at most `between_polls`, and
    /// the caller comes back to poll the sockets.
    pub(super) fn wait(
        &self,
        ticket: Option<Ticket>,
        channels: &[Option<Channel>],
        interests: &[Interest],
        (most, between_polls): (Duration, Duration),
    ) {
        let sockets = sockets_of_interest(channels, interests);
        match (&self.bell, ticket) {
            (Some(bell), Some(ticket)) if sockets.is_empty() => {
                bell.wait(ticket, most);
            }
            (Some(bell), Some(ticket)) => {
                if !wait_for(sockets, Duration::ZERO) {
                    bell.wait(ticket, between_polls);
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
