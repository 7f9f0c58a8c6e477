//! Whom a server has refused, by address: ranks that wait for others say so.

use std::fmt;
use std::net::IpAddr;

use everburn_record::units::counted;

use super::contents::Contents;
use super::peer::Closing;
use crate::store::user_key;

/// The key at which a server keeps whom it has refused, in words.
pub(crate) const REFUSED_KEY: &str = "everburn/store/refused";

/// This many addresses are named: a flood may come from any number.
const MOST_NAMED: usize = 4;

/// The clients that have not shown the secret of the job, or speak another version, since the server was started.
#[derive(Debug, Default)]
pub(super) struct RefusedPeers {
    /// How many connections from each address, in the order in which they came first.
    named: Vec<(IpAddr, u64)>,
    others: usize,
    /// Why the last one was refused.
    reason: String,
}

impl RefusedPeers {
    pub(super) fn add(&mut self, from: Option<IpAddr>, reason: &Closing) {
        let (
            Some(from),
            Closing::NoClient | Closing::OpenStore | Closing::WrongToken | Closing::Auth(_),
        ) = (from, reason)
        else {
            return;
        };
        let from = from.to_canonical();
        self.reason = reason.to_string();
        let mut named = self.named.iter_mut();
        if let Some((_, count)) = named.find(|(address, _)| *address == from) {
            *count += 1;
        } else if self.named.len() < MOST_NAMED {
            self.named.push((from, 1));
        } else {
            self.others += 1;
        }
    }

    /// Has the clients of the store find it at [`REFUSED_KEY`].
    pub(super) fn publish(&self, contents: &mut Contents) {
        if self.named.is_empty() {
            return;
        }
        let text = self.to_string().into_bytes();
        if let Err(error) = contents.store(&user_key(REFUSED_KEY), text) {
            tracing::debug!("whom the store has refused is not in it: {error}");
        }
    }
}

impl fmt::Display for RefusedPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (address, count)) in self.named.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{address}")?;
            if *count > 1 {
                write!(f, " ({count} times)")?;
            }
        }
        if self.others > 0 {
            let others = counted(self.others, "connection");
            write!(f, " and {others} from other addresses")?;
        }
        write!(f, ": {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_named_once_with_a_count_and_not_more_than_a_few() {
        let mut refused = RefusedPeers::default();
        let address = |text: &str| Some(text.parse().unwrap());
        refused.add(None, &Closing::WrongToken);
        refused.add(address("10.0.0.1"), &Closing::Late);
        let mut contents = Contents::new(1 << 20);
        refused.publish(&mut contents);
        assert_eq!(contents.held_bytes(), 0, "nobody was refused");
        for _ in 0..3 {
            refused.add(address("::ffff:10.0.0.2"), &Closing::WrongToken);
        }
        refused.add(address("fd00::1"), &Closing::NoClient);
        let expected =
            "10.0.0.2 (3 times), fd00::1: it did not begin with PyTorch's validation message";
        assert_eq!(refused.to_string(), expected);
        for number in 1..=9 {
            let from = address(&format!("10.0.1.{number}"));
            refused.add(from, &Closing::WrongToken);
        }
        let text = refused.to_string();
        let all = "10.0.0.2 (3 times), fd00::1, 10.0.1.1, 10.0.1.2 and 7 connections from other addresses: its job token";
        assert!(text.starts_with(all), "{text}");
        refused.publish(&mut contents);
        assert!(contents.held_bytes() > text.len());
    }
}
