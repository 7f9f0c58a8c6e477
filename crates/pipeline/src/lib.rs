//! One model over several ranks: each holds some of its blocks, and micro-batches pass through them.
//!
//! - [`Stages`] says which blocks of a model ([`everburn_nn::InBlocks`]) make which stage, and which
//!   rank of the pipeline has which parameters.
//! - [`distribute`] gives each rank the parameters of its own stages: the others are *hollow*, empty
//!   tensors at the same path, so that the model's type, code and parameter paths stay as they are.
//!   [`gather`] puts the whole model together again, for a checkpoint that knows no stages.
//! - [`Pipeline`] runs the actions of a schedule ([`everburn_schedules`]): activations forward and
//!   gradients back, by messages of a process group.
//! - [`SharedParameters`] adds up the gradients of parameters that several stages hold (tied weights),
//!   and clips by the norm of all stages' gradients.
//!
//! What is replicated over data is the business of [`everburn_distributed::Ddp`], which knows the
//! stage's own parameters only, because hollow ones require no gradient.

mod engine;
mod error;
mod hollow;
mod message;
mod shared_parameters;
mod stages;

pub use engine::{Pipeline, PipelinePass};
pub use error::PipelineError;
pub use hollow::{distribute, gather, hollow};
pub use shared_parameters::SharedParameters;
pub use stages::{Stages, StagesError};
