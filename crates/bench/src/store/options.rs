//! The command line of `bench store`.

use clap::Parser;

use super::client::Operation;
use crate::bench::at_least_1;
use crate::peers::{Peer, one_of};

const SETS_PER_GET: usize = 10;

/// Clients that connect at once.
pub(super) const CLIENTS: usize = 1_000;

/// A client that has not connected after this many seconds has failed.
pub(super) const CONNECT_SECONDS: u64 = 20;

/// Measures the store over TCP on this machine: gets, adds and sets a second, and many clients at once.
///
/// One client does one operation after the other. With `--against pytorch` both servers run all the
/// time, and PyTorch's client and ours measure both of them in turn, so that servers are compared with
/// the same client, and the two stores each with its own.
#[derive(Debug, Parser)]
pub(crate) struct StoreBench {
    /// Measure beside this peer.
    #[arg(long, value_name = "PEER", value_parser = one_of([Peer::Pytorch]))]
    pub(super) against: Option<Peer>,

    /// Gets and adds in each round, and a tenth of the sets.
    #[arg(long, default_value_t = 20_000, value_parser = at_least_1)]
    pub(super) calls: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 7, value_parser = at_least_1)]
    pub(super) rounds: usize,
}

impl StoreBench {
    /// Nobody waits for a set, and many take as long as few gets.
    pub(super) fn calls_of(&self, operation: Operation) -> usize {
        match operation {
            Operation::Set => self.calls.saturating_mul(SETS_PER_GET),
            Operation::Get | Operation::Add => self.calls,
        }
    }
}
