//! The schedule itself: a list of actions for each rank.

use serde::Serialize;

use crate::orders::{self, OrderConfig};
use crate::{
    Action, Carried, Costs, Message, Pass, ScheduleError, ScheduleKind, complete, simulation,
};

/// The most passes that a schedule may have, over all ranks. Real ones have thousands; the bound
/// keeps a slip of the keyboard from filling the memory.
pub const MAX_ACTIONS: usize = 1 << 20;

/// What every rank does in one step, in order.
///
/// A `Schedule` is whole (each micro-batch passes each stage forward and backward, once) and can be
/// worked through by ranks whose sends do not block: both constructors make sure of it.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Action, Schedule, ScheduleKind};
///
/// let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 3, 1)?;
/// let last = schedule.actions(1);
/// assert_eq!(last[0], Action::Forward { micro_batch: 0, stage: 1 });
/// assert_eq!(last[1], Action::Backward { micro_batch: 0, stage: 1 });
/// // What the first rank keeps for its backward passes: two micro-batches at most.
/// assert_eq!(schedule.peak_live(0), 2);
/// # Ok::<(), everburn_schedules::ScheduleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Schedule {
    kind: Option<ScheduleKind>,
    micro_batches: usize,
    chunks: usize,
    /// One list a rank.
    actions: Vec<Vec<Action>>,
}

impl Schedule {
    /// The schedule `kind` over `ranks` positions of a pipeline, with `chunks` stages on each.
    ///
    /// `chunks` is 1 for all kinds but [`ScheduleKind::Interleaved1F1B`].
    ///
    /// # Errors
    /// [`ScheduleError::Zero`], [`ScheduleError::NoChunks`] or [`ScheduleError::TooLarge`].
    pub fn new(
        kind: ScheduleKind,
        ranks: usize,
        micro_batches: usize,
        chunks: usize,
    ) -> Result<Self, ScheduleError> {
        check_size(ranks, micro_batches, chunks)?;
        if chunks > 1 && !kind.has_chunks() {
            return Err(ScheduleError::NoChunks { kind, chunks });
        }
        let list = |rank| {
            let config = OrderConfig {
                rank,
                ranks,
                micro_batches,
                chunks,
            };
            match kind {
                ScheduleKind::GPipe => orders::gpipe(&config),
                ScheduleKind::OneForwardOneBackward => orders::one_forward_one_backward(&config),
                ScheduleKind::Interleaved1F1B => orders::interleaved(&config),
                ScheduleKind::ZeroBubbleH1 => orders::zero_bubble_h1(&config),
            }
        };
        let actions = (0..ranks).map(list).collect();
        Ok(Self {
            kind: Some(kind),
            micro_batches,
            chunks,
            actions,
        })
    }

    /// A custom schedule: a list of actions for each rank.
    ///
    /// # Errors
    /// A [`ScheduleError`] that names the rank and the action, if a pass is missing, twice there or
    /// in another rank's list, or if the order cannot be worked through.
    ///
    /// ```
    /// # mod everburn { pub use everburn_schedules as schedules; }
    /// use everburn::schedules::{Action, Schedule};
    ///
    /// let forward = Action::Forward { micro_batch: 0, stage: 0 };
    /// let backward = Action::Backward { micro_batch: 0, stage: 0 };
    /// assert!(Schedule::from_actions(1, 1, vec![vec![forward, backward]]).is_ok());
    ///
    /// let error = Schedule::from_actions(1, 1, vec![vec![forward]]).unwrap_err();
    /// assert_eq!(error.to_string(), "rank 0 never executes the backward of micro-batch 0 in stage 0");
    /// ```
    pub fn from_actions(
        micro_batches: usize,
        chunks: usize,
        actions: Vec<Vec<Action>>,
    ) -> Result<Self, ScheduleError> {
        check_size(actions.len(), micro_batches, chunks)?;
        let schedule = Self {
            kind: None,
            micro_batches,
            chunks,
            actions,
        };
        complete::check(&schedule)?;
        simulation::check_order(&schedule)?;
        Ok(schedule)
    }

    /// The kind, unless the schedule is one's own.
    #[must_use]
    pub const fn kind(&self) -> Option<ScheduleKind> {
        self.kind
    }

    /// The name of the kind, or `custom`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind.map_or("custom", ScheduleKind::name)
    }

    /// How many positions the pipeline has.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.actions.len()
    }

    /// How many micro-batches a step has.
    #[must_use]
    pub const fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// How many stages each rank has.
    #[must_use]
    pub const fn chunks(&self) -> usize {
        self.chunks
    }

    /// How many stages the model is cut into.
    #[must_use]
    pub const fn stages(&self) -> usize {
        self.actions.len() * self.chunks
    }

    /// The rank that has `stage`.
    #[must_use]
    pub const fn rank_of(&self, stage: usize) -> usize {
        stage % self.actions.len()
    }

    /// The stages of `rank`, in the order in which a micro-batch passes them.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let ranks = self.ranks();
        (0..self.chunks).map(move |chunk| chunk * ranks + rank)
    }

    /// What `rank` does, in order. Empty if there is no such rank.
    #[must_use]
    pub fn actions(&self, rank: usize) -> &[Action] {
        self.actions.get(rank).map_or(&[], Vec::as_slice)
    }

    /// What must have come from another rank before `action` can start.
    ///
    /// `None` if it needs nothing: at the first stage forward, at the last one backward, for the
    /// gradients of weights, and between two stages on the same rank.
    #[must_use]
    pub fn receives(&self, action: Action) -> Option<Message> {
        let stage = action.stage();
        let (carried, from_stage) = match action.pass() {
            Pass::Forward => (Carried::Activation, stage.checked_sub(1)?),
            Pass::Backward | Pass::BackwardInput => (Carried::Gradient, stage + 1),
            Pass::BackwardWeight => return None,
        };
        self.message(carried, action.micro_batch(), from_stage, stage)
    }

    /// What leaves for another rank when `action` is done. `None` where nobody else needs it.
    #[must_use]
    pub fn sends(&self, action: Action) -> Option<Message> {
        let stage = action.stage();
        let (carried, to_stage) = match action.pass() {
            Pass::Forward => (Carried::Activation, stage + 1),
            Pass::Backward | Pass::BackwardInput => (Carried::Gradient, stage.checked_sub(1)?),
            Pass::BackwardWeight => return None,
        };
        self.message(carried, action.micro_batch(), stage, to_stage)
    }

    /// Every message that `rank` sends in a step, in the order in which it does.
    pub fn messages_from(&self, rank: usize) -> impl Iterator<Item = Message> {
        let actions = self.actions(rank).iter();
        actions.filter_map(|action| self.sends(*action))
    }

    /// How many bytes `rank` sends in a step:
    /// [`StageCosts::output_bytes`](crate::StageCosts::output_bytes) for each activation and for each
    /// gradient.
    ///
    /// Stages that `costs` do not have count nothing.
    #[must_use]
    pub fn sent_bytes(&self, rank: usize, costs: &Costs) -> u64 {
        let bytes = |message: Message| {
            let stage = costs.stages.get(message.cut());
            stage.map_or(0, |stage| stage.output_bytes)
        };
        self.messages_from(rank)
            .map(bytes)
            .fold(0, u64::saturating_add)
    }

    fn message(
        &self,
        carried: Carried,
        micro_batch: usize,
        from_stage: usize,
        to_stage: usize,
    ) -> Option<Message> {
        let (from_rank, to_rank) = (self.rank_of(from_stage), self.rank_of(to_stage));
        let exists = from_stage.max(to_stage) < self.stages();
        (exists && from_rank != to_rank).then_some(Message {
            carried,
            micro_batch,
            from_stage,
            to_stage,
            from_rank,
            to_rank,
        })
    }
}

fn check_size(ranks: usize, micro_batches: usize, chunks: usize) -> Result<(), ScheduleError> {
    let numbers = [
        ("rank", ranks),
        ("micro-batch", micro_batches),
        ("chunk", chunks),
    ];
    if let Some((of, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
        return Err(ScheduleError::Zero { of });
    }
    // Three passes at most: forward, backward for inputs, backward for weights.
    let passes = [ranks, micro_batches, chunks]
        .into_iter()
        .try_fold(3_usize, usize::checked_mul);
    if passes.is_none_or(|passes| passes > MAX_ACTIONS) {
        return Err(ScheduleError::TooLarge {
            ranks,
            micro_batches,
            chunks,
        });
    }
    Ok(())
}
