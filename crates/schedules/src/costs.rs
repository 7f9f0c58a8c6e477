//! How long each pass takes, and how much it keeps.

use serde::{Deserialize, Serialize};

use crate::{Schedule, SimulationError};

/// The costs of one stage, for one micro-batch. Times are in seconds.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::StageCosts;
///
/// let costs = StageCosts { transfer: 0.002, ..StageCosts::of_forward(0.010) };
/// assert_eq!(costs.backward(), 0.020);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageCosts {
    /// The forward pass.
    pub forward: f64,
    /// The gradients of the stage's input.
    pub backward_input: f64,
    /// The gradients of the stage's weights.
    pub backward_weight: f64,
    /// What the output needs to the rank of the next stage, and the gradient of it back.
    pub transfer: f64,
    /// Bytes of the output, and of its gradient.
    pub output_bytes: u64,
    /// Bytes of the stage's parameters.
    pub parameter_bytes: u64,
    /// Bytes kept from the forward pass until the backward pass has ended.
    pub activation_bytes: u64,
    /// Bytes kept from the backward pass for inputs until that for weights, where the two are
    /// apart: inputs and output gradients of layers with weights.
    pub deferred_bytes: u64,
}

impl StageCosts {
    /// A backward pass twice as long as the forward pass, half of it for inputs, half for weights,
    /// as it is for matrix multiplications; no time for transfers, no memory.
    #[must_use]
    pub const fn of_forward(seconds: f64) -> Self {
        Self {
            forward: seconds,
            backward_input: seconds,
            backward_weight: seconds,
            transfer: 0.0,
            output_bytes: 0,
            parameter_bytes: 0,
            activation_bytes: 0,
            deferred_bytes: 0,
        }
    }

    /// The whole backward pass.
    #[must_use]
    pub fn backward(&self) -> f64 {
        self.backward_input + self.backward_weight
    }

    /// Both passes: how long a micro-batch keeps the stage busy.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.forward + self.backward()
    }

    /// The times by name, for messages.
    pub(crate) const fn times(&self) -> [(&'static str, f64); 4] {
        [
            ("forward", self.forward),
            ("backward_input", self.backward_input),
            ("backward_weight", self.backward_weight),
            ("transfer", self.transfer),
        ]
    }
}

/// What [`simulate`](crate::simulate) goes by: the costs of every stage.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Costs, Schedule, ScheduleKind, StageCosts, simulate};
///
/// let schedule = Schedule::new(ScheduleKind::GPipe, 2, 2, 1)?;
/// // The second stage is the slower one.
/// let stages = vec![StageCosts::of_forward(1.0), StageCosts::of_forward(2.0)];
/// let timeline = simulate(&schedule, &Costs { stages, ..Costs::equal(2) })?;
/// assert_eq!(timeline.makespan(), 1.0 + 2.0 * 6.0 + 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// One entry a stage, from the first to the last of the model.
    pub stages: Vec<StageCosts>,
    /// When a rank continues after a send.
    pub sends: Sends,
}

impl Costs {
    /// `stages` stages whose forward pass takes 1 s and whose backward pass takes 2 s, with
    /// transfers that take no time: what theory speaks of.
    #[must_use]
    pub fn equal(stages: usize) -> Self {
        Self {
            stages: vec![StageCosts::of_forward(1.0); stages],
            sends: Sends::Buffered,
        }
    }

    /// Refuses the costs of another number of stages.
    pub(crate) fn check_stages_of(&self, schedule: &Schedule) -> Result<(), SimulationError> {
        let (schedule, costs) = (schedule.stages(), self.stages.len());
        if schedule == costs {
            Ok(())
        } else {
            Err(SimulationError::OtherStages { schedule, costs })
        }
    }
}

/// When a rank continues after a send.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Costs, Schedule, ScheduleKind, Sends, simulate};
///
/// let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 2, 4, 1)?;
/// let buffered = Costs::equal(2);
/// assert!(simulate(&schedule, &buffered).is_ok());
/// // Both ranks would send to each other, and wait.
/// let blocking = Costs { sends: Sends::Blocking, ..Costs::equal(2) };
/// assert!(simulate(&schedule, &blocking).is_err());
/// # Ok::<(), everburn_schedules::ScheduleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sends {
    /// At once; the message travels while the rank works. Messages between the same two ranks, in
    /// the same direction, travel one after the other.
    #[default]
    Buffered,
    /// When the other rank has taken the message: a rendezvous, as of a send without a buffer. Most
    /// schedules end in a deadlock then.
    Blocking,
}
