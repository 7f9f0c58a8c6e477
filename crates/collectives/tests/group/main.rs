//! Process groups, with ranks as threads over both transports.

mod failures;
mod harness;
mod hostile;
mod memory_store;
mod mesh;
mod mismatches;
mod operations;
mod point_to_point;
mod properties;
mod subgroups;
