//! One process's part in an elastic job.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everburn_auth::Key;

use super::error::ElasticError;
use super::keys;
use super::member::{Generation, Member};
use super::options::ElasticOptions;
use super::round::Round;
use super::sight::{Assessment, Sight};
use crate::printable;
use crate::rendezvous::{RendezvousRequest, reach_launchers_store};
use crate::store::{SharedStore, StoreError};
use crate::sync::lock;

/// How long the first of those who wait sleeps before it looks again. The last to come closes the round
/// by itself, so this is the delay only where somebody has died meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// The longest such pause. The later one stands in the order of slots, the longer it sleeps, so that a
/// hundred who wait do not ask a hundred times as much; each can close the round all the same.
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// How many generations whose keys could not be deleted are tried again.
const MOST_UNTIDY: usize = 8;

/// The longest reason of a launcher that is shown.
pub(super) const LONGEST_REASON: usize = 1000;

/// One process's part in an elastic job.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use everburn_collectives::elastic::{ElasticOptions, Membership};
/// use everburn_collectives::store::HashStore;
///
/// let here = "127.0.0.1".parse()?;
/// let options = ElasticOptions::new((1, 1), 0, 1);
/// let store = Arc::new(HashStore::new());
/// let mut membership = Membership::over(store, here, Duration::from_secs(60), options)?;
/// let round = membership.join(0)?;
/// assert_eq!((round.generation, round.rank, round.world_size()), (1, 0, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Membership {
    store: SharedStore,
    local_address: IpAddr,
    timeout: Duration,
    options: ElasticOptions,
    /// The secret of the job, for its groups.
    key: Option<Key>,
    /// The generation that this process was in last; 0 before the first.
    generation: u64,
    /// Generations that are over and whose keys are to be deleted when a round closes.
    untidy: Mutex<Vec<u64>>,
}

impl Membership {
    /// Reaches the launcher's store, and waits for nobody else. `init_method` is `env://`; rank and world
    /// size are slot and [`ElasticOptions::max`]. The request's timeout goes on to the groups.
    ///
    /// # Errors
    /// [`ElasticError::NoLauncherStore`] when rank 0 would have to host the store; what is wrong with
    /// options or environment; what the store says.
    pub fn meet(
        init_method: &str,
        request: RendezvousRequest,
        options: ElasticOptions,
    ) -> Result<Self, ElasticError> {
        let slot = options.slot;
        if let Some(reason) = options.fault() {
            return Err(ElasticError::Invalid { slot, reason });
        }
        let request = RendezvousRequest {
            rank: Some(slot),
            world_size: Some(options.max),
            ..request
        };
        let reached = reach_launchers_store(init_method, &request)?;
        let Some(reached) = reached else {
            let init_method = init_method.to_owned();
            return Err(ElasticError::NoLauncherStore { init_method });
        };
        let own = Self::over(
            reached.store,
            reached.local_address,
            reached.timeout,
            options,
        )?;
        Ok(Self {
            key: reached.key,
            ..own
        })
    }

    /// A part in the job whose processes share `store`. Groups listen on `local_address` and have `timeout`.
    /// Their secret is in the store: everybody who can read that can join them.
    ///
    /// # Errors
    /// [`ElasticError::Invalid`] when the options make no sense.
    pub fn over(
        store: SharedStore,
        local_address: IpAddr,
        timeout: Duration,
        options: ElasticOptions,
    ) -> Result<Self, ElasticError> {
        let slot = options.slot;
        if let Some(reason) = options.fault() {
            return Err(ElasticError::Invalid { slot, reason });
        }
        Ok(Self {
            store,
            local_address,
            timeout,
            options,
            key: None,
            generation: 0,
            untidy: Mutex::default(),
        })
    }

    /// The job's store, which outlives all groups.
    #[must_use]
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// What this process knew before it joined.
    #[must_use]
    pub fn options(&self) -> &ElasticOptions {
        &self.options
    }

    /// Leaves the present generation and blocks until a round closes with this process in it.
    /// `committed_step` is the last step that it holds whole, for the others to see.
    ///
    /// # Errors
    /// [`ElasticError::Finished`] when there is nothing left to do; [`ElasticError::GivenUp`] and
    /// [`ElasticError::TooFew`] when there is no hope; [`ElasticError::NotLetIn`] when the present members
    /// take no notice; [`ElasticError::Expelled`] when a newer process has taken the slot.
    pub fn join(&mut self, committed_step: u64) -> Result<Round, ElasticError> {
        let me = Member {
            slot: self.options.slot,
            incarnation: self.options.incarnation,
            committed_step,
            process: std::process::id(),
            node: self.options.node,
        };
        loop {
            let newest = Generation::newest(&*self.store).map_err(|e| self.failed(e))?;
            let number = newest.map_or(0, |(newest, _)| newest.number) + 1;
            let outcome = self.attend(&me, number);
            if outcome.is_err() {
                // The error is what counts; if this fails too, the launcher says that we have ended.
                let _ = self.store.delete(&keys::joined(number, me.slot));
            }
            let Some(closed) = outcome? else {
                tracing::debug!("{me} came too late for generation {number}");
                continue;
            };
            if let Some(rank) = closed.rank_of(&me) {
                self.generation = number;
                return Ok(Round {
                    generation: number,
                    rank,
                    members: closed.members,
                    store: Arc::clone(&self.store),
                    local_address: self.local_address,
                    timeout: self.timeout,
                    key: self.key.clone(),
                });
            }
        }
    }

    /// Whether a process has joined the next round, so that the present group should end and all should
    /// [`join`](Self::join). One request where nobody has. Let one rank ask between two steps and tell
    /// the others, so that all leave after the same step.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn somebody_waits(&self) -> Result<bool, StoreError> {
        let next = self.generation + 1;
        if self.generation == 0 || !self.store.check(&[&keys::waiting(next)])? {
            return Ok(false);
        }
        let newest = Generation::newest(&*self.store)?;
        if newest.is_some_and(|(newest, _)| newest.number >= next) {
            return Ok(true);
        }
        // A newcomer may have died again.
        let sight = Sight::of(&*self.store, next, self.options.max)?;
        Ok(!sight.assess(None).present.is_empty())
    }

    /// Takes part in the round of generation `number` until it has closed. `None`: it is in the past.
    fn attend(&self, me: &Member, number: u64) -> Result<Option<Generation>, ElasticError> {
        let failed = |source| self.failed(source);
        self.refuse_if_over(me)?;
        let entry = keys::written(me).map_err(failed)?;
        let store = &*self.store;
        store
            .set(&keys::joined(number, me.slot), &entry)
            .map_err(failed)?;
        store.set(&keys::waiting(number), b"1").map_err(failed)?;
        let began = Instant::now();
        let mut broken_since = None;
        loop {
            self.refuse_if_over(me)?;
            let newest = Generation::newest(store).map_err(failed)?;
            let (newest, bytes) = newest.unzip();
            if let Some(newest) = newest.as_ref().filter(|newest| newest.number >= number) {
                return Ok((newest.number == number).then(|| newest.clone()));
            }
            let sight = Sight::of(store, number, self.options.max).map_err(failed)?;
            let assessment = sight.assess(newest.as_ref());
            if assessment.broken && broken_since.is_none() {
                broken_since = Some(Instant::now());
            }
            let enough = assessment.present.len() >= self.options.min;
            // All begin together if they can: nothing has been learnt yet that would be held up.
            let patience = match number {
                1 => self.options.wait_for_min.max(self.options.patience),
                _ => self.options.patience,
            };
            let patient = broken_since.is_some_and(|since| since.elapsed() >= patience);
            if enough && (assessment.complete || patient) {
                self.close(number, newest, bytes, assessment.present)
                    .map_err(failed)?;
                continue;
            }
            self.check_deadlines(number, &assessment, began, broken_since)?;
            self.wait_for_news(me, number, &assessment)
                .map_err(failed)?;
        }
    }

    /// Closes the round, unless another has done so already. Once it has closed, this process may be a
    /// member, and nothing that fails from then on takes that away.
    fn close(
        &self,
        number: u64,
        newest: Option<Generation>,
        newest_bytes: Option<Vec<u8>>,
        members: Vec<Member>,
    ) -> Result<(), StoreError> {
        let next = Generation {
            number,
            members,
            before: newest.map_or_else(Vec::new, |newest| newest.members),
        };
        let next = keys::written(&next)?;
        let expected = newest_bytes.unwrap_or_default();
        let there = self.store.compare_set(&keys::newest(), &expected, &next)?;
        if there != next {
            return Ok(());
        }
        if let Err(error) = self.store.set(&keys::closed(number), b"1") {
            // Those who wait look by themselves too.
            tracing::warn!("the others are not told that generation {number} has formed: {error}");
        }
        if let Some(old) = number.checked_sub(2).filter(|old| *old > 0) {
            self.tidy(old);
        }
        Ok(())
    }

    /// Deletes the keys of generation `old`, and those that could not be deleted earlier. What fails is
    /// tried again when this process closes the next round.
    fn tidy(&self, old: u64) {
        let mut untidy = lock(&self.untidy);
        untidy.push(old);
        untidy.retain(|old| {
            let forgotten = keys::forget(&self.store, *old, self.options.max);
            if let Err(error) = &forgotten {
                tracing::warn!("the keys of generation {old} stay in the store for now: {error}");
            }
            forgotten.is_err()
        });
        let excess = untidy.len().saturating_sub(MOST_UNTIDY);
        untidy.drain(..excess);
    }

    /// Fails when the job is over or this process is replaced.
    fn refuse_if_over(&self, me: &Member) -> Result<(), ElasticError> {
        let failed = |source| self.failed(source);
        let store = &*self.store;
        if store.check(&[&keys::finished()]).map_err(failed)? {
            return Err(ElasticError::Finished);
        }
        if let Some(reason) = store.try_get(&keys::given_up()).map_err(failed)? {
            let reason = printable(&String::from_utf8_lossy(&reason), LONGEST_REASON);
            return Err(ElasticError::GivenUp { reason });
        }
        let newest = keys::number(store, &keys::incarnation(me.slot)).map_err(failed)?;
        let ended = keys::number(store, &keys::ended(me.slot)).map_err(failed)?;
        if newest > me.incarnation || ended >= me.incarnation {
            return Err(ElasticError::Expelled {
                slot: me.slot,
                incarnation: me.incarnation,
                newest,
                ended,
            });
        }
        Ok(())
    }

    fn check_deadlines(
        &self,
        generation: u64,
        assessment: &Assessment,
        began: Instant,
        broken_since: Option<Instant>,
    ) -> Result<(), ElasticError> {
        let missing = || assessment.missing.clone();
        let waited = began.elapsed();
        let Some(broken_since) = broken_since else {
            if waited < self.timeout {
                return Ok(());
            }
            return Err(ElasticError::NotLetIn {
                slot: self.options.slot,
                generation,
                missing: missing(),
                waited,
            });
        };
        let joined = assessment.present.len();
        if joined >= self.options.min || broken_since.elapsed() < self.options.wait_for_min {
            return Ok(());
        }
        Err(ElasticError::TooFew {
            generation,
            joined,
            min: self.options.min,
            missing: missing(),
            waited,
        })
    }

    /// Waits until the round closes, or for a while.
    fn wait_for_news(
        &self,
        me: &Member,
        number: u64,
        assessment: &Assessment,
    ) -> Result<(), StoreError> {
        let earlier = assessment.present.iter().filter(|it| it.slot < me.slot);
        let turn = u32::try_from(earlier.count()).unwrap_or(u32::MAX);
        let pause = LOOK
            .saturating_mul(turn.saturating_add(1))
            .min(LONGEST_LOOK);
        match self.store.wait_within(&[&keys::closed(number)], pause) {
            Err(StoreError::Timeout { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    fn failed(&self, source: StoreError) -> ElasticError {
        ElasticError::Store {
            slot: self.options.slot,
            source,
        }
    }
}
