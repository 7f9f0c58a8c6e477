//! Ranks of this machine that were said to be stopped, until they continue.

use std::time::{Duration, Instant};

use super::stopped::Process;
use super::{Plan, Supervisor};
use crate::event::LaunchEvent;

/// The ranks that were said to be stopped, and have not continued.
#[derive(Debug, Default)]
pub(super) struct SaidStopped(Vec<Said>);

#[derive(Debug)]
struct Said {
    local_rank: usize,
    process: u32,
    since: Instant,
}

impl SaidStopped {
    /// It was said that the processes of `local_ranks` have been stopped since then.
    pub(super) fn note(
        &mut self,
        local_ranks: impl IntoIterator<Item = usize>,
        processes: &[Option<Process>],
        since: Instant,
    ) {
        for local_rank in local_ranks {
            let is_known = self.0.iter().any(|said| said.local_rank == local_rank);
            let process = processes.get(local_rank).copied().flatten();
            if let Some(process) = process.filter(|_| !is_known) {
                self.0.push(Said {
                    local_rank,
                    process: process.id,
                    since,
                });
            }
        }
    }

    /// The local ranks that have continued by `now`, each once, and how long the first of them was stopped. One that has ended
    /// has not.
    pub(super) fn continued(
        &mut self,
        now: Instant,
        processes: &[Option<Process>],
    ) -> (Vec<usize>, Duration) {
        let (mut continued, mut longest) = (Vec::new(), Duration::ZERO);
        self.0.retain(|said| {
            let process = processes.get(said.local_rank).copied().flatten();
            let Some(process) = process.filter(|process| process.id == said.process) else {
                return false;
            };
            if !process.is_stopped {
                continued.push(said.local_rank);
                longest = longest.max(now.saturating_duration_since(said.since));
            }
            process.is_stopped
        });
        continued.sort_unstable();
        (continued, longest)
    }
}

impl Supervisor<'_> {
    /// Says which ranks continue that were said to be stopped. While a job ends, its launcher continues them.
    pub(super) fn say_which_continue(&mut self, now: Instant, processes: &[Option<Process>]) {
        let (continued, lasted) = self.said_stopped.continued(now, processes);
        if continued.is_empty() || !matches!(self.plan, Plan::Train) {
            return;
        }
        let ranks = continued.iter().map(|rank| self.config.global_rank(*rank));
        let ranks: Vec<usize> = ranks.collect();
        let text = they_continue(&ranks, lasted);
        tracing::warn!("{text}");
        (self.tell)(&LaunchEvent::RanksContinued {
            ranks,
            lasted,
            text,
        });
    }
}

fn they_continue(ranks: &[usize], lasted: Duration) -> String {
    let (were, continues) = match ranks.len() {
        1 => ("was", "continues"),
        _ => ("were", "continue"),
    };
    format!(
        "{} {were} stopped (SIGSTOP, a debugger) for {:.0} s, and {continues}",
        everburn_record::ranks(ranks),
        lasted.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_said_to_be_stopped_and_continues_is_said_once() {
        let process = |id, is_stopped| Some(Process { id, is_stopped });
        let mut said = SaidStopped::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let stopped = [process(10, true), process(11, true), process(12, true)];
        said.note([0, 1, 2], &stopped, at(0));
        // Rank 1 is named once more, as when all others are stopped too.
        said.note([1], &stopped, at(9));
        let none = (Vec::new(), Duration::ZERO);
        assert_eq!(said.continued(at(11), &stopped), none);
        // Rank 2 has ended, and another process has its place.
        let now = [process(10, false), process(11, true), process(20, false)];
        let first = (vec![0], Duration::from_secs(12));
        assert_eq!(said.continued(at(12), &now), first);
        assert_eq!(said.continued(at(13), &now), none);
        let second = (vec![1], Duration::from_secs(25));
        let now = [None, process(11, false), None];
        assert_eq!(said.continued(at(25), &now), second);
        assert_eq!(said.continued(at(26), &now), none);
    }

    #[test]
    fn how_long_ranks_were_stopped_is_said() {
        let seconds = Duration::from_secs(25);
        let one = "rank 1 was stopped (SIGSTOP, a debugger) for 25 s, and continues";
        assert_eq!(they_continue(&[1], seconds), one);
        let several = "ranks 0, 1 were stopped (SIGSTOP, a debugger) for 25 s, and continue";
        assert_eq!(they_continue(&[0, 1], seconds), several);
    }
}
