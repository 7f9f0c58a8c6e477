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
    quick: QuickFailures,
}

/// The failures in a row of processes that had not run well.
#[derive(Default)]
struct QuickFailures {
    count: usize,
    /// When the first of the processes was started.
    since: Option<Instant>,
    /// From then to the last failure.
    within: Duration,
    /// How long the longest of the processes has run.
    longest: Duration,
}

impl FailuresInARow {
    /// A process was started.
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// Counts the failure of the current process: how many are in a row with it, and how long it has run.
    fn count(&mut self, now: Instant) -> (usize, Duration) {
        let begun = self.begun.unwrap_or(now);
        let ran = now.duration_since(begun);
        if ran >= HAS_RUN_WELL {
            (self.count, self.quick) = (0, QuickFailures::default());
        } else {
            let quick = &mut self.quick;
            quick.count += 1;
            quick.within = now.duration_since(*quick.since.get_or_insert(begun));
            quick.longest = quick.longest.max(ran);
        }
        self.count += 1;
        (self.count, ran)
    }

    /// How often and how quickly the rank has failed, after `it has`; `None` where it has not failed again and again.
    pub(super) fn crash_loop(&self) -> Option<String> {
        let quick = &self.quick;
        let seconds = |time: Duration| units::seconds(time.as_secs_f64());
        (quick.count > 1).then(|| {
            format!(
                "failed {} times in a row within {}, each time at most {} after its start",
                quick.count,
                seconds(quick.within),
                seconds(quick.longest)
            )
        })
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
    fn last_end(&self, local_rank: usize) -> Option<EndedRank> {
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
                let loops = self.crash_loop().unwrap_or_default();
                return format!("{too_few}: {away} {is} not started again{loops}");
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

    /// How often and how quickly the first rank has failed that is not started again after failures in a row.
    fn crash_loop(&self) -> Option<String> {
        let mut away = self.slots.iter().filter(|slot| slot.away);
        away.find_map(|slot| {
            let loops = slot.failures.crash_loop()?;
            Some(format!("; rank {} has {loops}", slot.rank))
        })
    }

    /// The end of the process of a rank: the restart that follows, if one does.
    pub(super) fn next_restart(
        &mut self,
        local_rank: usize,
        ended: EndedRank,
    ) -> Result<&Restart, Box<EndedRank>> {
        let slot = &mut self.slots[local_rank];
        let now = Instant::now();
        let (in_a_row, ran) = slot.failures.count(now);
        let final_codes = [EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_FAILS_AGAIN].map(RankExit::Code);
        if final_codes.contains(&ended.exit) || slot.restarts >= self.limits.max_restarts {
            slot.away = true;
            return Err(Box::new(ended));
        }
        slot.restarts += 1;
        let after = self.limits.pause_before(in_a_row, ran);
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

    /// The pauses after processes that have each run for `ran` seconds, and what is said of a rank that has no restarts then.
    fn pauses_after<const N: usize>(ran: [u64; N]) -> ([u64; N], Option<String>) {
        let limits = ElasticLaunch::new(1, 2);
        let mut failures = FailuresInARow::default();
        let mut now = Instant::now();
        let pauses = ran.map(|ran| {
            failures.begin(now);
            now += Duration::from_secs(ran);
            let (in_a_row, ran) = failures.count(now);
            let pause = limits.pause_before(in_a_row, ran);
            now += pause;
            pause.as_secs()
        });
        (pauses, failures.crash_loop())
    }

    #[test]
    fn the_first_restart_is_immediate_and_so_is_that_after_a_process_that_has_run_well() {
        let (pauses, loops) = pauses_after([600, 1, 1, 1, 60, 1, 25]);
        assert_eq!(pauses, [0, 9, 19, 29, 0, 9, 0]);
        let said = "failed 2 times in a row within 35 s, each time at most 25 s after its start";
        assert_eq!(loops.as_deref(), Some(said));
        assert_eq!(pauses_after([1, 60]).1, None);
        assert_eq!(pauses_after([60, 1]).1, None, "once says little");
    }

    #[test]
    fn a_rank_that_fails_at_once_again_and_again_has_restarts_for_half_a_minute() {
        let restarts = ElasticLaunch::new(1, 2).max_restarts;
        let (pauses, loops) = pauses_after([0; 4]);
        assert_eq!(pauses[..restarts].iter().sum::<u64>(), 30);
        let said = "failed 4 times in a row within 30 s, each time at most 0 s after its start";
        assert_eq!(loops.as_deref(), Some(said));
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
