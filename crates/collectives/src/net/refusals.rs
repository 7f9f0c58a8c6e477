//! Rate-limited warnings about refused connections: one line per second.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// The refusals since the last line.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: u64,
    last: String,
    /// The earliest time of the next line.
    quiet_until: Option<Instant>,
}

impl Refusals {
    pub(crate) fn add(&mut self, address: Option<IpAddr>, reason: impl Display) {
        let address = address.map_or_else(|| "?".into(), |address| address.to_string());
        self.count += 1;
        self.last = format!("{address}: {reason}");
    }

    /// The time of the next line; `None` without refusals.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        (self.count > 0).then(|| self.quiet_until.map_or(now, |until| until.max(now)))
    }

    /// The next line, if it is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<String> {
        if self.due(now)? > now {
            return None;
        }
        self.quiet_until = Some(now + INTERVAL);
        self.take_all()
    }

    /// The next line, due or not; for the end of the listener.
    pub(crate) fn take_all(&mut self) -> Option<String> {
        let last = std::mem::take(&mut self.last);
        match std::mem::take(&mut self.count) {
            0 => None,
            1 => Some(last),
            count => Some(format!("{count} connections, the last of {last}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_a_second() {
        let mut refusals = Refusals::default();
        let address = Some("10.0.0.1".parse().unwrap());
        let start = Instant::now();
        assert_eq!(refusals.due(start), None);
        refusals.add(address, "first");
        assert_eq!(refusals.take(start).as_deref(), Some("10.0.0.1: first"));
        for index in 0..1000 {
            refusals.add(address, index);
            assert_eq!(refusals.take(start), None);
        }
        let due = refusals.due(start).unwrap();
        assert_eq!(due, start + INTERVAL);
        let line = refusals.take(due).unwrap();
        assert_eq!(line, "1000 connections, the last of 10.0.0.1: 999");
        assert_eq!(refusals.due(due), None);
        refusals.add(None, "later");
        assert_eq!(refusals.take_all().as_deref(), Some("?: later"));
    }
}
