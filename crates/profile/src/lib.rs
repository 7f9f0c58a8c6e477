//! The profile of a training step on each rank: what `bottleneck` records, finds and draws. Without Burn.
//!
//! The main types, in the order in which a program uses them:
//!
//! - [`Recorder`]: records the [`Phase`]s of a step on a rank's training thread, when passes reach parameters, and the
//!   work of other threads meanwhile.
//! - [`Sampler`]: samples the stacks of a process's threads. [`CountingAllocator`]: counts allocations.
//! - [`KernelTimer`]: times the kernels of a device, in one step of ten.
//! - [`Recording`]: all of it, as a file per rank in the run's folder, with the offset to rank 0's clock
//!   ([`clock_offset`]).
//! - [`Analysis`]: the cost of each part of the steps. [`Analysis::findings`]: what is worth fixing, in plain words.
//! - [`write_trace`] for Perfetto, [`flame_graph`], and [`Summary`] as text; [`write_results`] for all of them.

mod allocations;
mod analysis;
mod clock;
mod error;
mod findings;
mod flame;
mod kernels;
mod phase;
mod recorder;
mod recording;
mod results;
mod sampler;
mod summary;
mod trace;

pub use allocations::CountingAllocator;
pub use analysis::{
    Analysis, BurnLayer, DeviceProfile, HostCopy, KernelCost, Layer, PhaseCost, RankProfile,
};
pub use clock::{clock_offset, now};
pub use error::ProfileError;
pub use findings::{Finding, FindingKind};
pub use flame::{collapsed, flame_graph};
pub use kernels::{KernelLaunch, KernelTimer, Kernels, TimedKernel};
pub use phase::Phase;
pub use recorder::Recorder;
pub use recording::{
    BackgroundSpan, FOLDER, Facts, Mark, Pass, PhaseSpan, Recording, Sample, Samples, StepStart,
    Track,
};
pub use results::{Results, write_results};
pub use sampler::Sampler;
pub use summary::Summary;
pub use trace::write_trace;

/// The machine that this process runs on, and when it was started: processes that say the same have one clock.
pub fn machine() -> Option<String> {
    everburn_record::proc::boot_id()
}
