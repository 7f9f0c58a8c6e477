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
mod tests {
    use everburn_train::checkpoint::{Checkpoint, Progress};

    use super::*;

    fn state(step: usize, weight: &str) -> StateHashes {
        StateHashes {
            step,
            loss: "00".to_owned(),
            tensors: [("fc.bias", "00"), ("fc.weight", weight)]
                .map(|(path, hash)| (path.to_owned(), hash.to_owned()))
                .into(),
            chain: None,
            signature: None,
        }
    }

    /// The lines of steps 1 to 4.
    fn written(key: Option<&Key>) -> Vec<String> {
        let mut link = ChainLink::default();
        let line = |step| {
            let mut state = state(step, "ff");
            link = state.link_after(link);
            state.chain = Some(link.to_string());
            state.signature = key.map(|key| link.sign(key));
            serde_json::to_string(&state).unwrap() + "\n"
        };
        (1..=4).map(line).collect()
    }

    fn read(text: &[u8], key: Option<&Key>) -> Result<Record, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hashes.jsonl"), text).unwrap();
        Record::read(folder.path(), key).map_err(|error| error.to_string())
    }

    #[test]
    fn a_change_of_any_byte_is_found_in_its_line() {
        let lines = written(None);
        let text = lines.concat().into_bytes();
        assert_eq!(read(&text, None).unwrap().ends(), (1, 4));
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            let line = 1 + text[..at].iter().filter(|byte| **byte == b'\n').count();
            let error = read(&changed, None).unwrap_err();
            assert!(error.contains(&format!("line {line}")), "{at}: {error}");
        }
    }

    #[test]
    fn lines_that_are_left_out_moved_or_cut_off_are_found() {
        let lines = written(None);
        let error = |order: &[usize]| {
            let text = order.iter().map(|step| lines[step - 1].as_str());
            read(text.collect::<String>().as_bytes(), None).unwrap_err()
        };
        let broken: [(&[usize], usize); 4] = [
            (&[1, 2, 4], 4),
            (&[2, 3, 4], 2),
            (&[1, 3, 2, 4], 3),
            (&[1, 2, 2, 3], 2),
        ];
        for (order, step) in broken {
            let found = error(order);
            assert!(found.contains(&format!("step {step} ")), "{found}");
            assert!(found.contains("breaks the chain"), "{found}");
        }
        let text = lines.concat();
        let cut = read(&text.as_bytes()[..text.len() - 5], None).unwrap_err();
        assert!(cut.contains("line 4, after step 3, has no end"), "{cut}");
    }

    #[test]
    fn a_record_that_ends_early_has_not_the_chain_of_a_checkpoint() {
        let lines = written(None);
        let whole = read(lines.concat().as_bytes(), None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointFolder::new(folder.path(), 2);
        let progress = Progress {
            epoch: 1,
            step: 3,
            chain: Some(whole.link_at(3).to_string()),
            ..Progress::default()
        };
        let files = [("scheduler.bpk".to_owned(), vec![1, 2, 3])].into();
        checkpoints.save(&Checkpoint { progress, files }).unwrap();
        let chains = CheckpointChain::all_in(&checkpoints).unwrap();
        whole.check_checkpoints(&chains).unwrap();
        let short = read(lines[..2].concat().as_bytes(), None).unwrap();
        let error = short.check_checkpoints(&chains).unwrap_err();
        assert!(error.to_string().contains("ends with step 2"), "{error}");
        let empty = read(&[], None).unwrap();
        let error = empty.check_checkpoints(&chains).unwrap_err();
        assert!(matches!(error, ToolError::Failed(_)), "{error}");
        let said = error.to_string();
        assert!(said.contains("which has no line: lines were"), "{said}");
    }

    #[test]
    fn a_record_without_a_line_is_no_finding() {
        let empty = read(&[], None).unwrap();
        let error = empty.check_checkpoints(&[]).unwrap_err();
        assert!(matches!(error, ToolError::Usage(_)), "{error}");
        let said = error.to_string();
        assert!(said.ends_with("has no line, so there is nothing to compare"));
        let before_the_first = CheckpointChain {
            place: Place::from(1),
            step: 1,
            chain: None,
        };
        let error = empty.check_checkpoints(&[before_the_first]).unwrap_err();
        assert!(matches!(error, ToolError::Usage(_)), "{error}");
    }

    #[test]
    fn signatures_are_checked_with_their_key() {
        let (key, other) = (Key::random().unwrap(), Key::random().unwrap());
        let signed = written(Some(&key)).concat().into_bytes();
        let shown = |key| read(&signed, key).map(|record| record.to_string());
        assert!(shown(Some(&key)).unwrap().contains("signed with this key"));
        assert!(shown(None).unwrap().contains("that --key checks"));
        assert!(shown(Some(&other)).unwrap_err().contains("another key"));
        let unsigned = written(None);
        let error = read(unsigned.concat().as_bytes(), Some(&key)).unwrap_err();
        assert!(error.contains("step 1 is not signed"), "{error}");
        // The run was resumed with a key.
        let both = [&unsigned[..3], &written(Some(&key))[3..]].concat();
        let partly = read(both.concat().as_bytes(), None).unwrap().to_string();
        assert!(partly.contains(", 1 of them with signatures"), "{partly}");
    }

    #[test]
    fn the_first_step_and_tensor_of_a_replay_that_differ_are_named_with_both_hashes() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hashes.jsonl"), written(None).concat()).unwrap();
        let record = Record::read(folder.path(), None).unwrap();
        let mut left = VecDeque::from(record.steps(2..=4));
        for step in [1, 2] {
            let same = record.compare(&mut left, &state(step, "ff"));
            assert_eq!(same.unwrap(), None);
        }
        assert_eq!(left, [3, 4]);
        let mut other = state(3, "fe");
        other.loss = "01".to_owned();
        let found = record.compare(&mut left, &other).unwrap().unwrap();
        let expected = "step 3: the loss is 00 in the record and 01 in the replay; `fc.weight` is ff in the record and fe \
                        in the replay";
        assert_eq!(found.to_string(), expected);
        let missing = record.compare(&mut VecDeque::from([2, 4]), &state(4, "ff"));
        assert_eq!(missing.unwrap().unwrap().step, 2);
    }
}
