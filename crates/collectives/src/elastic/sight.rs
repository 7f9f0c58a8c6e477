//! What the store shows of a round, and what follows from it.

use super::error::{MissingSlot, SlotState};
use super::keys;
use super::member::{Generation, Member};
use crate::store::{Store, StoreError};

/// One slot as the store shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// Who has joined the round for it.
    pub(super) joined: Option<Member>,
    /// The newest process that its launcher has numbered; 0 for none.
    pub(super) incarnation: u64,
    /// The newest that has ended; 0 for none.
    pub(super) ended: u64,
}

impl Slot {
    /// Who has joined and lives.
    fn present(&self) -> Option<&Member> {
        self.joined
            .as_ref()
            .filter(|member| member.incarnation > self.ended)
    }

    /// Its last process has ended and no other is on its way.
    fn is_down(&self) -> bool {
        self.ended > 0 && self.ended >= self.incarnation
    }

    fn missing(&self, slot: usize) -> MissingSlot {
        MissingSlot {
            slot,
            incarnation: self.incarnation.max(self.ended),
            state: match self {
                _ if self.is_down() => SlotState::Ended,
                Self { incarnation: 0, .. } => SlotState::NotStarted,
                _ => SlotState::Silent,
            },
        }
    }
}

/// All slots at about one time. Each key is read by itself, so this is not one moment's state; that does
/// no harm, because a process that has ended stays ended, and closing compares with the generation before.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) slots: Vec<Slot>,
}

/// What follows for a round.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Assessment {
    /// Who has joined and lives, by slot.
    pub(super) present: Vec<Member>,
    /// All others.
    pub(super) missing: Vec<MissingSlot>,
    /// Nobody else is expected.
    pub(super) complete: bool,
    /// The present group, if there is one, is known to be broken.
    pub(super) broken: bool,
}

impl Sight {
    /// Looks at the round in which `generation` forms.
    pub(super) fn of(store: &dyn Store, generation: u64, slots: usize) -> Result<Self, StoreError> {
        let look = |slot| {
            let joined = joined_by(store, generation, slot)?;
            Ok(Slot {
                joined,
                incarnation: keys::number(store, &keys::incarnation(slot))?,
                ended: keys::number(store, &keys::ended(slot))?,
            })
        };
        let slots = (0..slots).map(look).collect::<Result<_, StoreError>>()?;
        Ok(Self { slots })
    }

    /// Who is there, and who is still expected after `newest`.
    pub(super) fn assess(&self, newest: Option<&Generation>) -> Assessment {
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
            false => survivors.iter().all(|member| has_come(member)),
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

/// Who has joined the round of `generation` for `slot`.
pub(super) fn joined_by(
    store: &dyn Store,
    generation: u64,
    slot: usize,
) -> Result<Option<Member>, StoreError> {
    let key = keys::joined(generation, slot);
    let Some(bytes) = store.try_get(&key)? else {
        return Ok(None);
    };
    let member: Member = keys::read(&key, &bytes)?;
    if member.slot != slot {
        return Err(keys::unreadable(&key, "it is of another slot"));
    }
    Ok(Some(member))
}
