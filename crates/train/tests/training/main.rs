//! Trainings of small models on ranks that are threads: they learn, and what should make no difference makes none.
//!
//! One program, because each links Burn again. Under plain `cargo test` its tests share what a process has one of:
//!
//! - Burn's generator of random numbers, which each step of a training seeds. Where numbers have to be the same
//!   twice, weights are copied, or made by `harness::parameters`, and nothing is dropped out.
//! - The threads of rayon. Where it matters how long a step takes (`profile`, `rounds`), ranks do without them.
//! - The sampler of the CPU. One test of `profile` starts one; a second would have to take turns with it.
//! - The peak of the memory, which each step sets back: no test compares it with a size of its own.

mod balance;
mod checkpoint_kills;
mod devices;
mod elastic;
mod ema;
mod equivalence;
mod finders;
mod half_precision;
#[path = "../harness/mod.rs"]
mod harness;
mod hooks;
mod image_sets;
mod input;
mod labels;
mod language_model;
mod metrics;
mod not_finite;
mod optimizers;
mod predictions;
mod profile;
mod read_once;
mod recompute;
mod repair;
mod replicas;
mod rounds;
mod running_statistics;
mod samples;
mod sharding;
mod tasks;
mod virtual_ranks;

use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_train::{Trainer, TrainingConfig};

/// A rank that is alone.
fn alone(config: TrainingConfig) -> Trainer {
    Trainer::new(config, ProcessGroup::alone(GroupOptions::default()))
}
