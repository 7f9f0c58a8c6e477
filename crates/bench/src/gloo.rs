//! The peer of collectives: gloo, in `crates/bench/peers/gloo_all_reduce.py`, one process per rank.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use everburn::launch::WorkerPool;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::job::JobContext;
use crate::peers::script;
use crate::pytorch::Pytorch;

const SCRIPT: &str = "gloo_all_reduce.py";

/// gloo's ranks, which wait for orders.
pub(super) struct Gloo<'a> {
    pool: WorkerPool<'a>,
}

impl<'a> Gloo<'a> {
    /// Starts gloo's ranks.
    pub(super) fn start(context: JobContext<'a>, pytorch: &Pytorch) -> Result<Self, Failure> {
        // The ranks meet at a file, which namespaces share: a store would need a port.
        let store = context.folder.join(format!("gloo-store-{}", context.ranks));
        let commands = (0..context.ranks)
            .map(|rank| rank_command(context.command(rank, Path::new(pytorch.python())), &store))
            .collect();
        let pool = WorkerPool::start(context.children, "gloo", commands, context.folder)?;
        Ok(Self { pool })
    }

    /// The microseconds of each call of an all-reduce.
    pub(super) fn measure(
        &mut self,
        bytes: u64,
        warm_up: usize,
        repeats: usize,
        patience: Duration,
    ) -> Result<Vec<f64>, Failure> {
        let order = json!({ "bytes": bytes, "warm_up": warm_up, "repeats": repeats });
        let answers = self.pool.ask(&order, patience)?;
        times_of("gloo", &answers, repeats)
    }

    pub(super) fn finish(self, patience: Duration) -> Result<(), Failure> {
        self.pool.finish(patience)?;
        Ok(())
    }
}

fn rank_command(mut command: Command, store: &Path) -> Command {
    command
        .arg(script(SCRIPT))
        .arg("--store")
        .arg(store)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The times in the answer of rank 0; of whoever did something else there is no measurement.
pub(super) fn times_of(who: &str, answers: &[Value], repeats: usize) -> Result<Vec<f64>, Failure> {
    let broken = |what: String| Failure::new(format!("the times of {who}: {what}"));
    let times = answers
        .first()
        .and_then(|answer| answer["times_us"].as_array());
    let times = times.ok_or_else(|| broken("rank 0 has reported none".into()))?;
    let times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
    if times.len() != repeats {
        return Err(broken(format!("{} of {repeats} calls", times.len())));
    }
    match times
        .iter()
        .find(|time| !(time.is_finite() && **time > 0.0))
    {
        Some(time) => Err(broken(format!("{time} us is none"))),
        None => Ok(times),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_are_rank_0s() {
        let told = |answer: Value| times_of("gloo", &[answer, json!({})], 2);
        assert_eq!(told(json!({ "times_us": [1.5, 2] })), Ok(vec![1.5, 2.0]));
        let wrong = |answer| told(answer).unwrap_err().to_string();
        assert!(wrong(json!({})).contains("rank 0 has reported none"));
        assert!(wrong(json!({ "times_us": [1.5] })).contains("1 of 2 calls"));
        assert!(wrong(json!({ "times_us": [1.5, null] })).contains("1 of 2 calls"));
        assert!(wrong(json!({ "times_us": [1.5, 0] })).contains("0 us is none"));
        assert!(times_of("gloo", &[], 1).is_err());
    }

    #[test]
    fn the_script_is_there_and_reads_what_it_is_sent() {
        let text = std::fs::read_to_string(script(SCRIPT)).unwrap();
        for word in [
            "\"bytes\"",
            "\"warm_up\"",
            "\"repeats\"",
            "times_us",
            "--store",
        ] {
            assert!(text.contains(word), "{word}");
        }
    }
}
