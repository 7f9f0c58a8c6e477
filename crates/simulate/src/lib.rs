//! A thousand ranks in one process, over a simulated network.
//!
//! Rendezvous, elastic membership, heartbeats, hang reports, aborts of groups, and the launcher's decisions are the real
//! code, on a coroutine per thread. Time, network, store and processes are simulated: one coroutine runs at a time,
//! and the clock advances when none can ([`everburn_collectives::runtime`]). A seed repeats a run exactly.
//!
//! Modelled and not run: the connections of the mesh, the data of collectives, the computation of a step, the loop
//! around the launcher's decisions.

mod coroutine;
mod kernel;
mod launcher;
mod mesh;
mod network;
mod rank;
mod report;
mod scenario;
mod settings;
mod store;
mod world;

pub use network::{Kind, Traffic};
pub use report::Report;
pub use scenario::{Fault, FaultOutcome, run};
pub use settings::{Planted, Settings};
