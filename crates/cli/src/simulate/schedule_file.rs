//! A custom schedule, from a file.

use std::collections::HashSet;
use std::path::Path;

use everburn_schedules::{Action, Schedule};
use serde::Deserialize;

use crate::error::CliError;
use crate::read_given;

/// The largest file that is read, in bytes: as many passes as a schedule may have need less.
const LARGEST_FILE: u64 = 64 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleFile {
    /// If absent, as many as the actions speak of.
    micro_batches: Option<usize>,
    /// If absent, as many as the actions speak of.
    chunks: Option<usize>,
    /// One entry a rank.
    actions: Vec<RankActions>,
}

/// The actions of a rank: as they are drawn, `F0 B0`, or spelt out.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RankActions {
    Drawn(String),
    Spelt(Vec<Action>),
}

/// Reads the schedule in the file at `path`: JSON if its name ends so, else TOML.
pub(super) fn read(path: &Path, chunks: Option<usize>) -> Result<Schedule, CliError> {
    let refuse = |reason: String| {
        CliError::usage_with_help(
            format!("{} is no schedule: {reason}", path.display()),
            "actions = [\"F0 F1 B0 B1\", \"F0 B0 F1 B1\"] is one, of two ranks",
        )
    };
    let text = read_given(path, LARGEST_FILE).map_err(|error| refuse(error.to_string()))?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let file: ScheduleFile = match is_json {
        true => serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?,
        false => toml::from_str(&text).map_err(|error| refuse(error.to_string()))?,
    };
    let ranks = file.actions.len();
    let lists = file.actions.into_iter().enumerate();
    let lists = lists
        .map(|(rank, list)| match list {
            RankActions::Spelt(actions) => Ok(actions),
            RankActions::Drawn(text) => drawn(&text, rank, ranks).map_err(refuse),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let all = || lists.iter().flatten();
    let micro_batches = all().map(|action| action.micro_batch().saturating_add(1));
    let micro_batches = file.micro_batches.or(micro_batches.max()).unwrap_or(1);
    let spoken_of = all().map(|action| action.stage() / ranks.max(1) + 1).max();
    let chunks = chunks.or(file.chunks).or(spoken_of).unwrap_or(1);
    Ok(Schedule::from_actions(micro_batches, chunks, lists)?)
}

/// `F0 B0 W0`, or with chunks `F0a F0b`, as the text of a timeline has it.
fn drawn(text: &str, rank: usize, ranks: usize) -> Result<Vec<Action>, String> {
    let words = text.split_whitespace();
    // `B` is the whole backward pass where no `W` completes it.
    let completed = words.clone().filter_map(|word| word.strip_prefix('W'));
    let completed = completed.collect::<HashSet<_>>();
    words
        .map(|word| {
            let wrong = || format!("`{word}` of rank {rank} is none of F0, B0, W0 or F0a");
            let mut letters = word.chars();
            let pass = letters.next().ok_or_else(wrong)?;
            let label = letters.as_str();
            let chunk = match label.chars().last() {
                Some(letter @ 'a'..='z') => letter as usize - 'a' as usize,
                _ => 0,
            };
            let number = label.trim_end_matches(|last: char| last.is_ascii_lowercase());
            if label.len() - number.len() > 1 {
                return Err(wrong());
            }
            let micro_batch = number.parse().map_err(|_| wrong())?;
            let stage = chunk * ranks + rank;
            match pass {
                'F' => Ok(Action::Forward { micro_batch, stage }),
                'B' if completed.contains(label) => {
                    Ok(Action::BackwardInput { micro_batch, stage })
                }
                'B' => Ok(Action::Backward { micro_batch, stage }),
                'W' => Ok(Action::BackwardWeight { micro_batch, stage }),
                _ => Err(wrong()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use everburn_schedules::ScheduleKind;

    use super::*;

    fn read_text(name: &str, text: &str) -> Result<Schedule, CliError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path, None)
    }

    #[test]
    fn both_spellings_are_the_same_schedule() {
        let known = Schedule::new(ScheduleKind::ZeroBubbleH1, 2, 3, 1).unwrap();
        let lists = [0, 1].map(|rank| known.actions(rank).to_vec());
        let spelt = serde_json::json!({ "actions": lists }).to_string();
        let spelt = read_text("a.json", &spelt).unwrap();
        let letters = |actions: &Vec<Action>| {
            let words = actions.iter();
            let words =
                words.map(|action| format!("{}{}", action.pass().letter(), action.micro_batch()));
            words.collect::<Vec<_>>().join(" ")
        };
        let drawn = format!("actions = {:?}", lists.each_ref().map(letters));
        let drawn = read_text("a.toml", &drawn).unwrap();
        assert_eq!(spelt, drawn);
        assert_eq!(drawn.actions(1), known.actions(1));
    }

    #[test]
    fn chunks_are_letters() {
        let text = "actions = ['F0a F0b B0b B0a', 'F0a F0b B0b B0a']";
        let schedule = read_text("a.toml", text).unwrap();
        assert_eq!((schedule.stages(), schedule.micro_batches()), (4, 1));
        assert_eq!(schedule.actions(1)[1].stage(), 3);
    }

    #[test]
    fn what_is_no_schedule_is_named() {
        let refused = |text: &str| read_text("a.toml", text).unwrap_err().to_string();
        assert!(refused("actions = ['F0 X0']").contains("`X0` of rank 0"));
        assert!(refused("actions = ['F0 B']").contains("`B` of rank 0"));
        assert!(refused("actions = ['F0ab']").contains("`F0ab`"));
        assert!(refused("actions = ['F0']").contains("never executes the backward"));
        assert!(refused("action = []").contains("unknown field"));
        assert!(refused("actions = []").contains("at least one rank"));
        let huge = "actions = ['F18446744073709551615']";
        assert!(refused(huge).contains("more than"), "{}", refused(huge));
    }
}
