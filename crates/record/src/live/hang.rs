//! What holds a run up, by its `live.json` and the processes of this machine.

use std::path::Path;

use rustix::fs::StatVfsMountFlags;

use super::{Live, LiveRank, Phase, Waits};
use crate::{plain, proc, ranks, units, unix_time_ms};

const SILENT_SECONDS: f64 = Live::SILENT_MS as f64 / 1e3;

impl Live {
    /// After this many milliseconds without a word a rank counts as silent, and the file, which is written about every second,
    /// as out of date.
    pub const SILENT_MS: u64 = 5_000;

    /// The same, with which ranks' processes run on `host` and are stopped there, as by SIGSTOP.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank};
    ///
    /// let rank = LiveRank { rank: 3, pid: Some(4711), host: Some("node7".into()), ..LiveRank::default() };
    /// let live = Live { ranks: vec![rank], ..Live::default() };
    /// assert!(live.clone().seen_on("node7", |process| process == 4711).ranks[0].stopped);
    /// assert!(!live.seen_on("node8", |_| true).ranks[0].stopped);
    /// ```
    #[must_use]
    pub fn seen_on(mut self, host: &str, is_stopped: impl Fn(u32) -> bool) -> Self {
        for rank in &mut self.ranks {
            let is_here = rank.host.as_deref() == Some(host);
            rank.stopped = is_here && rank.pid.is_some_and(&is_stopped);
        }
        self
    }

    /// The same on this machine, now, with whether the folder `run` that it is of cannot be written. Of a run that has ended,
    /// there is nothing to see.
    #[must_use]
    pub fn seen_in(self, run: &Path) -> Self {
        let host = proc::host_name().filter(|_| self.phase != Phase::Ended);
        let Some(host) = host else {
            return self;
        };
        let live = self.seen_on(&host, proc::is_stopped);
        let unwritable = live.why_unwritable(run, unix_time_ms());
        Self { unwritable, ..live }
    }

    /// That the folder `run` cannot be written, where the file in it is too old for a run that continues, and its disk or the
    /// process that writes it shows that.
    fn why_unwritable(&self, run: &Path, now_ms: u64) -> Option<String> {
        let mut ranks = self.ranks.iter();
        let writer_is_stopped = ranks.any(|it| it.rank == self.writer() && it.stopped);
        if self.age_seconds(now_ms) < SILENT_SECONDS || writer_is_stopped {
            return None;
        }
        let disk = rustix::fs::statvfs(run).ok();
        let refusal = disk.and_then(|disk| refusal([disk.f_bavail, disk.f_blocks], disk.f_flag));
        match (refusal, self.unwritten_here(now_ms)) {
            (Some(why), _) => Some(format!("the folder of the run cannot be written: {why}")),
            (None, Some(_)) => Some("the folder of the run cannot be written".to_owned()),
            (None, None) => None,
        }
    }

    /// How old the file is, in seconds.
    fn age_seconds(&self, now_ms: u64) -> f64 {
        now_ms.saturating_sub(self.unix_time_ms) as f64 / 1e3
    }

    /// The same as it is at this time, while the run continues: what the file says of the ranks is as old as the file, and the
    /// rank that writes it has given no word since. A rank that is stopped, or that gives no word for 5 s, is not alive.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank, Phase};
    ///
    /// let rank = |rank, silent_seconds| LiveRank { rank, alive: true, silent_seconds, ..LiveRank::default() };
    /// let ranks = vec![rank(0, None), rank(1, Some(3.0)), rank(2, None)];
    /// let live = Live { unix_time_ms: 1_000, phase: Phase::Training, ranks, ..Live::default() };
    /// let later = live.as_of(3_500).ranks;
    /// assert_eq!([&later[0], &later[1], &later[2]].map(|it| it.silent_seconds), [Some(2.5), Some(5.5), None]);
    /// assert_eq!([&later[0], &later[1], &later[2]].map(|it| it.alive), [true, false, true]);
    /// ```
    pub fn as_of(&self, now_ms: u64) -> Self {
        let mut live = self.clone();
        if self.phase == Phase::Ended {
            return live;
        }
        let age = match self.unwritable {
            // The age of the file is not the silence of a rank.
            Some(_) => 0.0,
            None => self.age_seconds(now_ms),
        };
        for rank in &mut live.ranks {
            rank.silent_seconds = match rank.silent_seconds {
                Some(seconds) => Some(seconds + age),
                None => (rank.rank == self.writer()).then_some(age),
            };
            rank.alive &= !rank.is_held();
        }
        live.store_silent_seconds = self.store_silent_seconds.map(|seconds| seconds + age);
        live
    }

    /// The number of the rank that writes the file.
    pub fn writer(&self) -> usize {
        self.members.iter().copied().min().unwrap_or(0)
    }

    /// What holds up a run that continues: ranks that are stopped, ranks without a word, and who waits, where that is not older
    /// than a heartbeat. `None` where nothing does. Nobody waits for [ranks that are out](Self::out).
    pub fn held_up(&self, now_ms: u64) -> Option<String> {
        self.held_up_with(None, now_ms)
    }

    /// The same where the launcher that serves the store is stopped and has this process.
    fn held_up_with(&self, launcher: Option<u32>, now_ms: u64) -> Option<String> {
        if self.phase == Phase::Ended {
            return None;
        }
        let (live, out) = (self.as_of(now_ms), self.out());
        let members = live.ranks.iter().filter(|it| !out.contains(&it.rank));
        let (held, others): (Vec<&LiveRank>, Vec<&LiveRank>) = members.partition(|it| it.is_held());
        let mut parts: Vec<String> = held.into_iter().map(of_rank).collect();
        let store_silence = live.store_silent_seconds;
        let of_store = of_store(launcher, store_silence);
        // Who waits is known by heartbeats, which come through the store.
        let is_fresh = of_store.is_none() && self.age_seconds(now_ms) < SILENT_SECONDS;
        if let Some(of_store) = of_store {
            parts.push(of_store);
            parts.extend(self.still_moves(store_silence.unwrap_or(SILENT_SECONDS), now_ms));
        }
        let waiting = others.iter().filter(|it| !it.waiting_for.is_empty());
        let waiting: Vec<usize> = waiting.map(|it| it.rank).collect();
        if is_fresh && !parts.is_empty() && !waiting.is_empty() {
            let wait = if waiting.len() == 1 { "waits" } else { "wait" };
            parts.push(format!("{} {wait}", ranks(&waiting)));
        }
        (!parts.is_empty()).then(|| plain::line(&parts.join("; "), 1500))
    }

    /// That a training whose store is silent makes steps all the same, where one was finished within the last `seconds`.
    fn still_moves(&self, seconds: f64, now_ms: u64) -> Option<String> {
        let moved = self.moved_unix_ms.filter(|_| self.phase == Phase::Training);
        let ago = now_ms.saturating_sub(moved?) as f64 / 1e3;
        (ago < seconds).then(|| {
            format!(
                "the training continues meanwhile, its last step was {} ago",
                units::seconds(ago)
            )
        })
    }

    /// Who waits for whom of the ranks that take part, as of their last heartbeats. `None` where nobody waits.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank};
    ///
    /// let rank = |rank, waits_for: &[usize]| LiveRank { rank, waiting_for: waits_for.to_vec(), ..LiveRank::default() };
    /// let live = |members| Live { members, ranks: vec![rank(0, &[1]), rank(1, &[]), rank(2, &[1])], ..Live::default() };
    /// assert_eq!(live(vec![0, 1, 2]).waits().unwrap().to_string(), "ranks 0, 2 wait for rank 1");
    /// assert_eq!(live(vec![0, 1]).waits().unwrap().to_string(), "rank 0 waits for rank 1");
    /// ```
    pub fn waits(&self) -> Option<Waits> {
        let out = self.out();
        let members = self.ranks.iter().filter(|it| !out.contains(&it.rank));
        Waits::of(members.map(|it| (it.rank, it.waiting_for.as_slice())))
    }

    /// [What holds up](Self::held_up) the run in a folder that a process of this machine has.
    pub fn held_up_in(run: &Path) -> Option<String> {
        let live = Self::continuing_in(run)?;
        let owner = Self::owner(run).filter(|process| proc::is_stopped(*process));
        // A training without a launcher has the folder itself.
        let launcher = owner.filter(|process| live.ranks.iter().all(|it| it.pid != Some(*process)));
        live.held_up_with(launcher, unix_time_ms())
    }

    /// That the file of the run in a folder is not written any more, though the rank that writes it runs on this machine.
    pub fn unwritten_in(run: &Path) -> Option<String> {
        Self::continuing_in(run)?.unwritten_here(unix_time_ms())
    }

    /// The file in a folder that a process of this machine has, as [seen here](Self::seen_in).
    fn continuing_in(run: &Path) -> Option<Self> {
        let live = Self::read(run).filter(|_| Self::has_owner(run))?;
        Some(live.seen_in(run))
    }

    fn unwritten_here(&self, now_ms: u64) -> Option<String> {
        let runs = |process| !proc::has_ended(process) && !proc::is_stopped(process);
        self.unwritten(&proc::host_name()?, now_ms, runs)
    }

    /// That the file is too old for a run that continues, though the process of the rank that writes it `runs` on `host`: a rank
    /// that hangs still writes it, so the folder cannot be written. `None` where that is not so.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank, Phase};
    ///
    /// let rank = LiveRank { rank: 0, pid: Some(4711), host: Some("node7".into()), ..LiveRank::default() };
    /// let live = Live { unix_time_ms: 1_000, phase: Phase::Training, ranks: vec![rank], ..Live::default() };
    /// let text = live.unwritten("node7", 14_000, |process| process == 4711).unwrap();
    /// assert!(text.starts_with("live.json was not written for 13 s, and rank 0 (process 4711 on node7)"), "{text}");
    /// assert_eq!(live.unwritten("node7", 14_000, |_| false), None);
    /// assert_eq!(live.unwritten("node8", 14_000, |_| true), None);
    /// assert_eq!(live.unwritten("node7", 5_000, |_| true), None);
    /// ```
    pub fn unwritten(&self, host: &str, now_ms: u64, runs: impl Fn(u32) -> bool) -> Option<String> {
        let age = self.age_seconds(now_ms);
        if self.phase == Phase::Ended || age < SILENT_SECONDS {
            return None;
        }
        let writer = self.ranks.iter().find(|it| it.rank == self.writer())?;
        let is_here = writer.host.as_deref() == Some(host) && writer.pid.is_some_and(runs);
        is_here.then(|| {
            format!(
                "{} was not written for {age:.0} s, and rank {}{}, which writes it, runs: its folder cannot be written, and the \
                 state of the ranks is not known since",
                Self::FILE,
                writer.rank,
                process_of(writer)
            )
        })
    }
}

impl LiveRank {
    /// Its process, as far as that is known, and the machine of that.
    ///
    /// ```
    /// use everburn_record::LiveRank;
    ///
    /// let rank = LiveRank { pid: Some(4711), host: Some("node7".into()), ..LiveRank::default() };
    /// assert_eq!(rank.process().as_deref(), Some("process 4711 on node7"));
    /// assert_eq!(LiveRank::default().process(), None);
    /// ```
    pub fn process(&self) -> Option<String> {
        let process = self.pid?;
        Some(match &self.host {
            Some(host) => format!("process {process} on {host}"),
            None => format!("process {process}"),
        })
    }

    /// Whether it holds the others up: it is stopped, or gives no word.
    fn is_held(&self) -> bool {
        self.stopped || self.silent_seconds >= Some(SILENT_SECONDS)
    }
}

/// Why a disk with this many free blocks of all, mounted so, takes no file. One in a network may say that it has 0 of 0.
fn refusal(blocks: [u64; 2], flags: StatVfsMountFlags) -> Option<&'static str> {
    match blocks {
        _ if flags.contains(StatVfsMountFlags::RDONLY) => Some("it is mounted read-only"),
        [0, all] if all > 0 => Some("no space is left on its disk"),
        _ => None,
    }
}

/// What is said of a store that has been silent, and of the process of the launcher that is stopped.
fn of_store(launcher: Option<u32>, silent_seconds: Option<f64>) -> Option<String> {
    let Some(process) = launcher else {
        return silent_seconds.map(|seconds| {
            format!(
                "the store of the job has not answered for {seconds:.0} s: look whether the launcher of machine 0, which \
                 serves it, is stopped"
            )
        });
    };
    let silent = silent_seconds.map_or(String::new(), |seconds| {
        format!(", and its store has not answered for {seconds:.0} s")
    });
    Some(format!(
        "the launcher (process {process}) is stopped (SIGSTOP, Ctrl-Z){silent}: kill -CONT {process}, or `fg` in its terminal"
    ))
}

/// ` (process 4711 on node7)`
fn process_of(it: &LiveRank) -> String {
    let process = it.process();
    process.map_or(String::new(), |process| format!(" ({process})"))
}

fn of_rank(it: &LiveRank) -> String {
    let process = process_of(it);
    let (rank, seconds) = (it.rank, it.silent_seconds.unwrap_or_default());
    let silence = match seconds >= SILENT_SECONDS {
        true => format!(", no word for {seconds:.0} s"),
        false => String::new(),
    };
    let is_here = it.host.is_some() && it.host == proc::host_name();
    match (it.stopped, it.pid) {
        (true, Some(pid)) => {
            format!("rank {rank}{process} is stopped (SIGSTOP){silence}: kill -CONT {pid}")
        }
        (_, Some(pid)) if is_here && proc::has_ended(pid) => {
            format!("rank {rank}{process} has ended{silence}: read its log")
        }
        _ => format!(
            "rank {rank}{process} gives no word for {seconds:.0} s: look whether it is stopped, and whether its machine runs"
        ),
    }
}

#[cfg(test)]
mod tests;
