//! What a part has found, in its rows.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::apart::furthest;
use super::child::Ended;
use super::order::Answer;
use super::record::{Record, SideThroughput, State};

/// What a row comes to: the number, the most that it may be if that is not the plan's, and a note; or why there is none.
pub(super) type CheckResult = Result<Value, String>;

pub(super) struct Value {
    pub(super) found: f64,
    /// In place of the plan's limit, where that is lower.
    pub(super) limit: f64,
    pub(super) note: String,
}

impl Value {
    pub(super) fn new(found: f64, note: String) -> Self {
        Self {
            found,
            limit: 0.0,
            note,
        }
    }
}

/// Whether a line of a process is the [`Answer`] of a part. Other lines are what the training says.
pub(super) fn is_answer(line: &str) -> bool {
    line.starts_with(r#"{"found":"#)
}

/// What the line of an answer says.
pub(super) fn read_answer<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    let answer = serde_json::from_str::<Answer<T>>(line);
    let answer = answer.map_err(|error| format!("its result cannot be read: {error}"))?;
    Ok(answer.found)
}

/// The result of a process's last part, or why there is none.
pub(super) fn result<T: DeserializeOwned>(ended: &Ended) -> Result<T, String> {
    if let Some(why) = ended.failure() {
        return Err(why);
    }
    let found = ended.lines.iter().rev().find(|line| is_answer(line));
    read_answer(found.ok_or("it has printed no result")?)
}

pub(super) fn compare(one: &[f64], other: &[f64]) -> CheckResult {
    match furthest(one, other) {
        Some((apart, step)) => {
            let note = format!("furthest: step {step} of {}", one.len());
            Ok(Value::new(apart, note))
        }
        None => Err(format!("{} losses and {} losses", one.len(), other.len())),
    }
}

/// What a task was given and took.
#[derive(Clone, Copy)]
pub(super) struct Spent {
    pub(super) time: Duration,
    pub(super) limit: Duration,
    /// What it would have been given at any other time.
    pub(super) full: Duration,
}

impl Spent {
    /// Whether it was given less than it may take, because the whole check comes to its end, and took all of it.
    fn was_cut_short(self) -> bool {
        self.limit < self.full && self.time >= self.limit
    }
}

/// Writes what a throughput has come to into its row.
pub(super) fn fill_throughput(
    record: &mut Record,
    name: &str,
    measured: SideThroughput,
    spent: &Spent,
) -> std::io::Result<()> {
    // It may still have been compiling: what is slow is not wrong.
    let cut = measured.state == State::Failed && spent.time >= spent.limit;
    let measured = match cut {
        true => {
            let seconds = spent.limit.as_secs_f64();
            let note = format!("no result after {seconds:.0} s, with the compilation of kernels");
            SideThroughput::without(State::NotReached, note)
        }
        false => measured,
    };
    let rate = measured.per_second.map(|rate| format!("{rate:.0}/s"));
    say!("{name}: {}", rate.unwrap_or_else(|| measured.note.clone()));
    if let Some(row) = record.benchmark(name) {
        row.everburn = measured;
    }
    record.write()
}

/// Fills the row of this name, and writes what there is. What is above its limit is `otherwise`.
pub(super) fn fill(
    record: &mut Record,
    name: &str,
    found: CheckResult,
    spent: Spent,
    otherwise: State,
) -> std::io::Result<()> {
    let row = record.check(name);
    row.seconds = spent.time.as_secs_f64();
    match found {
        // There may be nothing wrong with it but that it came late.
        Err(why) if spent.was_cut_short() => {
            row.state = State::NotReached;
            row.note = why;
        }
        Err(why) => {
            row.state = match otherwise {
                State::Open => State::Open,
                _ => State::Failed,
            };
            row.note = why;
        }
        Ok(Value { found, limit, note }) => {
            row.value = Some(found);
            row.limit = row.limit.max(limit);
            row.note = note;
            // What is not a number is not below the limit either.
            let passed = found <= row.limit;
            row.state = if passed { State::Passed } else { otherwise };
        }
    }
    say!(
        "{name}: {} {} {}",
        row.state.word(),
        row.value
            .map_or_else(String::new, |value| format!("{value:.2e}")),
        row.note
    );
    record.write()
}
