//! Who is to blame, as the ranks' signs of life tell.

use std::time::Duration;

use everburn_collectives::printable;

use super::core::{Core, Place};
use super::news::Beat;

/// How long two looks at the signs of life are apart at most.
const APART: Duration = Duration::from_secs(2);

/// How many ranks are described; the others are counted.
const DESCRIBED: usize = 4;

/// Another rank, as this one sees it.
struct Seen {
    job_rank: usize,
    beat: Option<Beat>,
    /// A second look has found a newer sign.
    moves: bool,
}

impl Core {
    /// The others, looked at twice.
    fn others_seen(&self) -> Vec<Seen> {
        let Some(news) = &self.news else {
            return Vec::new();
        };
        let first = news.beats();
        // Whoever lives beats in between. Its clock is not compared with this one.
        std::thread::sleep((2 * self.config.beat).min(APART));
        let second = news.beats();
        let looks = first.into_iter().zip(second).zip(&self.config.job_ranks);
        let own = self.job_rank();
        looks
            .filter(|(_, job_rank)| **job_rank != own)
            .map(|((first, second), job_rank)| Seen {
                job_rank: *job_rank,
                moves: second.is_some() && number(&first) != number(&second),
                beat: second.or(first),
            })
            .collect()
    }

    /// The job ranks that give no sign of life any more.
    pub(super) fn silent(&self) -> Vec<usize> {
        let seen = self.others_seen();
        let silent = seen.iter().filter(|other| !other.moves && !has_left(other));
        silent.map(|other| other.job_rank).collect()
    }

    /// The job ranks that have not come as far as `place`, or all others if that cannot be told; and
    /// what they were doing.
    pub(super) fn behind(&self, place: &Place) -> (Vec<usize>, String) {
        let mut seen = self.others_seen();
        if let Some(peer) = place.peer {
            seen.retain(|other| other.job_rank == peer);
        }
        let has_come = |other: &Seen| {
            let issued = other.beat.as_ref().map_or(0, |beat| beat.issued);
            other.moves && place.peer.is_none() && issued > place.sequence
        };
        let guilty: Vec<&Seen> = seen.iter().filter(|other| !has_come(other)).collect();
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

fn number(beat: &Option<Beat>) -> Option<u64> {
    beat.as_ref().map(|beat| beat.number)
}

fn has_left(other: &Seen) -> bool {
    other.beat.as_ref().is_some_and(|beat| beat.goodbye)
}

fn describe(other: &Seen) -> String {
    let rank = other.job_rank;
    let Some(beat) = &other.beat else {
        return format!("rank {rank} has never given a sign of life");
    };
    let last = match beat.last.as_str() {
        "" => "nothing".to_owned(),
        // Another version may write what it likes.
        last => printable(last, 200),
    };
    let issued = beat.issued;
    match (beat.goodbye, other.moves) {
        (true, _) => format!("rank {rank} has left after {issued} collectives"),
        (false, true) => format!("rank {rank} has issued {issued} collectives, the last {last}"),
        (false, false) => format!(
            "rank {rank} gives no sign of life any more, its last was after {issued} collectives \
             ({last})"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(goodbye: bool, moves: bool) -> Seen {
        Seen {
            job_rank: 3,
            beat: Some(Beat {
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
        assert!(describe(&seen(false, false)).contains("no sign of life any more"));
        assert_eq!(
            describe(&seen(true, false)),
            "rank 3 has left after 12 collectives"
        );
        let never = Seen {
            job_rank: 0,
            beat: None,
            moves: false,
        };
        assert_eq!(describe(&never), "rank 0 has never given a sign of life");
    }
}
