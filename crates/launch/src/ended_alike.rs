//! Ranks that ended alike, which a message shows once.

use std::{fmt, iter};

use everburn_record::units::counted;
use everburn_record::{plain, ranges};

use crate::cause::{Blame, blame};
use crate::failure::ReportKind;
use crate::outcome::EndedRank;

/// How many groups of ranks are listed: a job of many ranks can fail in as many ways.
const MOST_GROUPS: usize = 16;

/// How many errors besides that of the rank to blame are shown with their causes and what helps; of more the headlines.
const MOST_IN_FULL: usize = 4;

/// How many lines of an error are shown after its headline.
const MOST_LINES: usize = 12;

/// How many characters of a line are shown: an error may quote what it has read.
const LONGEST_LINE: usize = 1000;

/// How `others` ended, in lines, in the order of their ends; `cause` is the rank that is to blame. Ranks that ended alike are one
/// line; an error of their own that is not that of `cause` is shown with its causes and what helps, once.
pub(crate) fn how_others_ended(cause: &EndedRank, others: &[EndedRank]) -> Vec<String> {
    let groups = EndedAlike::groups(cause, others);
    let (listed, left) = groups.split_at(groups.len().min(MOST_GROUPS));
    let (mut lines, mut in_full) = (Vec::new(), 0);
    for group in listed {
        lines.push(group.to_string());
        if in_full < MOST_IN_FULL {
            let rest = group.rest_of_error();
            in_full += usize::from(!rest.is_empty());
            lines.extend(rest);
        }
    }
    let left: usize = left.iter().map(|group| group.ranks.len()).sum();
    if left > 0 {
        let left = counted(left, "other rank");
        lines.push(format!("{left} ended otherwise: see the log of each"));
    }
    lines
}

/// Ranks that ended in the same way with the same error, but for the numbers of ranks and times in it.
struct EndedAlike<'a> {
    first: &'a EndedRank,
    ranks: Vec<usize>,
    error: Error<'a>,
}

/// What a group says about its error, where it is the ranks' own.
enum Error<'a> {
    /// Nothing: they have said nothing, or lost another rank.
    None,
    /// It is the error of the rank that is to blame.
    Same,
    /// The headline, and the lines after it, unless another group has them.
    Another(String, Vec<&'a str>),
}

impl<'a> EndedAlike<'a> {
    /// The groups of `others` in the order of their first ranks' ends; `cause` is the rank that is to blame.
    fn groups(cause: &EndedRank, others: &'a [EndedRank]) -> Vec<Self> {
        let of_cause = own_error(cause).map(|error| error.without_numbers());
        let mut groups: Vec<((String, Option<String>), Self)> = Vec::new();
        for other in others {
            let said = own_error(other);
            let text = said.as_ref().map(OwnError::without_numbers);
            let key = (other.how(), text);
            if let Some((_, group)) = groups.iter_mut().find(|(known, _)| *known == key) {
                group.ranks.push(other.rank);
                continue;
            }
            let error = match said {
                None => Error::None,
                Some(_) if key.1 == of_cause => Error::Same,
                Some(said) if groups.iter().any(|((_, text), _)| *text == key.1) => {
                    Error::Another(said.headline, Vec::new())
                }
                Some(said) => Error::Another(said.headline, said.rest),
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

    /// The lines after the headline of its error, as many as are shown.
    fn rest_of_error(&self) -> Vec<String> {
        let Error::Another(_, rest) = &self.error else {
            return Vec::new();
        };
        let (shown, left) = rest.split_at(rest.len().min(MOST_LINES));
        let shown = shown.iter().map(|line| plain::line(line, LONGEST_LINE));
        let left = (!left.is_empty()).then(|| {
            let left = counted(left.len(), "more line");
            format!("{left}: see the log of rank {}", self.first.rank)
        });
        shown.chain(left).map(|line| format!("  {line}")).collect()
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
            Error::Another(line, _) => write!(f, ": {}", plain::line(line, LONGEST_LINE)),
        }
    }
}

/// What a rank has said of a failure that is its own.
struct OwnError<'a> {
    headline: String,
    rest: Vec<&'a str>,
    is_panic: bool,
}

impl OwnError<'_> {
    /// What is the same where ranks fail alike: all lines, but for numbers; of a panic the headline, since the others are
    /// about the batch of the rank.
    fn without_numbers(&self) -> String {
        let rest = self.rest.iter().copied().filter(|_| !self.is_panic);
        let lines = iter::once(self.headline.as_str()).chain(rest);
        lines.map(without_numbers).collect::<Vec<_>>().join("\n")
    }
}

/// The error of a rank that has failed by itself.
fn own_error(ended: &EndedRank) -> Option<OwnError<'_>> {
    let failure = ended.failure().filter(|_| blame(ended) == Blame::Own)?;
    let (headline, mut rest) = failure.headline_and_rest()?;
    rest.retain(|line| !line.trim().is_empty());
    Some(OwnError {
        headline,
        rest,
        is_panic: failure.kind == ReportKind::Panic,
    })
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
    use crate::failure::RankReport;

    fn ended(rank: usize, code: i32, report: RankReport) -> EndedRank {
        EndedRank {
            report: Some(report),
            ..EndedRank::new(rank, RankExit::Code(code))
        }
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
        let told = how_others_ended(&cause, &others);
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
            how_others_ended(&waited(0), &others),
            [
                "2 ranks (1, 3) ended with exit code 1, with the same error",
                "rank 2 ended with exit code 1: rank 2 cannot open shard 7",
                "rank 4 ended with exit code 1: rank 4 cannot open shard 9",
            ]
        );
    }

    #[test]
    fn errors_that_differ_are_shown_once_each_with_their_causes_and_what_helps() {
        let failed = |rank: usize, code: i32, kind: ReportKind, more: &str| {
            let message = format!("the data cannot be read{more}");
            ended(rank, code, RankReport::new(rank, kind, message))
        };
        let own = |rank: usize, code: i32, more: &str| failed(rank, code, ReportKind::Own, more);
        let (gone, closed) = (
            "\n  because: a.bin: gone by rank 0\nhelp: x",
            "\n  because: b.bin: no permission\n\nhelp: y",
        );
        let others = [
            own(1, 1, closed),
            own(2, 1, &gone.replace("rank 0", "rank 2")),
            own(3, 1, closed),
            own(4, 3, closed),
        ];
        assert_eq!(
            how_others_ended(&own(0, 1, gone), &others),
            [
                "2 ranks (1, 3) ended with exit code 1: the data cannot be read",
                "    because: b.bin: no permission",
                "  help: y",
                "rank 2 ended with exit code 1, with the same error",
                "rank 4 ended with exit code 3: the data cannot be read",
            ]
        );
        // What a panic says below its headline is about the batch of its rank.
        let panicked = |rank: usize, more: &str| failed(rank, 101, ReportKind::Panic, more);
        let others = [panicked(1, "\nthe model got input [7, 4]")];
        let said = how_others_ended(&panicked(0, "\nthe model got input [8, 4]"), &others);
        let [line] = &*said else {
            panic!("one line: {said:?}");
        };
        assert!(line.ends_with(", with the same error"), "{line}");
    }

    #[test]
    fn of_many_long_errors_a_few_are_shown_and_their_beginnings() {
        let failed = |rank: usize| {
            let rest = format!("\n  because: {}", "x".repeat(2 * LONGEST_LINE)).repeat(30);
            let message = format!("shard {rank} cannot be opened{rest}");
            ended(rank, 1, RankReport::new(rank, ReportKind::Own, message))
        };
        let others: Vec<EndedRank> = (1..=40).map(failed).collect();
        let said = how_others_ended(&failed(0), &others);
        let in_full = MOST_IN_FULL * (MOST_LINES + 1);
        assert_eq!(said.len(), MOST_GROUPS + in_full + 1);
        let longest = said.iter().map(|line| line.chars().count()).max();
        assert_eq!(longest, Some(LONGEST_LINE + 2));
        let left = format!("  {} more lines: see the log of rank 1", 30 - MOST_LINES);
        assert_eq!(said[MOST_LINES + 1], left);
        let last = said.last().unwrap();
        assert_eq!(last, "24 other ranks ended otherwise: see the log of each");
    }
}
