//! The peers' ranks: gloo's, in `crates/bench/peers/gloo_all_reduce.py`, and an MPI's, in
//! `crates/bench/peers/mpi_all_reduce.c`.

use std::process::Command;
use std::time::Duration;

use everburn::launch::WorkerPool;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::job::JobContext;
use crate::peers::{FoundPeer, Peer, mpirun};

const GLOO: &str = "gloo_all_reduce.py";

/// A peer's ranks, which wait for orders.
pub(super) struct PeerRanks<'a> {
    pub(super) peer: Peer,
    pool: WorkerPool<'a>,
}

impl<'a> PeerRanks<'a> {
    pub(super) fn start(context: JobContext<'a>, found: &FoundPeer) -> Result<Self, Failure> {
        let peer = found.peer;
        let commands = match peer {
            // It starts the ranks, and is their input and output.
            Peer::Mpi => vec![mpirun(&found.program, context.ranks)],
            _ => gloo(context, found),
        };
        let pool = WorkerPool::start(context.children, peer.name(), commands, context.folder)?;
        Ok(Self { peer, pool })
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
        times_of(self.peer.name(), &answers, repeats)
    }

    pub(super) fn finish(self, patience: Duration) -> Result<(), Failure> {
        self.pool.finish(patience)?;
        Ok(())
    }
}

/// One process per rank.
fn gloo(context: JobContext<'_>, found: &FoundPeer) -> Vec<Command> {
    // The ranks meet at a file, which namespaces share: a store would need a port.
    let store = context.folder.join(format!("gloo-store-{}", context.ranks));
    (0..context.ranks)
        .map(|rank| {
            let mut command = context.command(rank, &found.program);
            found.add_script(&mut command, GLOO);
            command.arg("--store").arg(&store);
            command
        })
        .collect()
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
    use std::path::Path;

    use everburn::launch::Children;
    use everburn_tests::skip_missing;

    use super::*;
    use crate::peers::script;

    /// Nothing here is about time.
    const PATIENCE: Duration = Duration::from_secs(120);

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
    fn the_scripts_are_there_and_read_what_they_are_sent() {
        for (name, own) in [(GLOO, "--store"), ("mpi_all_reduce.c", "MPI_IN_PLACE")] {
            let text = std::fs::read_to_string(script(name)).unwrap();
            for word in ["\"bytes\"", "\"warm_up\"", "\"repeats\"", "times_us", own] {
                assert!(text.contains(word), "{name}: {word}");
            }
        }
    }

    #[test]
    fn ranks_of_mpi_answer_every_order_and_end_with_their_input() {
        let children = Children::listen().unwrap();
        let folder = tempfile::tempdir().unwrap();
        if Command::new("mpicc").arg("--version").output().is_err() {
            let why = "there is no mpicc";
            return skip_missing("an all-reduce by MPI", why, "libopenmpi-dev");
        }
        let found = Peer::Mpi.find(&children, folder.path()).unwrap();
        assert!(found.full_name().contains("MPI"), "{found:?}");
        let context = JobContext {
            children: &children,
            program: Path::new("p"),
            folder: folder.path(),
            network: None,
            ranks: 3,
        };
        let mut ranks = PeerRanks::start(context, &found).unwrap();
        for (bytes, repeats) in [(40_000, 7), (4, 1)] {
            let times = ranks.measure(bytes, 1, repeats, PATIENCE).unwrap();
            assert_eq!(times.len(), repeats);
        }
        ranks.finish(PATIENCE).unwrap();
    }
}
