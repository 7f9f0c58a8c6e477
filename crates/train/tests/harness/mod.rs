//! What programs of trainings share. Each uses all of it: what only one needs is in that one.

pub mod config;
pub mod data;
pub mod parameters;
pub mod ranks;
pub mod run;
