//! One collective, called again and again.

use std::fmt;
use std::time::Instant;

use clap::ValueEnum;
use everburn::collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// A collective over 32-bit floats. `bytes` is the message `S` of the cost table in
/// `everburn::collectives::group`: what each rank puts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Operation {
    AllReduce,
    Broadcast,
    Reduce,
    ReduceScatter,
    AllGather,
    AllToAll,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// How often a collective is called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repetition {
    /// Calls that do not count.
    pub(crate) warm_up: usize,
    /// Calls that count, each with a time of its own.
    pub(crate) repeats: usize,
}

/// The microseconds of each call on rank 0, as gloo's side has it; `None` on the others.
///
/// The first call is checked: a collective that computes something else may be fast.
pub(crate) fn measure(
    group: &ProcessGroup,
    operation: Operation,
    bytes: usize,
    repetition: Repetition,
) -> Result<Option<Vec<f64>>, Failure> {
    let length = match (bytes / size_of::<f32>(), operation) {
        // Equal shares only; a few elements more are nothing beside the rest.
        (length, Operation::ReduceScatter) => length.next_multiple_of(group.world_size()),
        (length, _) => length,
    };
    let mut values = vec![group.rank() as f32 + 1.0; length];
    call(group, operation, &mut values)?;
    check(group, operation, &values)?;
    // Sums of zeros stay what they are; anything else would end at infinity.
    values.fill(0.0);
    for _ in 0..repetition.warm_up {
        call(group, operation, &mut values)?;
    }
    group.barrier().wait()?;
    let mut times = Vec::with_capacity(repetition.repeats);
    for _ in 0..repetition.repeats {
        times.push(call(group, operation, &mut values)?);
    }
    Ok((group.rank() == 0).then_some(times))
}

/// Calls `operation` once and returns its microseconds. What a call that uses its argument up
/// needs, a copy, is made before the clock starts.
fn call(
    group: &ProcessGroup,
    operation: Operation,
    values: &mut Vec<f32>,
) -> Result<f64, CollectiveError> {
    let sum = ReduceOp::Sum;
    let microseconds = |start: Instant| start.elapsed().as_secs_f64() * 1e6;
    match operation {
        Operation::AllReduce => {
            let start = Instant::now();
            group.all_reduce_in_place(values, sum)?;
            Ok(microseconds(start))
        }
        Operation::Broadcast => {
            let start = Instant::now();
            group.broadcast_in_place(values, 0)?;
            Ok(microseconds(start))
        }
        Operation::Reduce => {
            let start = Instant::now();
            *values = group.reduce(std::mem::take(values), sum, 0).wait()?;
            Ok(microseconds(start))
        }
        Operation::ReduceScatter => {
            let mine = values.clone();
            let start = Instant::now();
            group.reduce_scatter(mine, sum).wait()?;
            Ok(microseconds(start))
        }
        Operation::AllGather => {
            let mine = values.clone();
            let start = Instant::now();
            group.all_gather(mine).wait()?;
            Ok(microseconds(start))
        }
        Operation::AllToAll => {
            let ranks = group.world_size();
            let share =
                |rank: usize| &values[values.len() * rank / ranks..][..values.len() / ranks];
            let lists: Vec<_> = (0..ranks).map(|rank| share(rank).to_vec()).collect();
            let start = Instant::now();
            group.all_to_all(lists).wait()?;
            Ok(microseconds(start))
        }
    }
}

/// Checks what the first call, with rank + 1 everywhere, has left in place.
fn check(group: &ProcessGroup, operation: Operation, values: &[f32]) -> Result<(), Failure> {
    let ranks = group.world_size();
    let expected = match operation {
        Operation::AllReduce => (ranks * (ranks + 1) / 2) as f32,
        Operation::Broadcast => 1.0,
        // These leave the message as it was, or on one rank only.
        _ => return Ok(()),
    };
    match values.iter().position(|&value| value != expected) {
        None => Ok(()),
        Some(at) => Err(Failure::new(format!(
            "rank {} has {} in element {at} of {operation:?} where {expected} is right",
            group.rank(),
            values[at]
        ))),
    }
}

#[cfg(test)]
mod tests {
    use everburn::collectives::group::GroupOptions;

    use super::*;

    #[test]
    fn a_wrong_sum_is_no_measurement() {
        let group = ProcessGroup::alone(GroupOptions::default());
        let wrong = check(&group, Operation::AllReduce, &[1.0, 2.0]).unwrap_err();
        assert!(wrong.to_string().contains("2 in element 1"), "{wrong}");
        check(&group, Operation::AllReduce, &[1.0, 1.0]).unwrap();
    }
}
