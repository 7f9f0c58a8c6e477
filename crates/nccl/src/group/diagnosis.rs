//! Diagnosis from the ranks' heartbeats: which ranks are behind.

use std::time::Duration;

use everburn_collectives::printable;

use super::core::{Core, OpContext};
use super::failure_notifier::Heartbeat;

/// The longest time between two polls of the heartbeats.
const APART: Duration = Duration::from_secs(2);

/// How many ranks are described; the others are counted.
const DESCRIBED: usize = 4;

/// Another rank, as this one sees it.
struct RankProgress {
    job_rank: usize,
    heartbeat: Option<Heartbeat>,
    /// A second look has found a newer sign.
    moves: bool,
}

impl Core {
    /// The others, looked at twice.
    fn others_seen(&self) -> Vec<RankProgress> {
        let Some(notifier) = &self.notifier else {
            return Vec::new();
        };
        let first = notifier.heartbeats();
        // Whoever lives beats in between. Its clock is not compared with this one.
        std::thread::sleep((2 * self.config.heartbeat).min(APART));
        let second = notifier.heartbeats();
        let looks = first.into_iter().zip(second).zip(&self.config.job_ranks);
        let own = self.job_rank();
        looks
            .filter(|(_, job_rank)| **job_rank != own)
            .map(|((first, second), job_rank)| RankProgress {
                job_rank: *job_rank,
                moves: second.is_some() && number(&first) != number(&second),
                heartbeat: second.or(first),
            })
            .collect()
    }

    /// The job ranks that send no heartbeats any more.
    pub(super) fn silent(&self) -> Vec<usize> {
        let seen = self.others_seen();
        let silent = seen.iter().filter(|other| !other.moves && !has_left(other));
        silent.map(|other| other.job_rank).collect()
    }

    /// The job ranks that have not come as far as `context`, or all others if that cannot be told; and
    /// what they were doing.
    pub(super) fn behind(&self, context: &OpContext) -> (Vec<usize>, String) {
        let mut seen = self.others_seen();
        if let Some(peer) = context.peer {
            seen.retain(|other| other.job_rank == peer);
        }
        let has_come = |other: &RankProgress| {
            let issued = other
                .heartbeat
                .as_ref()
                .map_or(0, |heartbeat| heartbeat.issued);
            other.moves && context.peer.is_none() && issued > context.sequence
        };
        let guilty: Vec<&RankProgress> = seen.iter().filter(|other| !has_come(other)).collect();
        if guilty.is_empty() {
            let all = seen.iter().map(|other| other.job_rank).collect();
            let text = "all have issued it and still live, so a GPU or the way between two does not \
                        move (`dmesg` for Xid, `nvidia-smi topo -m`, NCCL_DEBUG=INFO)";
            return (all, text.to_owned());
        }
        let described: Vec<String> = guilty
            .iter()
            .take(DESCRIBED)
            .map(|other| describe(other))
            .collect();
        let mut text = described.join("; ");
        if guilty.len() > DESCRIBED {
            text.push_str(&format!("; and {} more", guilty.len() - DESCRIBED));
        }
        (guilty.iter().map(|other| other.job_rank).collect(), text)
    }
}

fn number(heartbeat: &Option<Heartbeat>) -> Option<u64> {
    heartbeat.as_ref().map(|heartbeat| heartbeat.number)
}

fn has_left(other: &RankProgress) -> bool {
    other
        .heartbeat
        .as_ref()
        .is_some_and(|heartbeat| heartbeat.goodbye)
}

fn describe(other: &RankProgress) -> String {
    let rank = other.job_rank;
    let Some(heartbeat) = &other.heartbeat else {
        return format!("rank {rank} has never sent a heartbeat");
    };
    let last = match heartbeat.last.as_str() {
        "" => "nothing".to_owned(),
        // Another version may write what it likes.
        last => printable(last, 200),
    };
    let issued = heartbeat.issued;
    match (heartbeat.goodbye, other.moves) {
        (true, _) => format!("rank {rank} has left after {issued} collectives"),
        (false, true) => format!("rank {rank} has issued {issued} collectives, the last {last}"),
        (false, false) => format!(
            "rank {rank} sends no heartbeats any more, its last was after {issued} collectives \
             ({last})"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(goodbye: bool, moves: bool) -> RankProgress {
        RankProgress {
            job_rank: 3,
            heartbeat: Some(Heartbeat {
                number: 7,
                issued: 12,
                last: "all_gather(f32[2]) (collective 11, step 5)".into(),
                goodbye,
            }),
            moves,
        }
    }

    #[test]
    fn what_a_rank_was_doing_is_said() {
        assert_eq!(
            describe(&seen(false, true)),
            "rank 3 has issued 12 collectives, the last all_gather(f32[2]) (collective 11, step 5)"
        );
        assert!(describe(&seen(false, false)).contains("no heartbeats any more"));
        assert_eq!(
            describe(&seen(true, false)),
            "rank 3 has left after 12 collectives"
        );
        let never = RankProgress {
            job_rank: 0,
            heartbeat: None,
            moves: false,
        };
        assert_eq!(describe(&never), "rank 0 has never sent a heartbeat");
    }
}
