//! What a run is doing, in words.

use everburn_record::{Event, EventKind, Live, Phase, Waits, awaited_rank, located, ranks, units};

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
        let refused = wait.refused.as_ref().map_or(String::new(), |refused| {
            format!("; the store has refused {refused}")
        });
        Some(format!("waiting for {missing}, {left}{refused}"))
    }

    /// What a dashboard of metrics does not show: how a run has ended that is only monitored, for whom ranks wait, which are
    /// stopped and how they continue, which are in trouble, or which is slow.
    pub(crate) fn news(&self, monitors: bool) -> Option<String> {
        if monitors && !self.goes_on() {
            return Some(format!("the run: {}", self.doing()));
        }
        let continues = self.goes_on();
        let awaited = || continues.then(|| self.awaited()).flatten();
        let stopped = || continues.then(|| self.stopped_ranks()).flatten();
        awaited()
            .or_else(|| self.unwritable())
            .or_else(stopped)
            .or_else(|| self.trouble())
            .or_else(|| self.slow_rank())
    }

    /// Which rank the others wait for in their newest steps, where one is slow and the run makes steps.
    fn slow_rank(&self) -> Option<String> {
        if !self.goes_on() || self.silence().or(self.stall()).is_some() {
            return None;
        }
        let loads = self.ranks.loads();
        let (rank, part) = awaited_rank(&loads)?;
        let others = match loads.len() {
            2 => "the other waits",
            _ => "the others wait",
        };
        let part = units::percent(part, 0);
        Some(format!(
            "rank {rank} is slow: {others} {part} of the time for it"
        ))
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
            (Some(seconds), _) => return self.without_word(seconds),
            (None, Some(seconds)) => match self.cause_of_stall() {
                Some(cause) => format!("no step for {seconds:.0} s, {cause}"),
                None => format!("training, no step for {seconds:.0} s"),
            },
            (None, None) => {
                let phase = match self.starts_again() {
                    true => Phase::Starting,
                    false => self.live.phase,
                };
                let awaited = self.awaited().or_else(|| self.stopped_ranks());
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

    /// That the rank which writes of all has said nothing for this many seconds, and how it continues where it is stopped.
    fn without_word(&self, seconds: f64) -> String {
        let word = format!("no word from rank {} for {seconds:.0} s", self.writer);
        let mut stopped = self.ranks.stopped();
        match (stopped.next(), stopped.next()) {
            (None, _) => word,
            (Some((rank, process)), None) if rank == self.writer => {
                format!("{word}, stopped: kill -CONT {process}")
            }
            _ => format!("{word}, {}", self.stopped_ranks().unwrap_or_default()),
        }
    }

    /// Which ranks are stopped on the machine of the run's folder, with the command that continues all of them.
    pub(crate) fn stopped_ranks(&self) -> Option<String> {
        let (stopped, processes): (Vec<usize>, Vec<u32>) = self.ranks.stopped().unzip();
        let processes: Vec<String> = processes.iter().map(u32::to_string).collect();
        let command = format!("kill -CONT {}", processes.join(" "));
        (!stopped.is_empty()).then(|| format!("{} stopped: {command}", ranks(&stopped)))
    }

    /// Which ranks keep the others of a training waiting that makes no step, as far as that is known.
    fn cause_of_stall(&self) -> Option<String> {
        if let Some(stopped) = self.stopped_ranks() {
            return Some(stopped);
        }
        let all = self.ranks();
        let silent = all.iter().filter(|it| it.status == RankStatus::Silent);
        let silent: Vec<usize> = silent.map(|it| it.rank).collect();
        if !silent.is_empty() {
            return Some(format!("no heartbeat of {}", ranks(&silent)));
        }
        // As old as the store's last answer.
        if self.live.store_silent_seconds.is_some() {
            return None;
        }
        let waits = waits(&all)?;
        let process = |rank: usize| all.iter().find(|it| it.rank == rank)?.process.as_deref();
        Some(match waits.awaited.as_slice() {
            [] => waits.to_string(),
            [one] => {
                let process = process(*one).map_or(String::new(), |it| format!(" ({it})"));
                format!("waiting for rank {one}{process}")
            }
            several => format!("waiting for {}", ranks(several)),
        })
    }

    /// The ranks that keep the others waiting, where a run makes no step or a rank is silent. `None` where all is well.
    pub(crate) fn awaited_ranks(&self, all: &[RankState]) -> Option<Vec<usize>> {
        let is_silent = |it: &RankState| it.status == RankStatus::Silent;
        let is_held_up = self.silence().or(self.stall()).is_some() || all.iter().any(is_silent);
        is_held_up.then(|| waits(all).map_or_else(Vec::new, |waits| waits.awaited))
    }
}

/// Who waits for whom of the ranks that take part.
fn waits(all: &[RankState]) -> Option<Waits> {
    let members = all.iter().filter(|it| it.status != RankStatus::Lost);
    Waits::of(members.map(|it| (it.rank, it.waiting_for.as_slice())))
}
