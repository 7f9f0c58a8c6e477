//! What a rank's memory holds during a step, and how much of it there may be.

use serde::{Deserialize, Serialize};

use crate::{Block, Costs, Schedule, SimulationError};

/// What an optimizer keeps, in copies of the parameters.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::OptimizerState;
///
/// // Two moments.
/// assert_eq!(OptimizerState::ADAM.bytes(1000), 2000);
/// assert_eq!(OptimizerState::SGD.bytes(1000), 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerState {
    /// How many numbers it keeps for each parameter, of the parameter's type.
    pub copies: u32,
}

impl OptimizerState {
    /// SGD without momentum: nothing.
    pub const SGD: Self = Self { copies: 0 };

    /// SGD with momentum: one.
    pub const MOMENTUM: Self = Self { copies: 1 };

    /// Adam and AdamW: two.
    pub const ADAM: Self = Self { copies: 2 };

    /// How many bytes it keeps for parameters of `parameter_bytes`.
    #[must_use]
    pub const fn bytes(self, parameter_bytes: u64) -> u64 {
        parameter_bytes.saturating_mul(self.copies as u64)
    }
}

/// What one rank's memory holds, in bytes. Made by [`memory_of`].
///
/// Not included, because no formula has it: workspace of single operations, buffers of the exchange,
/// what an allocator keeps in reserve.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::RankMemory;
///
/// let memory = RankMemory { parameters: 10, gradients: 10, optimizer: 20, activations: 5 };
/// assert_eq!(memory.total(), 45);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankMemory {
    /// The parameters of the rank's stages.
    pub parameters: u64,
    /// Their gradients: as much as the parameters.
    pub gradients: u64,
    /// What the optimizer keeps: [`OptimizerState::copies`] times the parameters.
    pub optimizer: u64,
    /// The most that is kept for backward passes at once: [`Schedule::peak_activation_bytes`].
    pub activations: u64,
}

impl RankMemory {
    /// All together.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.parameters
            .saturating_add(self.gradients)
            .saturating_add(self.optimizer)
            .saturating_add(self.activations)
    }
}

/// What each rank's memory holds at most during a step of `schedule`, by rank: parameters, gradients and
/// the optimizer's state of its stages, and the activations that it keeps at once.
///
/// # Errors
/// [`SimulationError::OtherStages`] if `costs` are of another number of stages.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Costs, OptimizerState, Schedule, ScheduleKind, StageCosts, memory_of};
///
/// let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 8, 1)?;
/// let stage = StageCosts {
///     parameter_bytes: 100,
///     activation_bytes: 10,
///     ..StageCosts::of_forward(1.0)
/// };
/// let costs = Costs { stages: vec![stage; 2], ..Costs::equal(2) };
/// let ranks = memory_of(&schedule, &costs, OptimizerState::ADAM)?;
/// assert_eq!(ranks[0].total(), 100 + 100 + 200 + 2 * 10);
/// assert_eq!(ranks[1].total(), 100 + 100 + 200 + 1 * 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn memory_of(
    schedule: &Schedule,
    costs: &Costs,
    optimizer: OptimizerState,
) -> Result<Vec<RankMemory>, SimulationError> {
    costs.check_stages_of(schedule)?;
    let memory_of_rank = |rank| {
        let stages = schedule.stages_of(rank).map(|stage| &costs.stages[stage]);
        let parameters = stages.fold(0_u64, |sum, stage| {
            sum.saturating_add(stage.parameter_bytes)
        });
        RankMemory {
            parameters,
            gradients: parameters,
            optimizer: optimizer.bytes(parameters),
            activations: schedule.peak_activation_bytes(rank, costs),
        }
    };
    Ok((0..schedule.ranks()).map(memory_of_rank).collect())
}

/// How much memory each stage may take, and what it takes for a block.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Block, MemoryLimit, Schedule, ScheduleKind, OptimizerState};
///
/// let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 4, 8, 1)?;
/// let limit = MemoryLimit::of_schedule(&schedule, 8 << 30, OptimizerState::ADAM);
/// // The first rank keeps the activations of four micro-batches, the last one those of one.
/// assert_eq!(limit.live, [4, 3, 2, 1]);
/// let block = Block {
///     parameter_bytes: 100,
///     activation_bytes: 10,
///     ..Block::of_forward("layers.0", 0.01)
/// };
/// // Parameters, gradients, two moments; activations.
/// assert_eq!(limit.needed(0, &block), 4 * 100 + 4 * 10);
/// # Ok::<(), everburn_schedules::ScheduleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The most bytes that a stage may take.
    pub bytes: u64,
    /// How many micro-batches each stage keeps activations for, a number a stage.
    pub live: Vec<usize>,
    /// What the optimizer keeps.
    pub optimizer: OptimizerState,
}

impl MemoryLimit {
    /// The limit of `bytes_per_rank` for the stages of `schedule`.
    ///
    /// With several chunks each stage gets an equal part of its rank's bytes, and is taken to keep as
    /// many micro-batches as the rank keeps on average over its chunks, rounded up.
    #[must_use]
    pub fn of_schedule(
        schedule: &Schedule,
        bytes_per_rank: u64,
        optimizer: OptimizerState,
    ) -> Self {
        let chunks = schedule.chunks();
        let live = |stage| schedule.peak_live(schedule.rank_of(stage)).div_ceil(chunks);
        Self {
            bytes: bytes_per_rank / chunks as u64,
            live: (0..schedule.stages()).map(live).collect(),
            optimizer,
        }
    }

    /// What blocks with this many bytes of parameters, and of activations a micro-batch, take in `stage`:
    /// see [`Self::needed`].
    pub(crate) fn needed_for(&self, stage: usize, parameters: u128, activations: u128) -> u128 {
        let live = self.live.get(stage).copied().unwrap_or(0) as u128;
        let copies = u128::from(self.optimizer.copies) + 2;
        let parameters = parameters.saturating_mul(copies);
        parameters.saturating_add(activations.saturating_mul(live))
    }

    /// What `block` takes in `stage`, in bytes: parameters, gradients, the optimizer's state, and
    /// activations for as many micro-batches as the stage keeps.
    #[must_use]
    pub fn needed(&self, stage: usize, block: &Block) -> u64 {
        let (parameters, activations) = (block.parameter_bytes, block.activation_bytes);
        let needed = self.needed_for(stage, parameters.into(), activations.into());
        u64::try_from(needed).unwrap_or(u64::MAX)
    }
}
