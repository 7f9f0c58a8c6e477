//! Pipeline schedules as data, without a model: the order of each rank's actions, a simulation of their times and
//! memory, drawings, and where to split a model for the shortest step.
//!
//! # From a name to a picture
//! - A [`ScheduleKind`] (`gpipe`, `1f1b`, `interleaved`, `zb-h1`) becomes a [`Schedule`]: an ordered list of
//!   [`Action`]s per rank. Custom lists become one too, if they are complete and free of deadlocks
//!   ([`Schedule::from_actions`]).
//! - [`Schedule::receives`] and [`Schedule::sends`] give the [`Message`]s that an action waits for and produces. A rank
//!   that executes a schedule needs only its own list.
//! - [`simulate`] makes a [`Timeline`] of a schedule and its [`Costs`], or reports the [`Deadlock`]: which ranks wait
//!   for each other, and for what.
//! - [`Timeline::to_text`] and [`Timeline::to_svg`] draw it; [`Timeline::idle_share`] is its bubble, and
//!   [`theoretical_idle`] the bubble by the papers' formulas; [`Timeline::peak_live`] is what a rank keeps in memory.
//!   Measured times of a real step are drawn in the same way ([`Timeline::measured`]).
//!
//! # From blocks to a plan
//! - [`balance`] splits [`Block`]s, with measured or estimated times and bytes, into stages, within a [`MemoryLimit`]
//!   if there is one.
//! - [`stage_costs`] computes the [`Costs`] of the stages and of the [`Link`] between ranks; [`simulate`] then predicts
//!   the time of a step, and [`memory_of`] the memory of each rank.
//!
//! ```
//! # mod everburn { pub use everburn_schedules as schedules; }
//! use everburn::schedules::*;
//!
//! let blocks: Vec<Block> = (0..12)
//!     .map(|index| Block {
//!         parameter_bytes: 28 << 20,
//!         activation_bytes: 9 << 20,
//!         output_bytes: 3 << 20,
//!         ..Block::of_forward(format!("layers.{index}"), 0.010)
//!     })
//!     .collect();
//! let schedule = Schedule::new("1f1b".parse()?, 4, 8, 1)?;
//! let limit = MemoryLimit::of_schedule(&schedule, 1 << 30, OptimizerState::ADAM);
//! let cuts = balance(&blocks, schedule.stages(), Some(&limit))?;
//! let costs = stage_costs(&blocks, &cuts, Link { latency: 50e-6, bytes_per_second: 1e9 });
//!
//! let timeline = simulate(&schedule, &costs)?;
//! assert!(timeline.makespan() > 11.0 * 0.090 && timeline.makespan() < 11.0 * 0.100);
//! let memory = memory_of(&schedule, &costs, OptimizerState::ADAM)?;
//! assert_eq!(memory[0].total(), 4 * 3 * (28 << 20) + 4 * 3 * (9 << 20));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is deliberately absent
//! Tensors, processes, real messages, and schedules that depend on the clock: an order is fixed before the step, so
//! every rank has the orders of all ranks.

mod action;
mod balance;
mod block;
mod complete;
mod costs;
mod deadlock;
mod error;
mod kind;
mod live;
mod memory;
mod orders;
mod schedule;
mod simulation;
mod svg;
mod text;
mod theory;
mod timeline;

pub use action::{Action, Carried, Message, Pass};
pub use balance::{BalanceError, MAX_BLOCKS, balance, even_cuts};
pub use block::{Block, Link, stage_costs};
pub use costs::{Costs, Sends, StageCosts};
pub use deadlock::{Awaited, Deadlock, Wait};
pub use error::ScheduleError;
pub use kind::ScheduleKind;
pub use memory::{MemoryLimit, OptimizerState, RankMemory, memory_of};
pub use schedule::{MAX_ACTIONS, Schedule};
pub use simulation::{SimulationError, simulate};
pub use theory::theoretical_idle;
pub use timeline::{Span, Timeline, TimelineError};
