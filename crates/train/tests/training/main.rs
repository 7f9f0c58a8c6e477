//! Trainings of small models on ranks that are threads: they learn, and what should make no difference makes none.

mod checkpoint_kills;
mod devices;
mod elastic;
mod ema;
mod equivalence;
mod half_precision;
mod input;
mod language_model;
mod profile;
mod recompute;
mod rounds;
mod sharding;
mod virtual_ranks;
