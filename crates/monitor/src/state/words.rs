//! What a run is doing, in words.

use everburn_record::{Event, EventKind, Live, Phase, located, units};

use super::{RankState, RankStatus, RunState};

impl RunState {
    /// Which ranks are lost or silent, while the training continues; `None` if all are there.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let ranks = self.ranks();
        let of = |status: RankStatus| -> Vec<String> {
            let those = ranks.iter().filter(|rank| rank.status == status);
            those.map(|rank| rank.rank.to_string()).collect()
        };
        let (lost, silent) = (of(RankStatus::Lost), of(RankStatus::Silent));
        let there = ranks.len() - lost.len() - silent.len();
        let parts = [("lost", lost), ("silent", silent)];
        let parts = parts.iter().filter(|(_, ranks)| !ranks.is_empty());
        let parts: Vec<String> = parts
            .map(|(word, ranks)| format!("{word}: {}", ranks.join(", ")))
            .collect();
        let all = units::counted(ranks.len(), "rank");
        (!parts.is_empty()).then(|| format!("{there} of {all}, {}", parts.join(", ")))
    }

    fn last_sign(&self) -> String {
        let at = self.cut_off.as_ref().and_then(|event| event.unix_time_ms);
        let ago = self.now_ms.saturating_sub(at.unwrap_or(self.now_ms)) as f64 / 1e3;
        format!("cut off, last seen {} ago", units::clock(ago))
    }

    /// For whom the others wait, and how long they still do.
    pub(super) fn awaited(&self) -> Option<String> {
        let wait = self.wait()?;
        let missing = (0..self.planned_ranks).filter(|rank| !wait.joined.contains(rank));
        let missing: Vec<usize> = missing.collect();
        let left = units::left(wait.until_ms, self.now_ms);
        let missing = located(&missing, self.ranks_per_machine);
        Some(format!("waiting for {missing}, {left}"))
    }

    /// What a dashboard of metrics does not show: how a run has ended that is only monitored, for whom ranks wait, or which
    /// ranks are in trouble.
    pub(crate) fn news(&self, monitors: bool) -> Option<String> {
        if monitors && !self.goes_on() {
            return Some(format!("the run: {}", self.doing()));
        }
        let awaited = || self.goes_on().then(|| self.awaited()).flatten();
        awaited()
            .or_else(|| self.unwritable())
            .or_else(|| self.trouble())
    }

    /// That nothing is known of the run because its folder cannot be written.
    fn unwritable(&self) -> Option<String> {
        let (seconds, why) = (self.silence()?, self.live.unwritable.as_ref()?);
        Some(format!("{why}; {} is {seconds:.0} s old", Live::FILE))
    }

    /// What the run is doing, in words.
    #[must_use]
    pub fn doing(&self) -> String {
        if self.reached == Some(false) {
            return "not reached: trying again".to_string();
        }
        if !self.goes_on() {
            let failed = |event: &&Event| event.kind == EventKind::Failure;
            return match (&self.stopped, self.finished) {
                (Some(why), _) => format!("stopped {why}"),
                (None, true) => "finished".to_string(),
                (None, false) if self.cut_off.is_some() => self.last_sign(),
                (None, false) if self.events.iter().rev().take(3).any(|event| failed(&event)) => {
                    "failed".to_string()
                }
                (None, false) => "over, without an end".to_string(),
            };
        }
        if let Some(why) = self.unwritable() {
            return why;
        }
        let doing = match (self.silence(), self.stall()) {
            (Some(seconds), _) => {
                let word = format!("no word from rank {} for {seconds:.0} s", self.writer);
                let ranks = self.ranks();
                let writer = ranks.iter().find(|it| it.rank == self.writer);
                let help = writer.and_then(RankState::continued_by);
                return help.map_or(word.clone(), |help| format!("{word}, {help}"));
            }
            (None, Some(seconds)) => format!("training, no step for {seconds:.0} s"),
            (None, None) => {
                let phase = match self.starts_again() {
                    true => Phase::Starting,
                    false => self.live.phase,
                };
                let awaited = self.awaited();
                let awaited = awaited.map_or(String::new(), |awaited| format!(", {awaited}"));
                let wait = self.wait().filter(|_| phase == Phase::Starting);
                let joined = wait.map_or(String::new(), |wait| {
                    let all = units::counted(self.planned_ranks, "rank");
                    format!(", {} of {all} joined", wait.joined.len())
                });
                format!("{}{joined}{awaited}", phase.text())
            }
        };
        match self.live.store_silent_seconds {
            // What is shown of the ranks is as old.
            Some(seconds) => format!("{doing}, the store has not answered for {seconds:.0} s"),
            None => doing,
        }
    }
}
