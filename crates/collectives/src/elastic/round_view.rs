//! The state of a round as read from the store, and its assessment.

use super::error::{MissingSlot, SlotState};
use super::keys;
use super::member::{Generation, Member, PendingMembers};
use crate::store::{Store, StoreError, entry};

/// One slot, as read from the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// The process that has joined the round.
    pub(super) joined: Option<Member>,
    /// The newest incarnation; 0 for none.
    pub(super) incarnation: u64,
    /// The newest incarnation that has ended; 0 for none.
    pub(super) ended: u64,
}

impl Slot {
    /// The process that has joined and has not ended.
    fn present(&self) -> Option<&Member> {
        self.joined
            .as_ref()
            .filter(|member| member.incarnation > self.ended)
    }

    /// Whether its last process has ended and no other was started.
    fn is_down(&self) -> bool {
        self.ended > 0 && self.ended >= self.incarnation
    }

    /// Whether its newest process has been started, and has neither joined nor ended.
    fn is_on_its_way(&self) -> bool {
        let joined = self.joined.as_ref().map_or(0, |member| member.incarnation);
        self.incarnation > self.ended.max(joined)
    }

    fn missing(&self, slot: usize) -> MissingSlot {
        MissingSlot {
            slot,
            machine: None,
            incarnation: self.incarnation.max(self.ended),
            state: match self {
                _ if self.is_down() => SlotState::Ended,
                Self { incarnation: 0, .. } => SlotState::NotStarted,
                _ => SlotState::Silent,
            },
        }
    }
}

/// All slots at about one time. Others may write between two keys, so this is no consistent snapshot. That is safe:
/// an ended process stays ended, and a round is closed by compare-and-set on the newest generation.
#[derive(Debug)]
pub(super) struct RoundView {
    pub(super) slots: Vec<Slot>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Assessment {
    /// The processes that have joined and have not ended, by slot.
    pub(super) present: Vec<Member>,
    /// All other slots.
    pub(super) missing: Vec<MissingSlot>,
    /// No other process is expected.
    pub(super) complete: bool,
    /// The current group, if any, is known to be broken.
    pub(super) broken: bool,
}

impl Assessment {
    /// Names the machines of the missing slots, where each machine has `per_machine` of them, in their order.
    pub(super) fn locate(&mut self, per_machine: Option<usize>) {
        for missing in &mut self.missing {
            missing.machine = per_machine.and_then(|ranks| missing.slot.checked_div(ranks));
        }
    }
}

impl RoundView {
    /// Reads the state of the round in which `generation` forms.
    pub(super) fn read(
        store: &dyn Store,
        generation: u64,
        slots: usize,
    ) -> Result<Self, StoreError> {
        let of_slot = |slot| {
            [
                keys::joined(generation, slot),
                keys::incarnation(slot),
                keys::ended(slot),
            ]
        };
        let keys: Vec<String> = (0..slots).flat_map(of_slot).collect();
        let values = entry::values(store, &keys)?;
        let mut read = Vec::with_capacity(slots);
        let of_slots = keys.chunks_exact(3).zip(values.chunks_exact(3));
        for (slot, (keys, values)) in of_slots.enumerate() {
            let value = |place: usize| values[place].as_deref();
            read.push(Slot {
                joined: joined_in(&keys[0], value(0), slot)?,
                incarnation: keys::number_in(&keys[1], value(1))?,
                ended: keys::number_in(&keys[2], value(2))?,
            });
        }
        Ok(Self { slots: read })
    }

    /// The processes that have joined the round that follows generation `newest`, if there are any: they may have ended.
    pub(super) fn pending(&self, newest: &Generation) -> Option<PendingMembers> {
        let mut present = self.slots.iter().filter_map(Slot::present).peekable();
        present.peek()?;
        // A process that was lost with its launcher before it has joined any round counts as on its way: only the age of its
        // number would show it, which the store does not have.
        let was_there = |slot: usize, incarnation: u64| {
            let mut known = newest.members.iter().chain(&newest.lost);
            known.any(|member| member.slot == slot && member.incarnation >= incarnation)
        };
        let mut slots = self.slots.iter().enumerate();
        let others_come = slots
            .any(|(number, slot)| slot.is_on_its_way() && !was_there(number, slot.incarnation));
        let is_broken = present.any(|member| newest.rank_of(member).is_some());
        Some(match others_come && !is_broken {
            true => PendingMembers::Incomplete,
            false => PendingMembers::Complete,
        })
    }

    /// Assesses the round that follows generation `newest`. Nobody of `silent_machine` is waited for.
    pub(super) fn assess(
        &self,
        newest: Option<&Generation>,
        silent_machine: Option<usize>,
    ) -> Assessment {
        let lives = |member: &&Member| {
            let slot = self.slots.get(member.slot);
            slot.is_some_and(|slot| {
                let replaced = slot
                    .present()
                    .is_some_and(|it| it.incarnation > member.incarnation);
                slot.ended < member.incarnation && !replaced
            })
        };
        let before = newest.map_or(&[][..], |newest| &newest.members);
        let survivors: Vec<&Member> = before.iter().filter(lives).collect();
        let has_come = |member: &Member| {
            let present = self.slots[member.slot].present();
            present.is_some_and(|it| it.is_same_process(member))
        };
        let everybody_came = match survivors.is_empty() {
            false => {
                let is_expected = |member: &Member| Some(member.node) != silent_machine;
                let mut expected = survivors.iter().filter(|member| is_expected(member));
                expected.all(|member| has_come(member))
            }
            true => self
                .slots
                .iter()
                .all(|slot| slot.is_down() || slot.present().is_some()),
        };
        let missing = self.slots.iter().enumerate();
        let missing = missing.filter(|(_, slot)| slot.present().is_none());
        Assessment {
            present: self
                .slots
                .iter()
                .filter_map(Slot::present)
                .cloned()
                .collect(),
            missing: missing.map(|(number, slot)| slot.missing(number)).collect(),
            complete: everybody_came,
            broken: survivors.is_empty() || survivors.iter().any(|member| has_come(member)),
        }
    }
}

/// The process of `slot` that has joined the round of `generation`.
pub(super) fn joined_by(
    store: &dyn Store,
    generation: u64,
    slot: usize,
) -> Result<Option<Member>, StoreError> {
    let key = keys::joined(generation, slot);
    joined_in(&key, store.try_get(&key)?.as_deref(), slot)
}

/// The process of `slot` that has joined a round, by the `value` of its `key`.
pub(super) fn joined_in(
    key: &str,
    value: Option<&[u8]>,
    slot: usize,
) -> Result<Option<Member>, StoreError> {
    let Some(bytes) = value else {
        return Ok(None);
    };
    let member: Member = entry::read(key, bytes)?;
    if member.slot != slot {
        return Err(entry::unreadable(key, "it is of another slot"));
    }
    Ok(Some(member))
}
