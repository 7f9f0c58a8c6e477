//! Ranks that ended alike, which a message shows once.

use std::fmt;

use everburn_record::ranges;

use crate::cause::{Blame, blame};
use crate::outcome::EndedRank;

/// Ranks that ended in the same way with the same error, but for the numbers of ranks and times in it.
pub(crate) struct EndedAlike<'a> {
    first: &'a EndedRank,
    ranks: Vec<usize>,
    /// The headline of the error, where it is the ranks' own.
    error: Error,
}

/// What a group says about its error.
#[derive(PartialEq, Eq)]
enum Error {
    /// Nothing: they have said nothing, or lost another rank.
    None,
    /// It is the error of the rank that is to blame.
    Same,
    Another(String),
}

impl<'a> EndedAlike<'a> {
    /// The groups of `others` in the order of their first ranks' ends; `cause` is the rank that is to blame.
    pub(crate) fn groups(cause: &'a EndedRank, others: &'a [EndedRank]) -> Vec<Self> {
        let of_cause = own_error(cause).as_deref().map(without_numbers);
        let mut groups: Vec<(_, Self)> = Vec::new();
        for other in others {
            let line = own_error(other);
            let key = (other.how(), line.as_deref().map(without_numbers));
            if let Some((_, group)) = groups.iter_mut().find(|(known, _)| *known == key) {
                group.ranks.push(other.rank);
                continue;
            }
            let error = match line {
                None => Error::None,
                Some(_) if key.1 == of_cause => Error::Same,
                Some(line) => Error::Another(line),
            };
            let group = Self {
                first: other,
                ranks: vec![other.rank],
                error,
            };
            groups.push((key, group));
        }
        let sorted = |(_, mut group): (_, Self)| {
            group.ranks.sort_unstable();
            group
        };
        groups.into_iter().map(sorted).collect()
    }
}

impl fmt::Display for EndedAlike<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = self.first.how();
        match &*self.ranks {
            [rank] => write!(f, "rank {rank} {how}")?,
            many => {
                let (count, list) = (many.len(), ranges(many));
                let how = match how.strip_prefix("was ") {
                    Some(rest) => format!("were {rest}"),
                    None => how,
                };
                write!(f, "{count} ranks ({list}) {how}")?;
            }
        }
        match &self.error {
            Error::None => Ok(()),
            Error::Same => f.write_str(", with the same error"),
            Error::Another(line) => write!(f, ": {line}"),
        }
    }
}

/// The headline of the error, if the rank has failed by itself.
fn own_error(ended: &EndedRank) -> Option<String> {
    let failure = ended.failure().filter(|_| blame(ended) == Blame::Own)?;
    failure.headline()
}

/// `text` without what differs between ranks that see the same: the numbers after `rank` and `ranks`, and seconds.
pub(crate) fn without_numbers(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let mut in_ranks = false;
    let of_word = |(place, word): (usize, &&str)| {
        let is_number = word.starts_with(|first: char| first.is_ascii_digit());
        let next = words
            .get(place + 1)
            .map(|next| next.trim_end_matches([',', ';', ':', ')', '.']));
        let hidden = is_number && (in_ranks || next == Some("s"));
        // `ranks 0-3, 7 waited`: a list continues after a comma.
        in_ranks = match is_number {
            true => in_ranks && word.ends_with(','),
            false => matches!(word.trim_start_matches('('), "rank" | "ranks"),
        };
        match hidden {
            true => word.trim_start_matches(|first: char| {
                first.is_ascii_digit() || first == '.' || first == '-'
            }),
            false => word,
        }
        .to_owned()
    };
    words
        .iter()
        .enumerate()
        .map(of_word)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::{EXIT_PEER_LOST, RankExit};
    use crate::failure::{RankReport, ReportKind};

    fn ended(rank: usize, code: i32, report: RankReport) -> EndedRank {
        EndedRank {
            report: Some(report),
            ..EndedRank::new(rank, RankExit::Code(code))
        }
    }

    fn lines(cause: &EndedRank, others: &[EndedRank]) -> Vec<String> {
        let groups = EndedAlike::groups(cause, others);
        groups.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_all_ranks_see_of_one_failure_is_one_line_with_a_count() {
        let cause = ended(
            88,
            1,
            RankReport::new(88, ReportKind::Own, "the disk is full"),
        );
        let victim = |rank| {
            let message = format!("rank {rank} lost rank 88 after 0.{rank} s");
            let report = RankReport {
                lost_rank: Some(88),
                ..RankReport::new(rank, ReportKind::PeerLost, message)
            };
            ended(rank, EXIT_PEER_LOST, report)
        };
        let mut others: Vec<_> = (0..128)
            .rev()
            .filter(|rank| *rank != 88)
            .map(victim)
            .collect();
        others[3].ended_by_launcher = true;
        let told = lines(&cause, &others);
        assert_eq!(
            told,
            [
                "126 ranks (0-87, 89-123, 125, 126, 127) lost rank 88 (exit code 75)",
                "rank 124 was ended by the launcher"
            ]
        );
    }

    #[test]
    fn the_same_error_of_many_is_shown_once_and_another_is_not_hidden() {
        let failed =
            |rank: usize, text: &str| ended(rank, 1, RankReport::new(rank, ReportKind::Own, text));
        let waited = |rank: usize| {
            failed(
                rank,
                &format!("rank {rank} waited 2.{rank} s for ranks 0-3, {rank} in x"),
            )
        };
        let others = [
            waited(1),
            failed(2, "rank 2 cannot open shard 7"),
            waited(3),
            failed(4, "rank 4 cannot open shard 9"),
        ];
        assert_eq!(
            lines(&waited(0), &others),
            [
                "2 ranks (1, 3) ended with exit code 1, with the same error",
                "rank 2 ended with exit code 1: rank 2 cannot open shard 7",
                "rank 4 ended with exit code 1: rank 4 cannot open shard 9",
            ]
        );
    }
}
