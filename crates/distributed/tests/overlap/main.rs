//! Gradients that leave during the backward pass equal one device on the same global batch.

#[path = "../models/mod.rs"]
mod models;
mod recomputed;
mod refusals;
mod results;
mod steps;
