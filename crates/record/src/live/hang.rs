//! What holds a run up, by its `live.json` and the processes of this machine.

use super::{Live, LiveRank, Phase};
use crate::{plain, proc, unix_time_ms};

/// After this many seconds without a word a rank is looked at; `live.json` is written about every second.
const SILENT_SECONDS: f64 = 5.0;

impl Live {
    /// The ranks whose processes run on `host` and are stopped there, as by SIGSTOP.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank};
    ///
    /// let rank = LiveRank { rank: 3, pid: Some(4711), host: Some("node7".into()), ..LiveRank::default() };
    /// let live = Live { ranks: vec![rank], ..Live::default() };
    /// assert_eq!(live.stopped_on("node7", |process| process == 4711), [3]);
    /// assert!(live.stopped_on("node8", |_| true).is_empty());
    /// ```
    #[must_use]
    pub fn stopped_on(&self, host: &str, is_stopped: impl Fn(u32) -> bool) -> Vec<usize> {
        let here = self
            .ranks
            .iter()
            .filter(|it| it.host.as_deref() == Some(host));
        let stopped = here.filter(|it| it.pid.is_some_and(&is_stopped));
        stopped.map(|it| it.rank).collect()
    }

    /// The same on this machine, now. None of a run that has ended.
    #[must_use]
    pub fn stopped_here(&self) -> Vec<usize> {
        let host = proc::host_name().filter(|_| self.phase != Phase::Ended);
        host.map_or_else(Vec::new, |host| self.stopped_on(&host, proc::is_stopped))
    }

    /// The number of the rank that writes the file.
    #[must_use]
    pub fn writer(&self) -> usize {
        self.members.iter().copied().min().unwrap_or(0)
    }

    /// What holds up a run that continues: ranks that are `stopped`, ranks without a word, and who waits. `None` where
    /// nothing does.
    ///
    /// ```
    /// use everburn_record::{Live, LiveRank, Phase};
    ///
    /// let rank = |rank, silent_seconds| LiveRank {
    ///     rank,
    ///     silent_seconds,
    ///     pid: Some(4710),
    ///     host: Some("node7".into()),
    ///     ..LiveRank::default()
    /// };
    /// let ranks = vec![rank(0, None), rank(1, Some(12.0))];
    /// let live = Live { unix_time_ms: 1_000, phase: Phase::Training, ranks, ..Live::default() };
    /// assert_eq!(
    ///     live.held_up(4_000, &[1]).unwrap(),
    ///     "rank 1 (process 4710 on node7) is stopped (SIGSTOP), no word for 15 s: kill -CONT 4710"
    /// );
    /// assert!(live.held_up(18_000, &[]).unwrap().starts_with("rank 0 (process 4710 on node7) gives no word for 17 s"));
    /// ```
    #[must_use]
    pub fn held_up(&self, now_ms: u64, stopped: &[usize]) -> Option<String> {
        if self.phase == Phase::Ended {
            return None;
        }
        // What is known of the ranks is as old as the file.
        let age = now_ms.saturating_sub(self.unix_time_ms) as f64 / 1e3;
        let silent = |it: &LiveRank| match (it.silent_seconds, it.rank == self.writer()) {
            (Some(seconds), _) => seconds + age,
            (None, true) => age,
            (None, false) => 0.0,
        };
        let is_stopped = |it: &LiveRank| stopped.contains(&it.rank);
        let held = |it: &&LiveRank| is_stopped(it) || silent(it) >= SILENT_SECONDS;
        let mut parts: Vec<String> = (self.ranks.iter().filter(held))
            .map(|it| of_rank(it, is_stopped(it), silent(it)))
            .collect();
        let store = self.store_silent_seconds.map(|seconds| seconds + age);
        parts.extend(store.map(|seconds| {
            format!(
                "the store of the job has not answered for {seconds:.0} s: look whether the launcher of machine 0, which \
                 serves it, is stopped"
            )
        }));
        let waits = self.ranks.iter().filter(|it| !held(it) && it.under_way);
        let waits = waits.filter_map(|it| Some((it, it.doing.as_deref()?)));
        let waits = waits.filter(|(_, doing)| doing.contains(", waiting for "));
        if !parts.is_empty() {
            let mut waits = waits.map(|(it, doing)| format!("rank {} is in {doing}", it.rank));
            parts.extend(waits.next().map(|first| match waits.count() {
                0 => first,
                more => format!("{first}, and {more} more wait"),
            }));
        }
        (!parts.is_empty()).then(|| plain::line(&parts.join("; "), 1500))
    }

    /// [What holds up](Self::held_up) the run in a folder that a process of this machine has.
    #[must_use]
    pub fn held_up_in(run: &std::path::Path) -> Option<String> {
        let live = Self::read(run).filter(|_| Self::has_owner(run))?;
        live.held_up(unix_time_ms(), &live.stopped_here())
    }
}

fn of_rank(it: &LiveRank, is_stopped: bool, seconds: f64) -> String {
    let process = match (it.pid, &it.host) {
        (Some(process), Some(host)) => format!(" (process {process} on {host})"),
        (Some(process), None) => format!(" (process {process})"),
        (None, _) => String::new(),
    };
    match (is_stopped, it.pid) {
        (true, Some(pid)) => format!(
            "rank {}{process} is stopped (SIGSTOP), no word for {seconds:.0} s: kill -CONT {pid}",
            it.rank
        ),
        _ => format!(
            "rank {}{process} gives no word for {seconds:.0} s: look whether it is stopped, and whether its machine runs",
            it.rank
        ),
    }
}
