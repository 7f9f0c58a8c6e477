//! Waiting for events on the sockets of channels.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Channel, Interest};

/// The sockets of `channels` to wait for.
pub(super) fn sockets_of_interest<'a>(
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
pub(super) fn wait_for(mut sockets: Vec<PollFd<'_>>, most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: i64::from(most.subsec_nanos()),
    };
    // On an error (EINTR) the caller checks all channels again.
    poll(&mut sockets, Some(&timeout)).is_ok_and(|ready| ready > 0)
}
