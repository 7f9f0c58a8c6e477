//! What `logs/` tells of a run: `rank-N.log`, and `rank-N.error.json` where a rank has failed.

use std::collections::HashSet;
use std::path::Path;

use everburn_record::lines::{self, Line};
use everburn_record::{Event, EventKind, file, units};
use serde::Deserialize;

use super::{Note, sentences};

/// How much of a log is read, of its beginning and of its end.
const PART: u64 = 16 << 20;

/// A longer line is not one of a training.
const LONGEST_LINE: usize = 1 << 16;

/// How many logs are read.
const MOST_FILES: usize = 1024;

/// How many events are kept, of all logs.
pub(super) const MOST_EVENTS: usize = 5000;

/// How long a rank's account of its failure may be.
const LONGEST_FAILURE: u64 = 1 << 16;

/// What a rank says of its failure: `RankReport` of `crates/launch`.
#[derive(Deserialize)]
struct Failure {
    rank: usize,
    #[serde(default)]
    step: Option<u64>,
    message: String,
    #[serde(default)]
    unix_time_ms: Option<u64>,
}

/// The events of all logs. An event that several ranks log is kept once.
pub(super) fn read(folder: &Path, notes: &mut Vec<Note>) -> Vec<Event> {
    let mut names = names(&folder.join("logs"), notes);
    // Failures first: they have a time, and the same sentences are in the logs without one.
    names.sort_by_key(|(name, rank)| (!is_failure(name), *rank));
    let mut collected = CollectedEvents::default();
    for (name, rank) in names {
        let path = folder.join("logs").join(&name);
        let read = match is_failure(&name) {
            true => failure(&path).map(|event| collected.take(event)),
            false => log(&path, rank, &mut collected),
        };
        if let Err(why) = read {
            notes.push(Note::new(format!("logs/{name}"), why));
        }
    }
    if collected.left_out > 0 {
        let what = format!("{} more events are left out", collected.left_out);
        notes.push(Note::new("logs", what));
    }
    place_restarts(&mut collected.events);
    collected.events
}

/// Identifies an event: kind, step, rank, and its text if that matters.
type Key = (EventKind, Option<u64>, Option<usize>, String);

/// The events collected so far, from any rank.
#[derive(Default)]
struct CollectedEvents {
    events: Vec<Event>,
    known: HashSet<Key>,
    left_out: u64,
}

impl CollectedEvents {
    fn take(&mut self, event: Event) {
        // Replicas that differ end the run, with that as the ranks' error.
        let diverged = match event.kind {
            EventKind::Failure => sentences::diverged(&event.text),
            _ => None,
        };
        if let Some(rank) = diverged {
            self.take(Event {
                kind: EventKind::Divergence,
                rank,
                ..event.clone()
            });
        }
        if self.is_known(&event) {
            return;
        }
        if self.events.len() == MOST_EVENTS {
            self.left_out += 1;
            return;
        }
        if event.kind != EventKind::Restart {
            self.known.insert(key(&event, event.step));
        }
        self.events.push(event);
    }

    /// Whether another rank has logged the same event. Two may be a step apart when they lose a third.
    fn is_known(&self, event: &Event) -> bool {
        let steps = match (event.kind, event.step) {
            (EventKind::Loss | EventKind::Stall, Some(step)) => {
                vec![step.checked_sub(1), Some(step), step.checked_add(1)]
            }
            (_, step) => vec![step],
        };
        let mut keys = steps.into_iter().map(|step| key(event, step));
        keys.any(|key| self.known.contains(&key))
    }
}

fn key(event: &Event, step: Option<u64>) -> Key {
    use EventKind::{Divergence, Failure, Loss, Regroup, Stall};
    match event.kind {
        Loss | Stall | Divergence | Regroup => (event.kind, step, event.rank, String::new()),
        // A rank that logs its error twice may know the step only once.
        Failure => (event.kind, None, event.rank, event.text.clone()),
        _ => (event.kind, step, event.rank, event.text.clone()),
    }
}

/// The line that begins another process of a rank has neither time nor step: it is after the rank's loss.
fn place_restarts(events: &mut [Event]) {
    let mut losses: Vec<(usize, u64)> = Vec::new();
    for event in events.iter() {
        if let (EventKind::Loss, Some(rank), Some(step)) = (event.kind, event.rank, event.step) {
            losses.push((rank, step));
        }
    }
    losses.sort_by_key(|(_, step)| *step);
    for event in events {
        let is_its = |(rank, _): &(usize, u64)| {
            event.kind == EventKind::Restart && event.rank == Some(*rank)
        };
        if let Some(at) = losses.iter().position(is_its) {
            event.step = Some(losses.remove(at).1);
        }
    }
}

/// The logs and accounts of failures, with the ranks in their names.
fn names(folder: &Path, notes: &mut Vec<Note>) -> Vec<(String, usize)> {
    // A run on one rank may have no logs at all.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names
        .filter_map(|name| rank_of(&name).map(|rank| (name, rank)))
        .collect();
    names.sort_by_key(|(name, rank)| (*rank, name.clone()));
    if names.len() > MOST_FILES {
        names.truncate(MOST_FILES);
        let what = format!("it has more than {MOST_FILES} files: the others were not read");
        notes.push(Note::new("logs", what));
    }
    names
}

/// The rank of `rank-12.log`, `rank-12.error.json` and, of an earlier process, `rank-12.error.1.json`.
fn rank_of(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("rank-")?;
    let (number, ending) = rest.split_once('.')?;
    let known = ending == "log" || is_failure(name);
    number.parse().ok().filter(|_| known)
}

fn is_failure(name: &str) -> bool {
    name.contains(".error.") && name.ends_with(".json")
}

fn not_read(error: &std::io::Error) -> String {
    format!("it was not read: {}", super::why(error, "it is gone"))
}

fn failure(path: &Path) -> Result<Event, String> {
    let text = file::read_text(path, LONGEST_FAILURE).map_err(|error| not_read(&error))?;
    let failure: Failure =
        serde_json::from_str(&text).map_err(|error| format!("it is damaged: {error}"))?;
    // Causes and help are lines of their own in the log, too.
    let error = ["\n  because: ", "\nhelp: "]
        .into_iter()
        .fold(&*failure.message, |error, line| {
            error.split_once(line).map_or(error, |(error, _)| error)
        });
    let event = sentences::failure(error, failure.rank);
    Ok(Event {
        step: failure.step.or(event.step),
        unix_time_ms: failure.unix_time_ms,
        ..event
    })
}

fn log(path: &Path, rank: usize, collected: &mut CollectedEvents) -> Result<(), String> {
    let file = file::open(path).map_err(|error| not_read(&error))?;
    let read = || -> std::io::Result<bool> {
        let (ends, left_out) = lines::both_ends(file, PART)?;
        lines::each(ends, LONGEST_LINE, |_, line| {
            let (Line::Whole(bytes) | Line::Unfinished(bytes) | Line::TooLong(bytes)) = line;
            if let Some(event) = sentences::event(&String::from_utf8_lossy(bytes), rank) {
                collected.take(event);
            }
        })?;
        Ok(left_out)
    };
    match read() {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!(
            "only its first and last {} were searched for events",
            units::bytes(PART)
        )),
        Err(error) => Err(format!("it could be read in part only: {error}")),
    }
}
