//! `hashes.jsonl` of a run, whose lines are a chain.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use everburn_auth::{ChainLink, Key};
use everburn_record::file;
use everburn_record::lines::{self, Line};
use everburn_record::units::counted;
use everburn_train::StateHashes;
use everburn_train::checkpoint::{CheckpointFolder, Place};

use super::undone;
use crate::commands::verify::compare::Difference;
use crate::commands::{ToolError, failed};
use crate::legible;

/// The longest line that is read: one of some hundred thousand tensors.
const LONGEST_LINE: usize = 1 << 26;

/// A record of which each line was found to be what was written.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    /// The link of the chain after each step that has a line. A link is of the line, too, so that lines need not be kept.
    links: BTreeMap<usize, ChainLink>,
    /// How many lines are signed.
    signed: usize,
    /// Their signatures were checked.
    has_key: bool,
}

/// What a checkpoint has of the record.
#[derive(Debug)]
pub(super) struct CheckpointChain {
    pub(super) place: Place,
    pub(super) step: usize,
    /// The link of the newest line when it was written, if lines were written.
    chain: Option<String>,
}

impl CheckpointChain {
    /// Those of the checkpoints of a folder. Read them before the record, so that a run which continues meanwhile has written
    /// the lines of their steps.
    pub(super) fn all_in(folder: &CheckpointFolder) -> Result<Vec<Self>, ToolError> {
        let mut chains = Vec::new();
        for place in folder.places().map_err(undone)? {
            let Some(progress) = folder.progress(place) else {
                tracing::warn!("the checkpoint {place} cannot be read, and is not compared");
                continue;
            };
            let (step, chain) = (progress.step, progress.chain);
            chains.push(Self { place, step, chain });
        }
        Ok(chains)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.ends();
        let (lines, head) = (counted(self.links.len(), "line"), self.link_at(last));
        let signatures = match self.signed {
            0 => "not signed".to_owned(),
            all if all == self.links.len() && self.has_key => "signed with this key".to_owned(),
            all if all == self.links.len() => "with signatures that --key checks".to_owned(),
            some => format!("{some} of them with signatures that --key checks"),
        };
        write!(
            f,
            "{lines} of steps {first} to {last}, unchanged, {signatures}; chain {head}"
        )
    }
}

impl Record {
    /// The record of the run in a folder, after a check of each line, and of its signature if there is a key.
    pub(super) fn read(run: &Path, key: Option<&Key>) -> Result<Self, ToolError> {
        let path = run.join(StateHashes::FILE);
        let file = file::open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => ToolError::Usage(format!(
                "{} has no {}: only a run with --hash-every can be audited",
                run.display(),
                StateHashes::FILE
            )),
            _ => unread(&path, &error),
        })?;
        let mut record = Self {
            path,
            links: BTreeMap::new(),
            signed: 0,
            has_key: key.is_some(),
        };
        let mut checked = Ok(());
        let read = lines::each(file, LONGEST_LINE, |number, line| {
            if checked.is_ok() {
                checked = record.add(number, line, key);
            }
        });
        read.map_err(|error| unread(&record.path, &error))?;
        let path = record.path.display();
        checked.map_err(|what| failed(format!("{path}: {what}")))?;
        Ok(record)
    }

    fn add(&mut self, number: u64, line: Line<'_>, key: Option<&Key>) -> Result<(), String> {
        let (before, head) = match self.links.last_key_value() {
            Some((step, link)) => (*step, *link),
            None => (0, ChainLink::default()),
        };
        let wrong = |what: String| format!("line {number}, after step {before}, {what}");
        let text = match line {
            Line::Whole(text) => text,
            Line::Unfinished(_) => {
                return Err(wrong(
                    "has no end: it was cut off, or is being written".into(),
                ));
            }
            Line::TooLong(_) => return Err(wrong("is too long".into())),
        };
        let state = serde_json::from_slice::<StateHashes>(text);
        let state = state.map_err(|error| wrong(format!("is damaged: {error}")))?;
        let (step, link) = (state.step, state.link_after(head));
        let Some(chain) = &state.chain else {
            let version = "another version of Everburn wrote it, or it was changed";
            return Err(format!(
                "step {step} (line {number}) has no chain: {version}"
            ));
        };
        // What JSON leaves open is no part of a link.
        let is_as_written = serde_json::to_vec(&state).is_ok_and(|written| written == text);
        if !is_as_written || *chain != link.to_string() || step <= before {
            return Err(format!(
                "step {step} (line {number}) breaks the chain: the line was changed, or lines before it were left out or added"
            ));
        }
        match (key, &state.signature) {
            (Some(key), Some(signature)) if link.verify(signature, key).is_err() => {
                return Err(format!("step {step} is signed with another key"));
            }
            (Some(_), None) => return Err(format!("step {step} is not signed")),
            _ => self.signed += usize::from(state.signature.is_some()),
        }
        self.links.insert(step, link);
        Ok(())
    }

    /// The first and the last step that have a line.
    pub(super) fn ends(&self) -> (usize, usize) {
        let mut steps = self.links.keys().copied();
        let first = steps.next().unwrap_or(0);
        (first, steps.next_back().unwrap_or(first))
    }

    /// The steps of a range that have a line.
    pub(super) fn steps(&self, range: RangeInclusive<usize>) -> Vec<usize> {
        self.links.range(range).map(|(step, _)| *step).collect()
    }

    /// Whether a step has a line.
    pub(super) fn has(&self, step: usize) -> bool {
        self.links.contains_key(&step)
    }

    /// The link of the newest line when `step` had been made.
    fn link_at(&self, step: usize) -> ChainLink {
        let newest = self.links.range(..=step).next_back();
        newest.map(|(_, link)| *link).unwrap_or_default()
    }

    /// Checks that checkpoints were written when the record was as it is now: it is no shorter than it was. Without a line, as
    /// after a training that was killed before its first step, nothing can be compared, which is no finding.
    pub(super) fn check_checkpoints(&self, chains: &[CheckpointChain]) -> Result<(), ToolError> {
        let other = |one: &&CheckpointChain| {
            let chain = one.chain.as_ref();
            chain.is_some_and(|chain| *chain != self.link_at(one.step).to_string())
        };
        let path = self.path.display();
        let last = self.links.keys().next_back();
        let Some(CheckpointChain { place, step, .. }) = chains.iter().find(other) else {
            let nothing = || {
                undone(format!(
                    "{path} has no line, so there is nothing to compare"
                ))
            };
            return last.map(|_| ()).ok_or_else(nothing);
        };
        let end = match last {
            Some(last) => format!("ends with step {last}"),
            None => "has no line".to_owned(),
        };
        Err(failed(format!(
            "the checkpoint {place} has another chain after step {step} than {path}, which {end}: lines were left out, added or \
             changed since"
        )))
    }

    /// The line of a step, from the file once more.
    pub(super) fn line(&self, step: usize) -> Result<StateHashes, ToolError> {
        let mut found = None;
        let file = file::open(&self.path).map_err(|error| unread(&self.path, &error))?;
        let read = lines::each(file, LONGEST_LINE, |_, line| {
            if found.is_some() {
                return;
            }
            if let Line::Whole(text) = line {
                let state = serde_json::from_slice::<StateHashes>(text).ok();
                found = state.filter(|state| state.step == step);
            }
        });
        read.map_err(|error| unread(&self.path, &error))?;
        found.ok_or_else(|| failed(format!("{} was changed just now", self.path.display())))
    }

    /// How the next step of a replay differs from the recorded one, if it does. `left` are the steps that are to be compared
    /// from there on.
    pub(super) fn compare(
        &self,
        left: &mut VecDeque<usize>,
        replayed: &StateHashes,
    ) -> Result<Option<Difference>, ToolError> {
        let step = replayed.step;
        match left.front().copied() {
            Some(missing) if missing < step => {
                let what = "it is in the record, and not in the replay".to_owned();
                let step = missing as u64;
                return Ok(Some(Difference { step, what }));
            }
            Some(next) if next == step => left.pop_front(),
            // The run had lost the line.
            _ => return Ok(None),
        };
        let link = replayed.link_after(self.link_at(step.saturating_sub(1)));
        if self.links.get(&step) == Some(&link) {
            return Ok(None);
        }
        let (what, step) = (describe(&self.line(step)?, replayed), step as u64);
        Ok(Some(Difference { step, what }))
    }
}

fn unread(path: &Path, error: &io::Error) -> ToolError {
    undone(format!("reading {} failed: {error}", path.display()))
}

/// The loss, if that differs, and the first tensor that does.
fn describe(recorded: &StateHashes, replayed: &StateHashes) -> String {
    let in_both = |what: &str, recorded: &str, replayed: &str| {
        let (what, recorded) = (legible(what), legible(recorded));
        format!("{what} is {recorded} in the record and {replayed} in the replay")
    };
    let is_other = recorded.loss != replayed.loss;
    let loss = is_other.then(|| in_both("the loss", &recorded.loss, &replayed.loss));
    let mut pairs = recorded.tensors.iter().zip(&replayed.tensors);
    let tensor = pairs.find(|(theirs, ours)| theirs != ours);
    let tensor =
        tensor.map(|((path, theirs), (_, ours))| in_both(&format!("`{path}`"), theirs, ours));
    match loss.into_iter().chain(tensor).collect::<Vec<_>>() {
        none if none.is_empty() => "other tensors".to_owned(),
        parts => parts.join("; "),
    }
}

#[cfg(test)]
mod tests;
