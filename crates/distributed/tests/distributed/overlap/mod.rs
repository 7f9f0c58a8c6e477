//! Gradients that leave during the backward pass equal one device on the same global batch.

mod refusals;
mod results;
