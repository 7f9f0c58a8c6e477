//! The last operations of a group on one rank, as a flight recorder keeps them: what it was doing
//! when something went wrong.
//!
//! Written in each operation, so it costs little: the slots are there from the start, nothing is
//! formatted, and the lock is one that a collective takes anyway, to begin and to end its turn.

use std::fmt;
use std::time::{Duration, Instant};

use everburn_record::ranks;
use serde::{Deserialize, Serialize};

use super::core::OpContext;
use super::signature::Call;

/// How many operations of a group are kept: several steps of a small model, the buckets of one
/// step of a large one.
const SLOTS: usize = 32;

/// The value of a label that nobody has set.
pub(crate) const NO_LABEL: u32 = u32::MAX;

/// How far an operation has come.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::FlightState;
///
/// assert!(FlightState::Failed.is_over() && !FlightState::Queued.is_over());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlightState {
    /// Issued; those before it in its group are not finished.
    Queued,
    /// Under way.
    Running,
    /// Finished.
    Done,
    /// Ended with an error.
    Failed,
}

impl FlightState {
    /// Whether nothing more will happen.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// One operation in [`super::ProcessGroup::flight_record`].
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{FlightState, GroupOptions, ProcessGroup, ReduceOp};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// group.set_label(Some(3));
/// group.all_reduce(vec![1f32; 10], ReduceOp::Sum).wait()?;
/// let entry = &group.flight_record()[0];
/// assert_eq!((entry.state, entry.label, entry.bytes), (FlightState::Done, Some(3), Some(40)));
/// assert!(entry.to_string().starts_with("all_reduce(f32[10], sum) (collective 0, step 0, label 3)"));
/// # Ok::<(), everburn_collectives::group::CollectiveError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightEntry {
    /// Which group: the same number on all its ranks, and 1 for the group of all ranks.
    pub group: u64,
    /// What [`super::ProcessGroup::named`] calls the group.
    #[serde(default)]
    pub group_name: Option<String>,
    /// For a collective its number in the group; for a message how many collectives had been
    /// issued before.
    pub sequence: u64,
    /// Whether all ranks of the group take part, as in everything but sends and receives.
    pub collective: bool,
    /// The step that [`super::ProcessGroup::set_step`] had named.
    pub step: u64,
    /// The call, such as `all_reduce(f32[10], sum)`.
    pub operation: String,
    /// What [`super::ProcessGroup::set_label`] had said.
    pub label: Option<u32>,
    /// How many bytes this rank gives, where the call says so.
    pub bytes: Option<u64>,
    /// How far it has come.
    pub state: FlightState,
    /// The job ranks that it waits for, or waited for when it failed.
    pub waiting_for: Vec<usize>,
    /// How long ago it was issued or, once its turn came, began.
    pub began: Duration,
    /// How long ago it ended.
    pub ended: Option<Duration>,
}

impl FlightEntry {
    /// Whether it is under way and waits for another rank.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == FlightState::Running && !self.waiting_for.is_empty()
    }

    /// The same without the ranks that it waits for.
    pub(crate) fn without_waits(&self) -> Self {
        Self {
            waiting_for: Vec::new(),
            ..self.clone()
        }
    }

    /// Its number among the collectives of its group, each of which counts by itself.
    pub(crate) fn number(&self) -> String {
        let sequence = self.sequence;
        match (self.group, &self.group_name) {
            (super::WORLD, _) => format!("collective {sequence}"),
            (_, Some(name)) => format!("collective {sequence} of the {name} group"),
            (group, None) => format!("collective {sequence} of sub-group {:04x}", group & 0xffff),
        }
    }

    /// What was called, with the group's name if it has one.
    pub(crate) fn operation_of_group(&self) -> String {
        let name = self.group_name.as_ref();
        match name.filter(|_| self.group != super::WORLD) {
            Some(name) => format!("{} of the {name} group", self.operation),
            None => self.operation.clone(),
        }
    }

    /// The same entry, seen this much later.
    pub(crate) fn aged(&self, by: Duration) -> Self {
        Self {
            began: self.began + by,
            ended: self.ended.map(|ended| ended + by),
            ..self.clone()
        }
    }
}

impl fmt::Display for FlightEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.collective {
            true => "",
            false => "after ",
        };
        let (operation, number, step) = (&self.operation, self.number(), self.step);
        write!(f, "{operation} ({when}{number}, step {step}")?;
        if let Some(label) = self.label {
            write!(f, ", label {label}")?;
        }
        let began = self.began.as_secs_f64();
        match (self.state, self.ended) {
            (FlightState::Queued, _) => write!(f, "), queued for {began:.1} s")?,
            (FlightState::Running, _) => write!(f, "), under way for {began:.1} s")?,
            (state, ended) => {
                let how = match state {
                    FlightState::Failed => "failed",
                    _ => "done",
                };
                let ended = ended.unwrap_or_default();
                let took = self.began.saturating_sub(ended).as_secs_f64();
                let ago = ended.as_secs_f64();
                write!(f, "), {how} {ago:.1} s ago after {took:.1} s")?;
            }
        }
        if !self.waiting_for.is_empty() {
            let waits = if self.state.is_over() {
                "it waited"
            } else {
                "waiting"
            };
            write!(f, ", {waits} for {}", ranks(&self.waiting_for))?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// 0 if it has never been used.
    ticket: u64,
    record: Option<Record>,
    /// Whom it waited for when it failed.
    waiting_for: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    context: OpContext,
    label: u32,
    state: FlightState,
    ended: Option<Instant>,
}

impl Record {
    fn is_collective_under_way(&self) -> bool {
        self.state == FlightState::Running && matches!(self.context.call, Call::Collective(_))
    }
}

/// The slots of one group.
#[derive(Debug)]
pub(crate) struct FlightRecorder {
    slots: Vec<Slot>,
    next: u64,
}

impl Default for FlightRecorder {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            next: 1,
        }
    }
}

impl FlightRecorder {
    /// Notes an operation, in the place of the oldest but the collective that is under way, which
    /// matters more than any other. The ticket under which it is found again.
    pub(crate) fn begin(&mut self, context: OpContext, label: u32, state: FlightState) -> u64 {
        let mut ticket = self.next;
        let oldest = self.slot(ticket).record.as_ref();
        if oldest.is_some_and(Record::is_collective_under_way) {
            ticket += 1;
        }
        self.next = ticket + 1;
        let slot = self.slot(ticket);
        slot.ticket = ticket;
        slot.record = Some(Record {
            context,
            label,
            state,
            ended: None,
        });
        slot.waiting_for.clear();
        ticket
    }

    /// Notes that the turn of `context` has come; its ticket, a new one if that many were issued
    /// since that its slot was taken.
    pub(crate) fn run(&mut self, context: &OpContext, label: u32) -> u64 {
        let Some(slot) = self.find(context.ticket) else {
            return self.begin(*context, label, FlightState::Running);
        };
        if let Some(record) = &mut slot.record {
            record.context.started = context.started;
            record.state = FlightState::Running;
        }
        context.ticket
    }

    /// Notes how an operation ended, and for a failed one whom it waited for.
    pub(crate) fn end(&mut self, ticket: u64, failed: bool, waiting_for: &[usize]) {
        let Some(slot) = self.find(ticket) else {
            return;
        };
        if let Some(record) = slot
            .record
            .as_mut()
            .filter(|record| !record.state.is_over())
        {
            if failed {
                slot.waiting_for.extend_from_slice(waiting_for);
            }
            record.ended = Some(Instant::now());
            record.state = if failed {
                FlightState::Failed
            } else {
                FlightState::Done
            };
        }
    }

    /// The operations of a group, the oldest first. `group` is its number and its name; `members` are its job ranks, and
    /// `waiting_for` those that its collective under way waits for.
    pub(crate) fn entries(
        &self,
        (group, name): (u64, Option<&str>),
        members: &[usize],
        waiting_for: &[usize],
    ) -> Vec<FlightEntry> {
        let now = Instant::now();
        let mut used: Vec<&Slot> = self.slots.iter().filter(|slot| slot.ticket > 0).collect();
        used.sort_unstable_by_key(|slot| slot.ticket);
        let entry = |slot: &Slot| {
            let record = slot.record?;
            let context = &record.context;
            let peer = context.call.peer().and_then(|peer| members.get(peer));
            let waits = match (record.state, peer) {
                (FlightState::Queued | FlightState::Done, _) => Vec::new(),
                (_, Some(peer)) => vec![*peer],
                (FlightState::Running, None) => waiting_for.to_vec(),
                (FlightState::Failed, None) => slot.waiting_for.clone(),
            };
            Some(FlightEntry {
                group,
                group_name: name.map(str::to_owned),
                sequence: context.sequence,
                collective: matches!(context.call, Call::Collective(_)),
                step: context.step,
                operation: context.call.to_string(),
                label: (record.label != NO_LABEL).then_some(record.label),
                bytes: context.call.bytes(),
                state: record.state,
                waiting_for: waits,
                began: now.saturating_duration_since(context.started),
                ended: record.ended.map(|end| now.saturating_duration_since(end)),
            })
        };
        used.into_iter().filter_map(entry).collect()
    }

    /// The collective under way.
    pub(crate) fn running(&self) -> Option<OpContext> {
        let mut records = self.slots.iter().filter_map(|slot| slot.record.as_ref());
        let running = records.find(|record| record.is_collective_under_way())?;
        Some(running.context)
    }

    fn slot(&mut self, ticket: u64) -> &mut Slot {
        &mut self.slots[ticket as usize % SLOTS]
    }

    fn find(&mut self, ticket: u64) -> Option<&mut Slot> {
        Some(self.slot(ticket)).filter(|slot| slot.ticket == ticket && ticket > 0)
    }
}
