//! The ranks whose reports of a hang are looked for.

use std::collections::BTreeMap;

use super::beat::{Beat, BeatEntry};
use super::thread::watchers_of;

/// The most ranks that are asked because another waits for them. A chain of waits is followed to its end.
const MOST_SUSPECTS: usize = 64;

/// How many other ranks are asked, evenly spread: a report names what they do, and the count of the rest.
const SAMPLE: usize = 16;

/// The ranks that are asked, in the order of their importance: those that this rank waits for, those that they wait
/// for, and so on; then a sample, the same on all ranks, and those that watch the first of them.
pub(super) struct Asked {
    pub(super) size: usize,
    pub(super) suspects: Vec<usize>,
    pub(super) sample: Vec<usize>,
}

impl Asked {
    pub(super) fn new(size: usize, own: &Beat, rank: usize) -> Self {
        let mut asked = Self {
            size,
            suspects: Vec::new(),
            sample: (0..SAMPLE.min(size))
                .map(|part| part * size / SAMPLE.min(size))
                .collect(),
        };
        asked.suspect(own);
        let watchers = asked.suspects.first().map(|it| watchers_of(*it, size));
        for watcher in watchers.unwrap_or_default() {
            if !asked.sample.contains(&watcher) {
                asked.sample.push(watcher);
            }
        }
        asked.suspects.retain(|suspect| *suspect != rank);
        asked.sample.retain(|sampled| *sampled != rank);
        asked
    }

    /// Also asks the ranks that the rank of `beat` waits for.
    pub(super) fn suspect(&mut self, beat: &Beat) {
        let of_records = beat.records.iter().flat_map(|entry| &entry.waiting_for);
        for rank in beat.waiting_for.iter().chain(of_records) {
            let is_new = *rank < self.size && !self.suspects.contains(rank);
            if is_new && self.suspects.len() < MOST_SUSPECTS {
                self.suspects.push(*rank);
            }
        }
    }

    /// Those without an answer, the suspects first.
    pub(super) fn missing(&self, answers: &BTreeMap<usize, BeatEntry>) -> Vec<usize> {
        let sample = self
            .sample
            .iter()
            .filter(|rank| !self.suspects.contains(rank));
        let all = self.suspects.iter().chain(sample);
        all.filter(|rank| !answers.contains_key(rank))
            .copied()
            .collect()
    }
}
