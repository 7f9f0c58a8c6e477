//! A process waits for a round to close: for whom, for how long, and what it says of it.

use std::time::{Duration, Instant};

use everburn_record::units;

use super::Membership;
use super::admission::{Admission, HEARD};
use super::wait_line::wait_line;
use crate::elastic::error::ElasticError;
use crate::elastic::member::{Generation, Member};
use crate::elastic::round_view::Assessment;
use crate::heartbeat::last_beats;
use crate::wait_notice::WaitNotice;

/// The wait of a process for a round to close.
pub(super) struct RoundWait {
    began: Instant,
    /// Since when the group before it is known to be broken.
    broken_since: Option<Instant>,
    admission: Admission,
    notice: WaitNotice,
}

impl RoundWait {
    pub(super) fn begin(began: Instant) -> Self {
        Self {
            began,
            broken_since: None,
            admission: Admission::begin(began),
            notice: WaitNotice::new(),
        }
    }
}

impl Membership {
    /// How long members that do not come to round `number` are waited for.
    fn patience(&self, number: u64) -> Duration {
        let options = &self.options;
        match number {
            // No training waits, so missing slots get more time.
            1 => options.wait_for_min.max(options.patience),
            _ => options.patience,
        }
    }

    /// Whether the round closes at `now` without the members that are missing, if enough processes are there.
    pub(super) fn patience_is_over(
        &self,
        number: u64,
        assessment: &Assessment,
        wait: &mut RoundWait,
        now: Instant,
    ) -> bool {
        if assessment.broken {
            wait.broken_since.get_or_insert(now);
        }
        let since = wait.broken_since;
        since.is_some_and(|since| now.duration_since(since) >= self.patience(number))
    }

    /// Fails if by `now` the members of the group `newest`, which works, have not come in time, or too few processes after one
    /// that is broken. Else says now and then who is waited for.
    pub(super) fn require_time_left(
        &self,
        number: u64,
        newest: Option<&Generation>,
        assessment: &Assessment,
        wait: &mut RoundWait,
        now: Instant,
    ) -> Result<(), ElasticError> {
        match wait.broken_since {
            None => {
                let members = newest.map_or(&[][..], |newest| &newest.members);
                self.wait_for_admission(number, members, wait, now)
            }
            Some(since) => {
                let broken_for = now.duration_since(since);
                self.wait_for_others(number, broken_for, assessment, wait, now)
            }
        }
    }

    fn wait_for_admission(
        &self,
        number: u64,
        members: &[Member],
        wait: &mut RoundWait,
        now: Instant,
    ) -> Result<(), ElasticError> {
        let before = number.saturating_sub(1);
        let (timeout, admission) = (self.timeout, &mut wait.admission);
        let waited = now.duration_since(wait.began);
        if admission.is_due(now, timeout) {
            let slots = members.iter().take(HEARD).map(|member| member.slot);
            let beats = last_beats(&*self.store, before, slots);
            admission.look(now, beats.map_err(|error| self.failed(error))?);
        }
        let (step, left) = (admission.step(now, timeout), admission.left(now, timeout));
        if left.is_zero() {
            return Err(ElasticError::NotAdmitted {
                slot: self.options.slot,
                generation: number,
                members: members.iter().map(|member| member.slot).collect(),
                step,
                waited,
            });
        }
        if let Some(step) = step
            && wait.notice.is_due(waited)
        {
            tracing::info!(
                "waiting for the others ({}), who are at step {step}, to end a step, or a round of local steps; {} so far, at \
                 most {} more",
                units::counted(members.len(), "rank"),
                units::seconds(waited.as_secs_f64()),
                units::seconds(left.as_secs_f64())
            );
        }
        Ok(())
    }

    fn wait_for_others(
        &self,
        number: u64,
        broken_for: Duration,
        assessment: &Assessment,
        wait: &mut RoundWait,
        now: Instant,
    ) -> Result<(), ElasticError> {
        let (joined, min) = (assessment.present.len(), self.options.min);
        let waited = now.duration_since(wait.began);
        let limit = match joined >= min {
            true => self.patience(number),
            false => self.options.wait_for_min,
        };
        let left = limit.saturating_sub(broken_for);
        if joined < min && left.is_zero() {
            return Err(ElasticError::TooFew {
                generation: number,
                joined,
                min,
                missing: assessment.missing.clone(),
                waited,
            });
        }
        let slot = self.options.slot;
        let line = wait_line(&mut wait.notice, slot, waited, left, (assessment, min));
        if let Some(awaited) = line {
            self.on_wait.tell(&awaited.with_refused(&*self.store));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::elastic::options::ElasticOptions;
    use crate::store::{HashStore, SharedStore};

    const TIMEOUT: Duration = Duration::from_secs(100);

    /// After how many seconds a process gives up that waits for rank 0 of a group that works, and why. In each second the newest
    /// beat of rank 0 has the number that `beat` gives.
    fn gives_up(beat: impl Fn(u64) -> Option<u64>) -> (u64, String) {
        let store: SharedStore = Arc::new(HashStore::new());
        let here = "127.0.0.1".parse().unwrap();
        let options = ElasticOptions::new((1, 2), 1, 1);
        let newcomer = Membership::over(store.clone(), here, TIMEOUT, options).unwrap();
        let member = Member {
            slot: 0,
            incarnation: 1,
            committed_step: 0,
            process: 1,
            node: 0,
        };
        let group = Generation {
            number: 1,
            members: vec![member],
            lost: Vec::new(),
        };
        let looked = Assessment {
            present: Vec::new(),
            missing: Vec::new(),
            complete: false,
            broken: false,
        };
        let start = Instant::now();
        let mut wait = RoundWait::begin(start);
        for second in 1.. {
            if let Some(number) = beat(second) {
                let step = 10 * number;
                let beat =
                    format!(r#"{{"life":1,"number":{number},"generation":1,"step":{step}}}"#);
                store.set("watch/0", beat.as_bytes()).unwrap();
            }
            let now = start + Duration::from_secs(second);
            let left = newcomer.require_time_left(2, Some(&group), &looked, &mut wait, now);
            if let Err(error) = left {
                return (second, error.to_string());
            }
        }
        unreachable!("there is a deadline")
    }

    #[test]
    fn the_wait_for_a_group_without_heartbeats_takes_one_timeout() {
        let (after, error) = gives_up(|_| None);
        assert_eq!(after, 100);
        let begin = "the members of generation 1 have not admitted slot 1 within 1 min 40 s: none of them (slot 0) has joined";
        assert!(error.starts_with(begin), "{error}");
        assert!(error.contains("no heartbeat of them arrives"), "{error}");
        // One of long ago may be new to a process that has just come.
        assert_eq!(gives_up(|_| Some(1)).0, 125);
    }

    #[test]
    fn the_wait_for_a_group_whose_members_beat_takes_several_timeouts() {
        let (after, error) = gives_up(Some);
        assert_eq!(after, 1200);
        assert!(error.contains("they are at step 12000"), "{error}");
    }

    #[test]
    fn the_wait_for_a_group_that_beats_no_more_ends_a_timeout_later() {
        let (after, error) = gives_up(|second| Some(second.min(430)));
        assert_eq!(after, 550);
        assert!(error.contains("no heartbeat of them arrives"), "{error}");
    }
}
