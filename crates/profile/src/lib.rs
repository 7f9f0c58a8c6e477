//! Where a step's time goes on each rank: what `bottleneck` records, finds and draws. Without Burn.
//!
//! A program meets these in this order:
//!
//! - [`Recorder`]: what a rank's training thread tells as it goes: the [`Phase`]s of a step, the parameters that its
//!   passes come to, what other threads do meanwhile.
//! - [`Sampler`]: asks the threads of a process at regular moments what they do. [`CountingAllocator`]: counts what is
//!   allocated.
//! - [`KernelTimer`]: what times the kernels of a device, in one step of ten.
//! - [`Recording`]: all that, as a file of each rank in the run's folder, with the distance to rank 0's clock
//!   ([`clock_offset`]).
//! - [`Analysis`]: where the time of the steps went. [`Analysis::findings`]: what is worth mending, in plain words.
//! - [`write_trace`] for Perfetto, [`flame_graph`], and [`Summary`] for people to read; [`write_results`] for all of
//!   them.

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
