//! A rank of `bench collectives`: an order, its answer, the next.

mod collective;
mod link;
mod memory;

use std::io::BufRead;

use clap::Args;
use everburn::collectives::group::{Algorithm, GroupOptions, TransportKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(super) use self::collective::Operation;
use self::collective::Repetition;
use crate::failure::Failure;
use crate::rank;

/// How the ranks of a measurement exchange bytes.
#[derive(Debug, Args)]
pub(crate) struct RankOptions {
    /// auto, shm or tcp
    #[arg(long, default_value_t)]
    transport: TransportKind,

    /// One algorithm for all messages [default: chosen by size and ranks]
    #[arg(long)]
    algorithm: Option<Algorithm>,
}

/// What the benchmark wants measured now; the same line goes to every rank.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Order {
    /// A collective of `bytes` bytes; rank 0 answers with the time of each call.
    Collective {
        operation: Operation,
        bytes: usize,
        warm_up: usize,
        repeats: usize,
    },
    /// Copies of `bytes` bytes from memory to memory, by rank 0 alone or by all ranks at once; who
    /// copies answers with its bytes per second.
    Memcpy { bytes: usize, everyone: bool },
    /// A plain TCP stream of `bytes` bytes from rank 0 to rank 1, or from each rank to the next at
    /// once; who receives answers with its bytes per second.
    Stream { bytes: u64, everyone: bool },
}

/// Carries out the orders on standard input until it ends.
pub(crate) fn run(options: &RankOptions) -> Result<(), Failure> {
    let group_options = GroupOptions {
        transport: options.transport,
        algorithm: options.algorithm,
        ..GroupOptions::default()
    };
    let (group, address) = rank::join(group_options)?;
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)? {
            Order::Collective {
                operation,
                bytes,
                warm_up,
                repeats,
            } => {
                let repetition = Repetition { warm_up, repeats };
                let times = collective::measure(&group, operation, bytes, repetition)?;
                times.map(|times| json!({ "times_us": times }))
            }
            Order::Memcpy { bytes, everyone } => {
                let rate = memory::measure(&group, bytes, everyone)?;
                rate.map(|rate| json!({ "bytes_per_second": rate }))
            }
            Order::Stream { bytes, everyone } => {
                let rate = link::measure(&group, address, bytes, everyone)?;
                rate.map(|rate| json!({ "bytes_per_second": rate }))
            }
        };
        println!("{}", answer.unwrap_or(Value::Object(Default::default())));
    }
    group.destroy()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read() {
        let line = r#"{"order": "collective", "operation": "all_reduce", "bytes": 1024,
                       "warm_up": 3, "repeats": 5}"#;
        let Order::Collective {
            operation, bytes, ..
        } = serde_json::from_str(line).unwrap()
        else {
            panic!("another order")
        };
        assert_eq!((operation, bytes), (Operation::AllReduce, 1024));
        let line = r#"{"order": "memcpy", "bytes": 1, "everyone": true}"#;
        assert!(matches!(
            serde_json::from_str(line).unwrap(),
            Order::Memcpy { everyone: true, .. }
        ));
        assert!(serde_json::from_str::<Order>(r#"{"order": "sing"}"#).is_err());
    }
}
