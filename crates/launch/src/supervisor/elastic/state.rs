//! The state of an elastic job on one machine: its ranks over all their processes, and their restarts.

use std::fs::File;
use std::time::{Duration, Instant};

use everburn_record::{ranks, units};

use crate::config::{ElasticLaunch, LaunchConfig};
use crate::exit::{EXIT_FAILS_AGAIN, EXIT_UNAVAILABLE, RankExit};
use crate::outcome::{EndedRank, Expulsion, Restart};
use crate::supervisor::stopped::StoppedRanks;
use crate::supervisor::store_client::StoreClient;
use crate::supervisor::story::Story;

/// The exit code for wrong arguments. A restarted rank would fail again.
pub(super) const EXIT_USAGE: i32 = 2;

/// A process that has run for this long, longer than the longest pause before its start, did not end by what had ended
/// the one before it.
const HAS_RUN_WELL: Duration = Duration::from_secs(60);

/// The next action for a rank that is not running.
pub(super) enum Next {
    /// Nothing: it runs, or it stays away.
    Nothing,
    /// It is started once its process has a number.
    Number,
    /// It is started after this.
    Pause(Instant),
}

/// The failures in a row of a rank.
#[derive(Default)]
pub(super) struct FailuresInARow {
    count: usize,
    /// When the current process was started.
    begun: Option<Instant>,
}

impl FailuresInARow {
    /// A process was started.
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// Counts the failure of the current process: how many are in a row with it.
    fn count(&mut self, now: Instant) -> usize {
        let ran = self.begun.map(|begun| now.duration_since(begun));
        if ran.is_some_and(|ran| ran >= HAS_RUN_WELL) {
            self.count = 0;
        }
        self.count += 1;
        self.count
    }
}

/// A rank of this machine, over all its processes.
pub(super) struct RankSlot {
    /// Its number over all machines.
    pub(super) rank: usize,
    /// For its first process.
    pub(super) log: Option<File>,
    pub(super) incarnation: u64,
    pub(super) restarts: usize,
    pub(super) failures: FailuresInARow,
    pub(super) next: Next,
    /// It will not be started again.
    pub(super) away: bool,
    /// How the current process was left out, if it was.
    pub(super) expelled: Option<Expulsion>,
}

/// The state of an elastic job on this machine.
pub(in crate::supervisor) struct Elastic {
    pub(super) limits: ElasticLaunch,
    pub(super) store_client: StoreClient,
    /// `None`: ranks may be stopped for as long as the others wait for them.
    pub(super) stopped: Option<StoppedRanks>,
    /// By local rank.
    pub(super) slots: Vec<RankSlot>,
    pub(super) story: Story,
}

impl Elastic {
    /// Requests a number for each rank; ranks start as their numbers come.
    pub(in crate::supervisor) fn new(
        limits: ElasticLaunch,
        store_client: StoreClient,
        first_rank: usize,
        logs: Vec<File>,
    ) -> Self {
        let slot = |(local_rank, log)| {
            store_client.number(local_rank);
            RankSlot {
                rank: first_rank + local_rank,
                log: Some(log),
                incarnation: 0,
                restarts: 0,
                failures: FailuresInARow::default(),
                next: Next::Number,
                away: false,
                expelled: None,
            }
        };
        let slots: Vec<RankSlot> = logs.into_iter().enumerate().map(slot).collect();
        let limit = limits.stopped_limit;
        Self {
            limits,
            stopped: limit.map(|limit| StoppedRanks::new(limit, slots.len())),
            slots,
            store_client,
            story: Story::default(),
        }
    }

    /// Has the launchers of the other machines stop the job, too; `by` says which launcher was asked, and how.
    pub(in crate::supervisor) fn request_stop(&self, by: String) {
        self.store_client.request_stop(by);
    }

    /// Whether some rank is yet to be started.
    pub(in crate::supervisor) fn will_start(&self) -> bool {
        let waits = |slot: &RankSlot| !matches!(slot.next, Next::Nothing);
        self.slots.iter().any(waits)
    }

    /// When the next pause ends.
    pub(in crate::supervisor) fn next_start(&self) -> Option<Instant> {
        let pauses = self.slots.iter().filter_map(|slot| match slot.next {
            Next::Pause(until) => Some(until),
            _ => None,
        });
        pauses.min()
    }

    pub(in crate::supervisor) fn next_look(&self) -> Option<Instant> {
        let looks = !self.story.finished && self.story.given_up.is_none();
        self.stopped
            .as_ref()
            .filter(|_| looks)
            .map(StoppedRanks::next_look)
    }

    /// Asks for numbers for those whose pause has ended.
    pub(in crate::supervisor) fn start_those_due(&mut self) {
        let now = Instant::now();
        for (local_rank, slot) in self.slots.iter_mut().enumerate() {
            if matches!(slot.next, Next::Pause(until) if until <= now) {
                slot.next = Next::Number;
                self.store_client.number(local_rank);
            }
        }
    }

    /// Starts nobody any more.
    pub(in crate::supervisor) fn cancel(&mut self) {
        for local_rank in 0..self.slots.len() {
            let slot = &mut self.slots[local_rank];
            if !matches!(slot.next, Next::Nothing) {
                slot.next = Next::Nothing;
                slot.away = true;
                let last = self.last_end(local_rank);
                self.story.cancelled.extend(last);
            }
        }
    }

    /// How the process of a rank ended before its last restart.
    pub(super) fn last_end(&self, local_rank: usize) -> Option<EndedRank> {
        let rank = self.slots[local_rank].rank;
        let ends = self.story.restarts.iter().map(|restart| &restart.ended);
        ends.rev().find(|ended| ended.rank == rank).cloned()
    }

    /// All processes that have ended and are not among the supervisor's.
    pub(in crate::supervisor) fn ends(&self) -> impl Iterator<Item = &EndedRank> {
        let restarted = self.story.restarts.iter().map(|restart| &restart.ended);
        restarted.chain(&self.story.away)
    }

    /// That too few ranks can ever be there, if that is so.
    pub(super) fn too_few(&self, config: &LaunchConfig) -> Option<String> {
        let here = self.slots.iter().filter(|slot| !slot.away).count();
        let elsewhere = config.world_size() - self.slots.len();
        let (possible, min) = (here + elsewhere, self.limits.min);
        let most = match possible {
            0 => "no rank".to_owned(),
            _ => format!("at most {}", units::counted(possible, "rank")),
        };
        (possible < min).then(|| format!("{most} can be there, and the job needs {min}"))
    }

    /// The same, with the ranks that are not started again.
    pub(super) fn hopeless(&self, config: &LaunchConfig) -> Option<String> {
        self.too_few(config).map(|too_few| {
            let mut away: Vec<usize> = self.story.away.iter().map(|ended| ended.rank).collect();
            away.sort_unstable();
            let (is, has) = match away.len() {
                1 => ("is", "has"),
                _ => ("are", "have"),
            };
            let waited = RankExit::Code(EXIT_UNAVAILABLE);
            let have_waited = self.story.away.iter().all(|ended| ended.exit == waited);
            let away = ranks(&away);
            if !have_waited {
                return format!("{too_few}: {away} {is} not started again");
            }
            // It is others that keep the job from continuing.
            let failures = self.story.away.iter().filter_map(EndedRank::failure);
            let missing = failures
                .filter_map(|failure| missing_in(&failure.message))
                .next();
            let missing = missing.unwrap_or("other ranks");
            format!("missing: {missing}, for which {away} {has} waited as long as allowed")
        })
    }

    /// The end of the process of a rank: the restart that follows, if one does.
    pub(super) fn next_restart(
        &mut self,
        local_rank: usize,
        ended: EndedRank,
    ) -> Result<&Restart, Box<EndedRank>> {
        let slot = &mut self.slots[local_rank];
        let final_codes = [EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_FAILS_AGAIN].map(RankExit::Code);
        if final_codes.contains(&ended.exit) || slot.restarts >= self.limits.max_restarts {
            slot.away = true;
            return Err(Box::new(ended));
        }
        slot.restarts += 1;
        let now = Instant::now();
        let after = self.limits.pause_before(slot.failures.count(now));
        slot.next = Next::Pause(now + after);
        self.story.restarts.push(Restart {
            ended,
            incarnation: slot.incarnation,
            expelled: slot.expelled,
            number: slot.restarts,
            of: self.limits.max_restarts,
            after,
        });
        Ok(self.story.restarts.last().expect("it was pushed just now"))
    }

    pub(in crate::supervisor) fn end(self) -> Story {
        self.store_client.close();
        self.story
    }
}

/// The slots that a rank has waited for in vain, in its own words.
fn missing_in(message: &str) -> Option<&str> {
    let (_, missing) = message.split_once("missing: ")?;
    let (missing, _) = missing.split_once("; look at ")?;
    Some(missing)
}

#[cfg(test)]
mod tests {
    use everburn_collectives::elastic::{ElasticError, MissingSlot, SlotState};

    use super::*;

    #[test]
    fn the_first_restart_is_immediate_and_so_is_that_after_a_process_that_has_run_well() {
        let limits = ElasticLaunch::new(1, 2);
        let mut failures = FailuresInARow::default();
        let mut now = Instant::now();
        let ran = [600, 5, 5, 5, 60, 59].map(Duration::from_secs);
        let pauses = ran.map(|ran| {
            failures.begin(now);
            now += ran;
            let pause = limits.pause_before(failures.count(now));
            now += pause;
            pause.as_secs()
        });
        assert_eq!(pauses, [0, 1, 2, 4, 0, 1]);
    }

    #[test]
    fn the_slots_that_a_rank_waited_for_are_found_in_its_error() {
        let missing = MissingSlot {
            slot: 1,
            machine: Some(1),
            incarnation: 1,
            state: SlotState::Silent,
        };
        let error = ElasticError::TooFew {
            generation: 2,
            joined: 1,
            min: 2,
            missing: vec![missing],
            waited: Duration::from_secs(60),
        };
        assert_eq!(
            missing_in(&error.to_string()),
            Some("slot 1 of machine 1 (no heartbeat from its process 1)")
        );
        assert_eq!(missing_in("out of disk"), None);
    }
}
