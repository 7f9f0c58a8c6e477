//! Pipeline parallelism: each rank holds some blocks of a model, and micro-batches pass through them.
//!
//! - [`Stages`] assigns the blocks of a model ([`everburn::nn::InBlocks`](everburn_nn::InBlocks)) to stages, and its parameters to the ranks of
//!   the pipeline.
//! - [`distribute`] gives each rank the parameters of its own stages. The others are *unmaterialised*: empty tensors at
//!   the same path, so that the model's type, code and parameter paths stay the same. [`gather`] joins the full model
//!   again, for checkpoints that load under any parallel layout.
//! - [`Pipeline`] runs the actions of a schedule ([`everburn::schedules`](everburn_schedules)): it sends activations forward and gradients
//!   back, as messages of a process group.
//! - [`SharedParameters`] sums the gradients of parameters that several stages hold (tied weights), and clips by the
//!   norm over all stages.
//!
//! Data parallelism over replicas of a stage is [`everburn::distributed::Ddp`](everburn_distributed::Ddp)'s, which sees only the stage's own
//! parameters, because unmaterialised ones require no gradient.
//!
//! A step of two micro-batches in two stages:
//!
//! ```
//! # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; pub use everburn_nn as nn; pub use everburn_pipeline as pipeline; pub use everburn_schedules as schedules; }
//! use burn::nn::{Linear, LinearConfig};
//! use burn::prelude::*;
//! use everburn::collectives::group::{GroupOptions, ProcessGroup};
//! use everburn::distributed::{Ddp, DdpConfig, Synchronization};
//! use everburn::nn::{AnyActivation, Blocks, InBlocks};
//! use everburn::pipeline::{Pipeline, PipelinePass, Stages, distribute};
//! use everburn::schedules::ScheduleKind;
//!
//! #[derive(Module, Debug)]
//! struct Pair {
//!     first: Linear,
//!     second: Linear,
//! }
//!
//! impl InBlocks for Pair {
//!     type Input = Tensor<2>;
//!     type Output = Tensor<2>;
//!     fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
//!         Blocks::first("first", ["first"], |pair: &Self, x| pair.first.forward(x))
//!             .then("second", ["second"], |pair, x| pair.second.forward(x))
//!     }
//! }
//!
//! /// Two micro-batches of two rows of ones.
//! struct Pass<'a> {
//!     pair: &'a Pair,
//!     step: &'a Synchronization,
//!     device: &'a Device,
//! }
//!
//! impl PipelinePass<Pair> for Pass<'_> {
//!     fn model(&mut self, micro_batch: usize) -> Pair {
//!         match micro_batch {
//!             0 => self.step.with_hooks_no_sync(self.pair, 2),
//!             _ => self.step.with_hooks(self.pair, 2),
//!         }
//!     }
//!     fn input(&mut self, _: usize) -> Box<dyn AnyActivation> {
//!         Box::new(Tensor::<2>::ones([2, 3], self.device))
//!     }
//!     fn loss(&mut self, _: usize, output: Box<dyn AnyActivation>) -> Tensor<1> {
//!         output.into_any().downcast::<Tensor<2>>().unwrap().mean()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let groups = ProcessGroup::over_threads(2, GroupOptions::default());
//! let ranks = groups.into_iter().map(|group| {
//!     std::thread::spawn(move || {
//!         let device = Device::flex().autodiff();
//!         let linear = || LinearConfig::new(3, 3).init(&device);
//!         let pair = Pair { first: linear(), second: linear() };
//!         let blocks = pair.blocks();
//!         let stages = Stages::even(blocks.len(), 2, 1).unwrap();
//!         let holders = stages.holders(&pair, &blocks).unwrap();
//!         let pair = distribute(pair, &group, &holders).unwrap();
//!         let alone = ProcessGroup::alone(GroupOptions::default()); // no other replica
//!         let (ddp, pair) = Ddp::new(pair, alone, DdpConfig::default()).unwrap();
//!
//!         let kind = ScheduleKind::OneForwardOneBackward;
//!         let pipeline = Pipeline::new(group, kind, stages).unwrap();
//!         let step = ddp.begin(4).unwrap();
//!         let mut pass = Pass { pair: &pair, step: &step, device: &device };
//!         pipeline.run(&blocks, &device, 2, &mut pass).unwrap();
//!         step.finish(&pair).unwrap().gradients.len()
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     assert_eq!(rank.join().unwrap(), 2, "weight and bias of its own layer");
//! }
//! # Ok(())
//! # }
//! ```

mod engine;
mod error;
mod message;
mod shared_parameters;
mod stages;
mod unmaterialised;

pub use engine::{Pipeline, PipelinePass};
pub use error::PipelineError;
pub use shared_parameters::SharedParameters;
pub use stages::{Stages, StagesError};
pub use unmaterialised::{distribute, distribute_initial_values, gather};
