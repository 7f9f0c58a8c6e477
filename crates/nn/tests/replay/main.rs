//! Dropout in checkpointed segments. In a binary of their own, because a process has one generator.

#[path = "../recompute/model.rs"]
#[expect(dead_code, reason = "the other binary uses the rest")]
mod model;
mod randomness;
