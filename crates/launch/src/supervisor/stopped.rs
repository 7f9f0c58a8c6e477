//! Ranks of an elastic job whose processes are stopped.
//!
//! A rank that misses heartbeats may be stopped (SIGSTOP), or it may only wait for a core, and must not be lost for
//! that. The kernel has the answer: the process of the first is in state `T`, that of the second is runnable. So the launcher
//! looks at the processes of its ranks and ends one that stays stopped. Its connections break, the others notice at
//! once, and no heartbeat timeout need be short.

use std::time::{Duration, Instant};

use everburn_collectives::runtime;
use everburn_record::proc;

use crate::ranks::RunningRank;

/// How many times the launcher looks before a rank counts as stopped for long.
const LOOKS: u32 = 4;

/// Since when the ranks of this machine are stopped.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use std::time::{Duration, Instant};
/// use everburn::launch::simulation::{Process, StoppedRanks};
///
/// let mut ranks = StoppedRanks::new(Duration::from_secs(2), 1);
/// let runs = Process { id: 4711, is_stopped: false };
/// assert!(ranks.look(Instant::now(), &[Some(runs)]).is_empty());
/// ```
#[derive(Debug)]
pub struct StoppedRanks {
    /// For how long a rank may be.
    limit: Duration,
    last_look: Instant,
    /// By local rank: the process, and when it was first found stopped.
    since: Vec<Option<(u32, Instant)>>,
}

impl StoppedRanks {
    /// None is stopped; `limit` is for how long one may be.
    #[must_use]
    pub fn new(limit: Duration, ranks: usize) -> Self {
        Self {
            limit,
            last_look: runtime::now(),
            since: vec![None; ranks],
        }
    }

    fn interval(&self) -> Duration {
        (self.limit / LOOKS).max(Duration::from_millis(1))
    }

    /// When to look next.
    #[must_use]
    pub fn next_look(&self) -> Instant {
        self.last_look + self.interval()
    }

    /// Whether to look.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next_look()
    }

    /// The local ranks whose processes have been stopped for too long, `processes` by local rank.
    pub fn look(&mut self, now: Instant, processes: &[Option<Process>]) -> Vec<usize> {
        // The launcher was stopped itself, with its ranks perhaps: they have as long again.
        let was_stopped = now > self.last_look + self.limit;
        self.last_look = now;
        for (process, since) in processes.iter().zip(&mut self.since) {
            let stopped = process.filter(|process| process.is_stopped);
            *since = stopped.map(|process| match *since {
                Some((same, at)) if same == process.id && !was_stopped => (same, at),
                _ => (process.id, now),
            });
        }
        let alive = processes.iter().flatten().count();
        if alive > 1 && self.since.iter().flatten().count() == alive {
            // Somebody has stopped all ranks of this machine, and means to continue them.
            return Vec::new();
        }
        let long = |since: &Option<(u32, Instant)>| {
            since.is_some_and(|(_, at)| now.saturating_duration_since(at) >= self.limit)
        };
        let ranks = self.since.iter().enumerate();
        ranks
            .filter(|(_, since)| long(since))
            .map(|(rank, _)| rank)
            .collect()
    }
}

/// Which ranks of this machine have been stopped for long: all of them, or some while others run.
#[derive(Debug)]
pub(super) struct LongStopped {
    ranks: StoppedRanks,
    /// The local ranks that were found while others run, and are stopped still.
    found: Vec<usize>,
    all_since: Option<Instant>,
    /// That all are has been said.
    all_said: bool,
}

impl LongStopped {
    /// How often the launcher looks.
    const INTERVAL: Duration = Duration::from_secs(1);

    /// After this long it is said.
    pub(super) const LONG: Duration = Duration::from_secs(10);

    pub(super) fn new(ranks: usize) -> Self {
        Self {
            ranks: StoppedRanks::new(Self::LONG, ranks),
            found: Vec::new(),
            all_since: None,
            all_said: false,
        }
    }

    /// Whether to say that all have been stopped for so long, once each time.
    pub(super) fn is_to_be_said(&mut self, long: Duration) -> bool {
        long >= Self::LONG && !std::mem::replace(&mut self.all_said, true)
    }

    pub(super) fn next_look(&self) -> Instant {
        self.ranks.last_look + Self::INTERVAL
    }

    /// How long all have been stopped, if they are; and the local ranks that have come to be stopped for long while others
    /// run, each once for each time.
    pub(super) fn look(
        &mut self,
        now: Instant,
        processes: &[Option<Process>],
    ) -> (Option<Duration>, Vec<usize>) {
        // The launcher was stopped itself, with its ranks perhaps: they have as long again.
        let was_stopped = now > self.next_look() + Self::INTERVAL;
        let mut running = processes.iter().flatten().peekable();
        let all = running.peek().is_some() && running.all(|process| process.is_stopped);
        let before = self.all_since.filter(|_| !was_stopped);
        self.all_since = all.then(|| before.unwrap_or(now));
        self.all_said &= all;

        let mut found = self.ranks.look(now, processes);
        if all {
            found.clear();
        }
        let before = std::mem::replace(&mut self.found, found.clone());
        found.retain(|rank| !before.contains(rank));
        let long = self.all_since.map(|at| now.saturating_duration_since(at));
        (long, found)
    }
}

/// What is said where `ranks` of this machine, which have these processes, are stopped, and how they are continued.
pub(super) fn some_are_stopped(ranks: &[usize], processes: &[u32]) -> String {
    let ids: Vec<String> = processes.iter().map(u32::to_string).collect();
    let (are, them) = match ranks.len() {
        1 => ("is", "it"),
        _ => ("are", "them"),
    };
    format!(
        "{} {are} stopped (SIGSTOP, a debugger), and the others wait for {them}: `kill -CONT {}` on this machine continues {them}",
        everburn_record::ranks(ranks),
        ids.join(" ")
    )
}

/// What is said where all ranks of this machine are stopped, and how they are continued.
pub(super) fn all_are_stopped(processes: &[Option<Process>]) -> String {
    let ids = processes.iter().flatten();
    let ids: Vec<String> = ids.map(|process| process.id.to_string()).collect();
    format!(
        "all ranks of this machine are stopped (SIGSTOP, a debugger), and no step is made until they are continued: \
         `kill -CONT {}`",
        ids.join(" ")
    )
}

/// The process of a rank at one look.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::simulation::Process;
///
/// assert!(Process { id: 4711, is_stopped: true }.is_stopped);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Process {
    /// Its number on the machine.
    pub id: u32,
    /// Whether it is stopped.
    pub is_stopped: bool,
}

impl Process {
    pub(super) fn all(running: &[Option<RunningRank>]) -> Vec<Option<Self>> {
        let look = |rank: &RunningRank| Self {
            id: rank.process_id(),
            is_stopped: proc::is_stopped(rank.process_id()),
        };
        let looked = running.iter().map(|rank| rank.as_ref().map(look));
        looked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    /// What the looks find at these times, in tenths of a second after the start; `S` is a stopped process, `-` none.
    fn found(looks: &[(u64, &str)]) -> Vec<Vec<usize>> {
        let mut ranks = StoppedRanks::new(LIMIT, 3);
        let begin = ranks.last_look;
        let look = |(tenths, states): &(u64, &str)| {
            ranks.look(
                begin + Duration::from_millis(100 * tenths),
                &processes(states),
            )
        };
        looks.iter().map(look).collect()
    }

    fn processes(states: &str) -> Vec<Option<Process>> {
        let process = |(id, state)| Process {
            id: id as u32,
            is_stopped: state == 'S',
        };
        let states = states.chars().enumerate();
        let states = states.map(|(id, state)| (state != '-').then(|| process((id, state))));
        states.collect()
    }

    #[test]
    fn a_process_that_stays_stopped_is_found_and_one_that_continues_is_not() {
        let looks = [
            (5, "RSS"),
            (10, "RSR"),
            (15, "RSS"),
            (24, "RSS"),
            (25, "RSS"),
        ];
        assert_eq!(found(&looks), [vec![], vec![], vec![], vec![], vec![1]]);
    }

    #[test]
    fn ranks_that_are_all_stopped_are_left_alone_and_the_only_one_is_not() {
        let looks = [(5, "SSS"), (15, "SSS"), (25, "SSS"), (26, "SSR")];
        assert_eq!(found(&looks), [vec![], vec![], vec![], vec![0, 1]]);
        assert_eq!(found(&[(5, "S--"), (24, "S--"), (25, "S--")])[2], [0]);
    }

    #[test]
    fn for_how_long_all_ranks_are_stopped_is_known_and_said_once() {
        let mut all = LongStopped::new(2);
        let begin = all.ranks.last_look;
        let mut look = |seconds: u64, states: &str| {
            let now = begin + Duration::from_secs(seconds);
            let (long, _) = all.look(now, &processes(states));
            long.map(|long| long.as_secs())
        };
        for (at, states, long) in [
            (1, "SS", Some(0)),
            (2, "SR", None),
            (3, "SS", Some(0)),
            (4, "S-", Some(1)),
            (5, "SS", Some(2)),
            (6, "RR", None),
            (7, "SS", Some(0)),
        ] {
            assert_eq!(look(at, states), long, "{at}");
        }
        // After a gap in its looks it may have been stopped itself.
        assert_eq!(look(20, "SS"), Some(0));
        assert_eq!(look(21, "--"), None);
        let long = LongStopped::LONG;
        assert!(
            !all.is_to_be_said(long / 2) && all.is_to_be_said(long) && !all.is_to_be_said(long)
        );
    }

    #[test]
    fn a_rank_that_is_stopped_while_others_run_is_said_once_each_time() {
        let mut some = LongStopped::new(3);
        let begin = some.ranks.last_look;
        let mut look = |seconds: u64, states: &str| {
            let now = begin + Duration::from_secs(seconds);
            some.look(now, &processes(states)).1
        };
        let states = ["RSR", "RSR", "RSR", "RSS", "RRS", "RRS", "SSS", "SRR"];
        let found: Vec<_> = (0..).zip(states).map(|(at, it)| look(5 * at, it)).collect();
        let expected = [&[][..], &[], &[1], &[], &[], &[2], &[], &[]];
        assert_eq!(found, expected);
        assert_eq!([look(40, "SRR"), look(45, "SRR")], [vec![0], vec![]]);
        assert_eq!([look(50, "S--"), look(55, "R--")], [[0_usize; 0]; 2]);
    }

    #[test]
    fn how_ranks_that_are_stopped_are_continued_is_said_with_their_processes() {
        let text = some_are_stopped(&[1], &[12]);
        assert!(text.starts_with("rank 1 is stopped (SIGSTOP, "), "{text}");
        assert!(text.contains("`kill -CONT 12`"), "{text}");
        let text = some_are_stopped(&[1, 3], &[12, 14]);
        assert!(text.starts_with("ranks 1, 3 are stopped"), "{text}");
        assert!(text.contains("`kill -CONT 12 14`"), "{text}");
    }

    #[test]
    fn how_ranks_that_are_all_stopped_are_continued_is_said_with_their_processes() {
        let process = |id| Process {
            id,
            is_stopped: true,
        };
        let text = all_are_stopped(&[Some(process(12)), None, Some(process(14))]);
        assert!(text.ends_with("continued: `kill -CONT 12 14`"), "{text}");
    }

    #[test]
    fn a_launcher_that_was_stopped_itself_begins_anew() {
        let looks = [(5, "RSR"), (100, "RSR"), (110, "RSR"), (120, "RSR")];
        assert_eq!(found(&looks), [vec![], vec![], vec![], vec![1]]);
    }
}
