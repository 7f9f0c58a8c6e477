//! Process groups, with ranks as threads over both transports.

mod algorithms;
mod channels;
mod cut;
mod device_calls;
mod elsewhere;
mod failures;
mod flight;
mod hangs;
mod harness;
mod hostile;
mod mesh;
mod mismatches;
mod operations;
mod point_to_point;
mod subgroups;
