//! Refused connections: rate-limited warnings, one line per second, and the addresses without the job's secret.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use everburn_record::units::counted;

/// The shortest time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// The most addresses without the job's secret that are named: a flood may come from any number.
const MOST_NAMED: usize = 4;

/// The connections that a listener refused.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// The refusals since the last line.
    count: u64,
    last: String,
    /// The earliest time of the next line.
    quiet_until: Option<Instant>,
    /// The connections without the job's secret per address, in the order of their first.
    unproved: Vec<(IpAddr, u64)>,
    /// Such connections from further addresses.
    unnamed: usize,
    /// Why the last such connection was refused.
    reason: String,
}

impl Refusals {
    pub(crate) fn add(&mut self, address: Option<IpAddr>, reason: impl Display) {
        let address = address.map_or_else(|| "?".into(), |address| address.to_string());
        self.count += 1;
        self.last = format!("{address}: {reason}");
    }

    /// Adds a connection that did not prove the job's secret, or speaks another version.
    pub(crate) fn add_unproved(&mut self, address: Option<IpAddr>, reason: impl Display) {
        self.add(address, &reason);
        let Some(address) = address.map(|address| address.to_canonical()) else {
            return;
        };
        self.reason = reason.to_string();
        let mut named = self.unproved.iter_mut();
        if let Some((_, count)) = named.find(|(named, _)| *named == address) {
            *count += 1;
        } else if self.unproved.len() < MOST_NAMED {
            self.unproved.push((address, 1));
        } else {
            self.unnamed += 1;
        }
    }

    /// The addresses without the job's secret since the start, and why the last was refused.
    pub(crate) fn unproved(&self) -> Option<String> {
        let named = self.unproved.iter().map(|(address, count)| match count {
            1 => address.to_string(),
            count => format!("{address} ({count} times)"),
        });
        let mut text = named.collect::<Vec<_>>().join(", ");
        if text.is_empty() {
            return None;
        }
        if self.unnamed > 0 {
            let others = counted(self.unnamed, "connection");
            text += &format!(" and {others} from other addresses");
        }
        Some(text + ": " + &self.reason)
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
        assert_eq!(refusals.unproved(), None, "nobody was without the secret");
    }

    #[test]
    fn addresses_are_named_once_with_a_count_and_not_more_than_a_few() {
        let mut refusals = Refusals::default();
        let address = |text: &str| Some(text.parse().unwrap());
        refusals.add_unproved(None, "no token");
        assert_eq!(refusals.unproved(), None);
        for _ in 0..3 {
            refusals.add_unproved(address("::ffff:10.0.0.2"), "no token");
        }
        refusals.add_unproved(address("fd00::1"), "no client");
        let expected = "10.0.0.2 (3 times), fd00::1: no client";
        assert_eq!(refusals.unproved().as_deref(), Some(expected));
        for number in 1..=9 {
            refusals.add_unproved(address(&format!("10.0.1.{number}")), "no token");
        }
        let all = "10.0.0.2 (3 times), fd00::1, 10.0.1.1, 10.0.1.2 and 7 connections from other addresses: no token";
        assert_eq!(refusals.unproved().as_deref(), Some(all));
        let line = "14 connections, the last of 10.0.1.9: no token";
        assert_eq!(refusals.take_all().as_deref(), Some(line));
    }
}
