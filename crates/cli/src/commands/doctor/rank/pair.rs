//! Two ranks exchange numbers that both know.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup, TransportKind};
use everburn_collectives::rendezvous::Rendezvous;
use everburn_collectives::store::{PrefixStore, StoreError};
use serde::{Deserialize, Serialize};

/// Exchanges of one number, of which the shortest counts.
const ROUND_TRIPS: usize = 50;

/// Exchanges of many, of which the fastest counts.
const STREAMS: usize = 4;

/// How two ranks exchange bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::commands::doctor) enum Way {
    SharedMemory,
    Tcp,
}

impl Way {
    pub(in crate::commands::doctor) const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared memory",
            Self::Tcp => "TCP",
        }
    }
}

/// What one of two ranks found; both tell, because either may see wrong numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::commands::doctor) struct PairReport {
    pub(in crate::commands::doctor) ranks: (usize, usize),
    pub(in crate::commands::doctor) way: Way,
    /// Who tells.
    pub(in crate::commands::doctor) by: usize,
    pub(in crate::commands::doctor) bytes_per_second: Option<f64>,
    pub(in crate::commands::doctor) round_trip_us: Option<f64>,
    /// How many numbers came that were not sent.
    pub(in crate::commands::doctor) wrong: usize,
    pub(in crate::commands::doctor) error: Option<String>,
}

/// Examines the pair when its turn, the `turn`-th, has come: one at a time, so that each has the
/// machines to itself.
pub(super) fn in_turn(
    joined: &Rendezvous,
    turn: usize,
    ranks: (usize, usize),
    way: Way,
    bytes: usize,
    patience: Duration,
) -> PairReport {
    let mut report = PairReport {
        ranks,
        way,
        by: joined.rank,
        bytes_per_second: None,
        round_trip_us: None,
        wrong: 0,
        error: None,
    };
    if let Err(error) = wait_for_turn(joined, turn, patience) {
        report.error = Some(error.to_string());
    } else if let Err(error) = measure(joined, &mut report, bytes, patience) {
        report.error = Some(error.to_string());
    }
    // The next pair continues either way; a store that is gone is found by the next wait.
    let _ = joined
        .store
        .add(&done(turn), 1)
        .and_then(|told| match told {
            2 => joined.store.set(&over(turn), b""),
            _ => Ok(()),
        });
    report
}

fn done(turn: usize) -> String {
    format!("everburn/doctor/turn/{turn}/done")
}

fn over(turn: usize) -> String {
    format!("everburn/doctor/turn/{turn}/over")
}

fn wait_for_turn(joined: &Rendezvous, turn: usize, patience: Duration) -> Result<(), StoreError> {
    let Some(before) = turn.checked_sub(1) else {
        return Ok(());
    };
    // Every turn before may take its whole time.
    let turns = u32::try_from(turn).unwrap_or(u32::MAX);
    let limit = patience.saturating_mul(turns);
    joined.store.wait_within(&[&over(before)], limit)
}

/// Sends known numbers within a group of the two, and measures that.
fn measure(
    joined: &Rendezvous,
    report: &mut PairReport,
    bytes: usize,
    patience: Duration,
) -> Result<(), CollectiveError> {
    let (a, b) = report.ranks;
    let prefix = format!("everburn/doctor/pair/{a}-{b}/{:?}", report.way);
    let place = Rendezvous {
        store: Arc::new(PrefixStore::new(prefix, Arc::clone(&joined.store))),
        rank: usize::from(joined.rank == b),
        world_size: 2,
        ranks_per_machine: None,
        timeout: patience,
        ..joined.clone()
    };
    let options = GroupOptions {
        transport: match report.way {
            Way::SharedMemory => TransportKind::SharedMemory,
            Way::Tcp => TransportKind::Tcp,
        },
        ..GroupOptions::default()
    };
    let group = ProcessGroup::connect(place, options)?;
    let mut small = vec![0_i32; 1];
    let mut shortest = f64::INFINITY;
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        group.broadcast_in_place(&mut small, 0)?;
        group.broadcast_in_place(&mut small, 1)?;
        shortest = shortest.min(start.elapsed().as_secs_f64());
    }
    report.round_trip_us = Some(shortest * 1e6);
    let length = (bytes / size_of::<i32>()).max(1);
    let mut fastest = f64::INFINITY;
    for round in 0..STREAMS {
        let mut there = filled(length, round, group.rank() == 0);
        let mut back = filled(length, round + STREAMS, group.rank() == 1);
        group.barrier().wait()?;
        let start = Instant::now();
        group.broadcast_in_place(&mut there, 0)?;
        group.broadcast_in_place(&mut back, 1)?;
        fastest = fastest.min(start.elapsed().as_secs_f64());
        report.wrong += wrong(&there, round) + wrong(&back, round + STREAMS);
    }
    report.bytes_per_second = Some(2.0 * (length * size_of::<i32>()) as f64 / fastest);
    group.destroy()
}

/// The number at `index` of round `round`: every bit of it takes every value.
const fn number(index: usize, round: usize) -> i32 {
    let mixed = (index as u64 ^ (round as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as i32
}

/// The numbers of a round for who sends; zeros for who receives.
fn filled(length: usize, round: usize, sends: bool) -> Vec<i32> {
    match sends {
        true => (0..length).map(|index| number(index, round)).collect(),
        false => vec![0; length],
    }
}

fn wrong(numbers: &[i32], round: usize) -> usize {
    let expected = |(index, found): &(usize, &i32)| **found != number(*index, round);
    numbers.iter().enumerate().filter(expected).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_that_differs_is_found() {
        let mut numbers = filled(1000, 3, true);
        assert_eq!(wrong(&numbers, 3), 0);
        numbers[999] ^= 1 << 17;
        assert_eq!(wrong(&numbers, 3), 1);
        assert!(wrong(&numbers, 4) > 990, "rounds are alike");
        assert!(wrong(&filled(1000, 3, false), 3) > 990, "zeros pass");
    }
}
