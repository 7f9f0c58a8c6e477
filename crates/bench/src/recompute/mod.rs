//! `bench recompute`: the memory that activation checkpointing saves, and the time that it costs.
//!
//! Each side is `everburn-bench side recompute` in a process of its own, whose peak is its own.

mod options;
mod order;
pub(super) mod rows;
#[cfg(not(test))]
pub(crate) mod steps;

use everburn::launch::keep_freed_memory;
use serde_json::{Value, json};

pub(crate) use self::options::RecomputeBench;
use self::order::Side;
use self::rows::MIB;
pub(crate) use self::rows::{RecomputeResults, table, to_json};
use crate::bench::{Bench, Setup};
use crate::failure::Failure;
use crate::rounds::Rounds;

impl Bench for RecomputeBench {
    const NAME: &'static str = "recompute";
    const ABOUT: &'static str =
        "memory that activation checkpointing saves in a step of a decoder, and its time";

    type Results = RecomputeResults;

    fn measure(&self, setup: &Setup) -> Result<RecomputeResults, Failure> {
        let sides = self.sides();
        let run = |_: usize, side: usize| {
            let how = &sides[side];
            let order = json!(self.order(how)).to_string();
            let mut command = setup.side(&["recompute", &order]);
            keep_freed_memory(&mut command);
            let name = format!("everburn's steps with `{how}`");
            let (children, patience) = (&setup.children, setup.patience);
            let told = children.run(&name, &mut command, setup.folder(), patience)?;
            let last = told.lines().last().unwrap_or_default();
            Ok(serde_json::from_str::<Side>(last)?)
        };
        let rounds = Rounds::in_turn(self.rounds, sides.len(), run, |round| {
            let told = sides.iter().zip(round).map(|(how, side)| {
                let mebibytes = side.peak_bytes as f64 / MIB;
                format!("{how} {:.0} ms {mebibytes:.0} MiB", side.milliseconds)
            });
            told.collect::<Vec<_>>().join(", ")
        })?;
        Ok(RecomputeResults { sides, rounds })
    }

    fn notes(&self, _: &RecomputeResults, _: &Setup) -> String {
        self.describe()
    }

    fn table(&self, results: &RecomputeResults, _: &Setup) -> String {
        table(results)
    }

    fn to_json(&self, results: &RecomputeResults, _: &Setup, machine: &Value) -> Value {
        to_json(results, self, machine)
    }
}
