//! Batch norm over ranks, as its users see it. Ranks are threads.

mod conversion;
mod equivalence;
mod failure;
mod ranks;
