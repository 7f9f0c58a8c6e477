//! What a rank does with one micro-batch in one stage, and what passes between ranks for it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One piece of work of a rank: one pass of one micro-batch through one stage.
///
/// Stages are numbered over the whole model: the input enters stage 0, the loss is computed in the
/// last one. Chunk `c` of rank `r` of `p` is stage `c * p + r`.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Action, Pass};
///
/// let action = Action::BackwardInput { micro_batch: 3, stage: 1 };
/// assert_eq!((action.pass(), action.micro_batch(), action.stage()), (Pass::BackwardInput, 3, 1));
/// assert_eq!(action.to_string(), "backward for inputs of micro-batch 3 in stage 1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The forward pass; what the backward pass will need is kept from here on.
    Forward {
        /// The micro-batch, from 0.
        micro_batch: usize,
        /// The stage, from 0, over the whole model.
        stage: usize,
    },
    /// The whole backward pass: gradients of the stage's input and of its weights.
    Backward {
        /// The micro-batch, from 0.
        micro_batch: usize,
        /// The stage, from 0, over the whole model.
        stage: usize,
    },
    /// The part of the backward pass that the stage before waits for: gradients of the input.
    BackwardInput {
        /// The micro-batch, from 0.
        micro_batch: usize,
        /// The stage, from 0, over the whole model.
        stage: usize,
    },
    /// The part of the backward pass that nobody waits for: gradients of the weights.
    BackwardWeight {
        /// The micro-batch, from 0.
        micro_batch: usize,
        /// The stage, from 0, over the whole model.
        stage: usize,
    },
}

impl Action {
    /// Which pass this is.
    #[must_use]
    pub const fn pass(self) -> Pass {
        match self {
            Self::Forward { .. } => Pass::Forward,
            Self::Backward { .. } => Pass::Backward,
            Self::BackwardInput { .. } => Pass::BackwardInput,
            Self::BackwardWeight { .. } => Pass::BackwardWeight,
        }
    }

    /// The micro-batch, from 0.
    #[must_use]
    pub const fn micro_batch(self) -> usize {
        match self {
            Self::Forward { micro_batch, .. }
            | Self::Backward { micro_batch, .. }
            | Self::BackwardInput { micro_batch, .. }
            | Self::BackwardWeight { micro_batch, .. } => micro_batch,
        }
    }

    /// The stage, from 0, over the whole model.
    #[must_use]
    pub const fn stage(self) -> usize {
        match self {
            Self::Forward { stage, .. }
            | Self::Backward { stage, .. }
            | Self::BackwardInput { stage, .. }
            | Self::BackwardWeight { stage, .. } => stage,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pass, micro_batch, stage) = (self.pass(), self.micro_batch(), self.stage());
        write!(f, "{pass} of micro-batch {micro_batch} in stage {stage}")
    }
}

/// The kinds of [`Action`].
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::Pass;
///
/// assert_eq!(Pass::ALL.map(Pass::letter), ['F', 'B', 'B', 'W']);
/// assert_eq!(Pass::BackwardWeight.to_string(), "backward for weights");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// See [`Action::Forward`].
    Forward,
    /// See [`Action::Backward`].
    Backward,
    /// See [`Action::BackwardInput`].
    BackwardInput,
    /// See [`Action::BackwardWeight`].
    BackwardWeight,
}

impl Pass {
    /// Every pass.
    pub const ALL: [Self; 4] = [
        Self::Forward,
        Self::Backward,
        Self::BackwardInput,
        Self::BackwardWeight,
    ];

    /// The letter that drawings begin its boxes with. As in the papers, `B` is the backward pass
    /// that the stage before waits for, whether it is whole or not.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward | Self::BackwardInput => 'B',
            Self::BackwardWeight => 'W',
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::BackwardInput => "backward for inputs",
            Self::BackwardWeight => "backward for weights",
        })
    }
}

/// What passes from one rank to another between two stages.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Action, Carried, Schedule, ScheduleKind};
///
/// let schedule = Schedule::new(ScheduleKind::GPipe, 2, 4, 1)?;
/// let message = schedule.sends(Action::Forward { micro_batch: 1, stage: 0 }).expect("to rank 1");
/// assert_eq!((message.carried, message.from_rank, message.to_rank), (Carried::Activation, 0, 1));
/// assert_eq!(schedule.receives(Action::Forward { micro_batch: 1, stage: 1 }), Some(message));
/// assert_eq!(message.to_string(), "the activation of micro-batch 1 from stage 0 to stage 1");
/// # Ok::<(), everburn_schedules::ScheduleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Message {
    /// What it carries.
    pub carried: Carried,
    /// The micro-batch, from 0.
    pub micro_batch: usize,
    /// The stage that yields it.
    pub from_stage: usize,
    /// The stage that needs it, a neighbour of `from_stage`.
    pub to_stage: usize,
    /// The rank that sends it.
    pub from_rank: usize,
    /// The rank that receives it.
    pub to_rank: usize,
}

impl Message {
    /// A number that no other message of the same step between the same two ranks has, for the
    /// tag of a send and its receive.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        let direction = match self.carried {
            Carried::Activation => 0,
            Carried::Gradient => 1,
        };
        ((self.cut() as u64) << 33) | ((self.micro_batch as u64) << 1) | direction
    }

    /// The stage in front of the cut that it crosses, forward or back.
    #[must_use]
    pub const fn cut(&self) -> usize {
        match self.carried {
            Carried::Activation => self.from_stage,
            Carried::Gradient => self.to_stage,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            carried,
            micro_batch,
            from_stage,
            to_stage,
            ..
        } = self;
        write!(
            f,
            "the {carried} of micro-batch {micro_batch} from stage {from_stage} to stage {to_stage}"
        )
    }
}

/// Which tensor a [`Message`] carries.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::Carried;
///
/// assert_eq!(Carried::Gradient.to_string(), "gradient");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carried {
    /// The output of a stage, for the one after it.
    Activation,
    /// The gradient of a stage's input, for the one before it.
    Gradient,
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Activation => "activation",
            Self::Gradient => "gradient",
        })
    }
}
