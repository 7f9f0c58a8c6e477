//! A process of an elastic job: joins rounds and closes them.

mod admission;
mod closing;
mod wait_line;
mod waiting;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everburn_auth::Key;
use everburn_record::plain;

use self::closing::SLOTS;
use self::waiting::RoundWait;
use super::error::ElasticError;
use super::keys;
use super::member::{Generation, Member, PendingMembers};
use super::options::ElasticOptions;
use super::round::Round;
use super::round_view::RoundView;
use crate::rendezvous::join::{compare_elastic, first_verdict_key, refuse_contradiction};
use crate::rendezvous::{RendezvousRequest, StartedRank, WaitListener, reach_launchers_store};
use crate::runtime;
use crate::store::{SharedStore, StoreError, entry};
use crate::sync::lock;

/// The longest reason of a launcher in an error text.
pub(super) const LONGEST_REASON: usize = 1000;

/// The membership of this process in an elastic job.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use std::time::Duration;
/// use everburn::collectives::elastic::{ElasticOptions, Membership};
/// use everburn::collectives::store::HashStore;
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
    /// The last generation with this process as a member; 0 before the first.
    generation: u64,
    /// The newest generation that this process has read, and its bytes.
    known: Mutex<Option<(Generation, Vec<u8>)>>,
    /// Old generations whose keys are still to be deleted.
    undeleted: Mutex<Vec<u64>>,
    on_wait: WaitListener,
}

impl Membership {
    /// Connects to the launcher's store, or to one in etcd, without waiting for other ranks. `init_method` is `env://`; rank
    /// and world size are slot and [`ElasticOptions::max`]. The request's timeout is used for the groups.
    ///
    /// # Errors
    /// [`ElasticError::NoLauncherStore`] when rank 0 would have to host the store; an error for invalid
    /// options or environment; errors of the store.
    pub fn connect(
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
        own.compare_start()?;
        Ok(Self {
            key: reached.key,
            on_wait: request.on_wait,
            ..own
        })
    }

    /// Fails if the first rank at the store was started without `--elastic`, or with another range.
    pub(super) fn compare_start(&self) -> Result<(), ElasticError> {
        let options = &self.options;
        let me = StartedRank {
            machine: options.ranks_per_machine.map(|_| options.node),
            elastic: Some((options.min, options.max)),
            ..StartedRank::here(options.slot, options.max)
        };
        Ok(compare_elastic(&*self.store, &me)?)
    }

    /// A membership in the job whose processes share `store`. Groups listen on `local_address` and use
    /// `timeout`. Their secret is in the store: every client of the store can join them.
    ///
    /// # Errors
    /// [`ElasticError::Invalid`] when the options are invalid.
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
            known: Mutex::default(),
            undeleted: Mutex::default(),
            on_wait: WaitListener::default(),
        })
    }

    /// The job's store, which outlives all groups.
    #[must_use]
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// The options of this process.
    #[must_use]
    pub fn options(&self) -> &ElasticOptions {
        &self.options
    }

    /// Leaves the current generation and blocks until a round closes with this process as a member.
    /// `committed_step` is its last complete step, published to the others.
    ///
    /// # Errors
    /// [`ElasticError::Finished`] when the job is done; [`ElasticError::GivenUp`] and
    /// [`ElasticError::TooFew`] when it cannot continue; [`ElasticError::NotAdmitted`] when the current members have not joined
    /// the round within the groups' timeout, or within twelve of them if their heartbeats arrive; [`ElasticError::Expelled`]
    /// when a newer process has taken the slot.
    pub fn join(&mut self, committed_step: u64) -> Result<Round, ElasticError> {
        self.join_without(committed_step, None)
    }

    /// As [`join`](Self::join), but members on `silent_machine`, whose heartbeats have been missing for long enough, are
    /// not waited for ([`CollectiveError::silent_machine`](crate::group::CollectiveError::silent_machine)). They may
    /// join a later round.
    ///
    /// # Errors
    /// As of [`join`](Self::join).
    pub fn join_without(
        &mut self,
        committed_step: u64,
        silent_machine: Option<usize>,
    ) -> Result<Round, ElasticError> {
        let me = Member {
            slot: self.options.slot,
            incarnation: self.options.incarnation,
            committed_step,
            process: runtime::process_id(),
            node: self.options.node,
        };
        loop {
            let newest = self.newest().map_err(|e| self.failed(e))?;
            let newest = newest.map(|(newest, _)| newest);
            let number = 1 + newest.as_ref().map_or(0, |newest| newest.number);
            let outcome = self.take_part(&me, number, newest.as_ref(), silent_machine);
            if outcome.is_err() {
                // If this fails too, the launcher records that the process has ended.
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

    /// Whether a process has joined the next round, so that the current group should end and all members
    /// should [`join`](Self::join) again. One request if there is none. One rank should call this between
    /// two steps and broadcast the result, so that all leave after the same step.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn has_pending_members(&self) -> Result<bool, StoreError> {
        Ok(self.pending_members()?.is_some())
    }

    /// The same, with whether others are to be expected soon; `None` if no process has joined the next round. In a job that was
    /// given up nobody else is expected: its members end with the reason once they join.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be reached.
    pub fn pending_members(&self) -> Result<Option<PendingMembers>, StoreError> {
        let next = self.generation + 1;
        if self.generation == 0 {
            return Ok(None);
        }
        let wanted = [keys::waiting(next), keys::given_up()];
        let found = entry::values(&*self.store, &wanted)?;
        if found[1].is_some() {
            return Ok(Some(PendingMembers::Complete));
        }
        if found[0].is_none() {
            return Ok(None);
        }
        let Some((newest, _)) = self.newest()? else {
            return Ok(None);
        };
        if newest.number >= next {
            return Ok(Some(PendingMembers::Complete));
        }
        let view = RoundView::read(&*self.store, next, self.options.max)?;
        Ok(view.pending(&newest))
    }

    /// The newest generation and its bytes.
    fn newest(&self) -> Result<Option<(Generation, Vec<u8>)>, StoreError> {
        let known = lock(&self.known).take();
        let newest = Generation::newest(&*self.store, known)?;
        lock(&self.known).clone_from(&newest);
        Ok(newest)
    }

    /// Takes part in the round of generation `number`, which follows `before`, until it closes. `None`: the round is over
    /// already.
    fn take_part(
        &self,
        me: &Member,
        number: u64,
        before: Option<&Generation>,
        silent_machine: Option<usize>,
    ) -> Result<Option<Generation>, ElasticError> {
        let failed = |source| self.failed(source);
        let others_wait = self.refuse_if_over(me, number)?;
        let own = entry::written("join", me).map_err(failed)?;
        let store = &*self.store;
        store
            .set(&keys::joined(number, me.slot), &own)
            .map_err(failed)?;
        let waiting = keys::waiting(number);
        // Who counts waits for the others who count.
        let place = match self.options.max > SLOTS {
            true => usize::try_from(store.add(&waiting, 1).map_err(failed)?).ok(),
            false if others_wait => None,
            false => store.set(&waiting, b"1").map(|()| None).map_err(failed)?,
        };
        let mut wait = RoundWait::begin(runtime::now());
        let expected = before.map_or(self.options.max, |before| before.members.len());
        let turn = match place {
            Some(place) => Some(place).filter(|place| *place < expected),
            // By rank. The first ranks may be the lost ones, so nobody waits longer than the third.
            None => before
                .and_then(|before| before.rank_of(me))
                .map(|rank| (rank + 1).min(3)),
        };
        if let Some(turn) = turn.filter(|turn| *turn > 1) {
            // Others are still to come, and one looks already. Each look reads all slots.
            self.wait_for_close(turn, number).map_err(failed)?;
        }
        loop {
            let newest = self.newest().map_err(failed)?;
            let (newest, bytes) = newest.unzip();
            if let Some(newest) = newest.as_ref().filter(|newest| newest.number >= number) {
                return Ok((newest.number == number).then(|| newest.clone()));
            }
            self.refuse_if_over(me, number)?;
            let view = RoundView::read(store, number, self.options.max).map_err(failed)?;
            let mut assessment = view.assess(newest.as_ref(), silent_machine);
            assessment.locate(self.options.ranks_per_machine);
            let enough = assessment.present.len() >= self.options.min;
            let now = runtime::now();
            let patience_over = self.patience_is_over(number, &assessment, &mut wait, now);
            if enough && (assessment.complete || patience_over) {
                self.close(number, newest, bytes, assessment.present)
                    .map_err(failed)?;
                continue;
            }
            self.require_time_left(number, newest.as_ref(), &assessment, &mut wait, now)?;
            let earlier = assessment.present.iter();
            let turn = match place {
                Some(place) => place,
                // The members of a group that works close the round when they come to it.
                None if number > 1 && !assessment.broken => SLOTS,
                None => earlier.filter(|it| it.slot < me.slot).count() + 1,
            };
            self.wait_for_close(turn, number).map_err(failed)?;
        }
    }

    /// Fails if the job is over, this process was replaced, or a rank without `--elastic`, or of another range, has come to the first
    /// round. Otherwise returns whether a process has joined round `number`.
    fn refuse_if_over(&self, me: &Member, number: u64) -> Result<bool, ElasticError> {
        let wanted = [
            keys::waiting(number),
            keys::finished(),
            keys::given_up(),
            keys::incarnation(me.slot),
            keys::ended(me.slot),
            first_verdict_key(),
        ];
        let found = entry::values(&*self.store, &wanted).map_err(|error| self.failed(error))?;
        if found[1].is_some() {
            return Err(ElasticError::Finished);
        }
        // Before the launcher's words: it may give up because of that. Later the job continues without that rank.
        if let Some(verdict) = found[5].as_ref().filter(|_| number == 1) {
            refuse_contradiction(&*self.store, verdict)?;
        }
        if let Some(reason) = &found[2] {
            let reason = plain::line(&String::from_utf8_lossy(reason), LONGEST_REASON);
            return Err(ElasticError::GivenUp { reason });
        }
        let number = |place: usize| {
            let number = keys::number_in(&wanted[place], found[place].as_deref());
            number.map_err(|error| self.failed(error))
        };
        let (newest, ended) = (number(3)?, number(4)?);
        if newest > me.incarnation || ended >= me.incarnation {
            return Err(ElasticError::Expelled {
                slot: me.slot,
                incarnation: me.incarnation,
                newest,
                ended,
            });
        }
        Ok(found[0].is_some())
    }

    fn failed(&self, source: StoreError) -> ElasticError {
        ElasticError::Store {
            slot: self.options.slot,
            source,
        }
    }
}
