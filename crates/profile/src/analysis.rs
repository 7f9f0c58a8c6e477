//! Where the time of the recorded steps went.

mod burn_layers;
mod copies;
mod device;
mod layers;
mod stacks;

use serde::Serialize;

pub use self::burn_layers::BurnLayer;
pub use self::copies::HostCopy;
pub use self::device::{DeviceProfile, KernelCost};
pub use self::layers::Layer;
use crate::error::ProfileError;
use crate::phase::Phase;
use crate::recording::{Facts, PhaseSpan, Recording, Track};

/// The most steps that are left out at the beginning: buffers are made in them, kernels compiled and tuned.
const MOST_UNLIKE: usize = 3;

/// Where the time of the steps went, by rank.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Analysis, Facts, Phase, Recorder};
///
/// let recorder = Recorder::new(Facts { world_size: 2, ..Facts::default() });
/// for step in 1..=4 {
///     recorder.begin_step(step);
///     recorder.enter(Phase::Forward);
/// }
/// let analysis = Analysis::of(&[recorder.finish()])?;
/// assert_eq!((analysis.ranks.len(), analysis.missing), (1, vec![1]));
/// # Ok::<(), everburn_profile::ProfileError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// How many steps were looked at.
    pub steps: usize,
    /// How many steps before them were not.
    pub left_out: usize,
    /// In how many more each kernel of the device was timed: they count for kernels only.
    pub kernels_timed: usize,
    /// The ranks whose recordings are missing: what has to do with other ranks is not known then.
    pub missing: Vec<usize>,
    /// How long a step took, the mean over steps and ranks, in seconds.
    pub step_seconds: f64,
    /// The ranks, in their order.
    pub ranks: Vec<RankProfile>,
}

/// Where a rank's time went. Times are means of the steps that were looked at, in seconds.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Analysis, RankProfile};
///
/// /// The rank that is busy with itself the longest: all others wait for it.
/// fn slowest(analysis: &Analysis) -> Option<&RankProfile> {
///     let ranks = analysis.ranks.iter();
///     ranks.max_by(|one, other| one.own_seconds().total_cmp(&other.own_seconds()))
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankProfile {
    /// What the rank is.
    pub facts: Facts,
    /// How long a step took.
    pub step_seconds: f64,
    /// What its phases took, in the order of [`Phase::ALL`].
    pub phases: Vec<PhaseCost>,
    /// How long gradients were exchanged behind the backward pass.
    pub hidden_exchange: f64,
    /// How long the threads that assemble batches were at work, added up.
    pub loading: f64,
    /// How long the training thread was ready to compute and another had the core; `None` where the system does not report it.
    pub kept_waiting: Option<f64>,
    /// The most memory, in bytes, if it is known.
    pub peak_memory: Option<u64>,
    /// The most operations per second that its threads could compute: [`Facts::peak_operations`], or what a layer reached in
    /// a pass, where that is more.
    pub peak_operations: Option<f64>,
    /// The layer and the pass that reached more than was measured, if one did.
    pub peak_raised_by: Option<String>,
    /// The modules of the model that have parameters, in the order in which the forward pass came to them.
    pub layers: Vec<Layer>,
    /// Copies between device and host within the passes, the longest first.
    pub copies: Vec<HostCopy>,
    /// Layers of Burn's own on the CPU, of which `everburn::nn` has faster ones, the longest first.
    pub burn_layers: Vec<BurnLayer>,
    /// How many passes forward and backward a step made.
    pub passes: f64,
    /// How many samples of the CPU did not fit.
    pub samples_dropped: u64,
    /// What its device computed, where kernels were timed.
    pub device: Option<DeviceProfile>,
}

/// What a phase took a step.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Phase, PhaseCost, RankProfile};
///
/// /// Which part of a step the forward pass takes.
/// fn forward_share(rank: &RankProfile) -> f64 {
///     let cost: PhaseCost = rank.phase(Phase::Forward);
///     cost.seconds / rank.step_seconds
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhaseCost {
    /// Which.
    pub phase: Phase,
    /// How long.
    pub seconds: f64,
    /// For how long of that the training thread computed itself.
    pub cpu: f64,
    /// How many allocations of memory the process made.
    pub allocations: f64,
    /// Of how many bytes together.
    pub bytes: f64,
    /// How many floating point operations were counted.
    pub operations: f64,
}

/// A step, from its beginning to that of the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    kept_waiting: u64,
    peak_memory: u64,
    kernels_timed: bool,
}

impl Analysis {
    /// Looks at what the ranks have recorded.
    ///
    /// # Errors
    /// [`ProfileError::NoSteps`] if one of them has recorded no whole step.
    pub fn of(recordings: &[Recording]) -> Result<Self, ProfileError> {
        let all: Vec<(Vec<Window>, Vec<Window>)> = recordings
            .iter()
            .map(|recording| {
                let windows = windows_of(recording).into_iter();
                windows
                    .map(|(_, window)| window)
                    .partition(|window| !window.kernels_timed)
            })
            .collect();
        let steps = all.iter().map(|(plain, _)| plain.len()).min().unwrap_or(0);
        if steps == 0 {
            return Err(ProfileError::NoSteps);
        }
        let left_out = MOST_UNLIKE.min(steps / 4);
        let ranks = recordings.iter().zip(&all);
        let ranks: Vec<RankProfile> = ranks
            .map(|(recording, (plain, timed))| {
                RankProfile::of(recording, &plain[left_out..steps], timed)
            })
            .collect();
        let sum: f64 = ranks.iter().map(|rank| rank.step_seconds).sum();
        Ok(Self {
            steps: steps - left_out,
            left_out,
            kernels_timed: all.iter().map(|(_, timed)| timed.len()).max().unwrap_or(0),
            missing: {
                let facts = || ranks.iter().map(|rank| &rank.facts);
                let all = facts().map(|facts| facts.world_size).max().unwrap_or(0);
                let is_there = |number: &usize| facts().any(|facts| facts.rank == *number);
                (0..all).filter(|number| !is_there(number)).collect()
            },
            step_seconds: sum / ranks.len() as f64,
            ranks,
        })
    }
}

impl RankProfile {
    /// The profile of the steps `windows`, and that of the device in the steps `timed`.
    fn of(recording: &Recording, windows: &[Window], timed: &[Window]) -> Self {
        let steps = windows.len() as f64;
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9 / steps;
        let phases = phases_of(recording, windows);
        let cost = |phase| {
            let of = || phases.iter().filter(move |span| span.phase == phase);
            PhaseCost {
                phase,
                seconds: seconds(of().map(|span| span.end - span.begin).sum()),
                cpu: seconds(of().map(|span| span.cpu).sum()),
                allocations: of().map(|span| span.allocations).sum::<u64>() as f64 / steps,
                bytes: of().map(|span| span.bytes).sum::<u64>() as f64 / steps,
                operations: of()
                    .map(|span| span.operations[1].saturating_sub(span.operations[0]))
                    .sum::<u64>() as f64
                    / steps,
            }
        };
        let forward = phases.iter().filter(|span| span.phase == Phase::Forward);
        let passes = forward.count() as f64 / steps;
        let whole: u64 = windows.iter().map(|window| window.end - window.begin).sum();
        let kept_waiting: u64 = windows.iter().map(|window| window.kept_waiting).sum();
        let peak_memory = windows.iter().map(|window| window.peak_memory).max();
        let background = recording.background.iter();
        let background: Vec<_> = background
            .filter(|span| is_held(windows, span.begin))
            .collect();
        let loading = background
            .iter()
            .filter(|span| matches!(span.track, Track::Loader(_)));
        let loading: u64 = loading.map(|span| span.end - span.begin).sum();
        let buckets = background.iter().filter(|span| {
            // The other exchange of a step tells how many samples there are, and waits for the slowest.
            matches!(span.track, Track::Reducer(_)) && span.name.starts_with("bucket")
        });
        let mut buckets: Vec<(u64, u64)> = buckets.map(|span| (span.begin, span.end)).collect();
        buckets.sort_unstable();
        let exposed = phases.iter().filter(|span| span.phase == Phase::Exchange);
        let exposed: Vec<(u64, u64)> = exposed.map(|span| (span.begin, span.end)).collect();
        let segments = layers::segments(recording, &phases);
        let mut layers = layers::sums(recording, &segments, steps);
        let measured = recording.facts.peak_operations;
        let (peak_operations, peak_raised_by) = layers::share_out(&mut layers, measured);
        Self {
            facts: recording.facts.clone(),
            step_seconds: seconds(whole),
            phases: Phase::ALL.map(cost).to_vec(),
            hidden_exchange: seconds(hidden(&buckets, &exposed)),
            loading: seconds(loading),
            kept_waiting: (kept_waiting > 0).then(|| seconds(kept_waiting)),
            peak_memory: peak_memory.filter(|bytes| *bytes > 0),
            peak_operations,
            peak_raised_by,
            layers,
            copies: copies::found(recording, &phases, &segments, steps),
            burn_layers: burn_layers::found(recording, &phases, steps),
            passes,
            samples_dropped: recording.samples.dropped,
            device: {
                let phases = phases_of(recording, timed);
                let segments = layers::segments(recording, &phases);
                DeviceProfile::of(recording, timed, &phases, &segments)
            },
        }
    }

    /// What a phase took.
    pub fn phase(&self, phase: Phase) -> PhaseCost {
        self.phases[phase.index()]
    }

    /// How many floating point operations per second its passes computed; `None` where none are counted.
    pub fn operations_a_second(&self) -> Option<f64> {
        let passes = || self.phases.iter().filter(|cost| cost.phase.is_pass());
        let operations = passes().map(|cost| cost.operations).sum();
        layers::rate(operations, passes().map(|cost| cost.seconds).sum())
    }

    /// How many samples a pass had, if it is known.
    pub(crate) fn samples_a_pass(&self) -> Option<f64> {
        let facts = &self.facts;
        let passes = self.passes * facts.world_size as f64;
        (facts.batch_size > 0 && passes > 0.0).then(|| facts.batch_size as f64 / passes)
    }

    /// How long it was busy with itself: all that does not depend on other ranks.
    pub fn own_seconds(&self) -> f64 {
        let own = self.phases.iter().filter(|cost| !cost.phase.waits());
        own.map(|cost| cost.seconds).sum()
    }
}

impl Window {
    fn holds(&self, at: u64) -> bool {
        (self.begin..self.end).contains(&at)
    }
}

/// Whether one of `windows`, which are in the order of time, holds a moment.
fn is_held(windows: &[Window], at: u64) -> bool {
    let behind = windows.partition_point(|window| window.begin <= at);
    behind > 0 && windows[behind - 1].holds(at)
}

/// What the training thread did in `windows`.
fn phases_of(recording: &Recording, windows: &[Window]) -> Vec<PhaseSpan> {
    let phases = recording.phases.iter();
    phases
        .filter(|span| is_held(windows, span.begin))
        .copied()
        .collect()
}

/// The whole steps of a recording, each with its number.
pub(crate) fn windows_of(recording: &Recording) -> Vec<(u32, Window)> {
    let pairs = recording.steps.windows(2);
    let whole = pairs.filter(|pair| pair[0].step > 0 && pair[1].at > pair[0].at);
    let window = whole.map(|pair| {
        let window = Window {
            begin: pair[0].at,
            end: pair[1].at,
            kept_waiting: pair[1].kept_waiting.saturating_sub(pair[0].kept_waiting),
            peak_memory: pair[0].peak_memory,
            kernels_timed: pair[0].kernels_timed,
        };
        (pair[0].step, window)
    });
    window.collect()
}

/// The modules of all passes of a recording.
pub(crate) fn segments_of(recording: &Recording) -> Vec<layers::Segment<'_>> {
    layers::segments(recording, &recording.phases)
}

/// How much of the union of `busy`, sorted, is outside of `exposed`, sorted and disjoint.
fn hidden(busy: &[(u64, u64)], exposed: &[(u64, u64)]) -> u64 {
    let overlap = |span: &(u64, u64)| -> u64 {
        // Those that end before the span cannot meet it.
        let first = exposed.partition_point(|other| other.1 <= span.0);
        let others = exposed[first..].iter().take_while(|other| other.0 < span.1);
        others
            .map(|other| other.1.min(span.1) - other.0.max(span.0))
            .sum()
    };
    union(busy)
        .iter()
        .map(|span| (span.1 - span.0) - overlap(span))
        .sum()
}

/// `spans`, sorted, without those that meet: one in their place.
fn union(spans: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut union: Vec<(u64, u64)> = Vec::new();
    for &(begin, end) in spans {
        match union.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => union.push((begin, end)),
        }
    }
    union
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_the_union_without_the_exposed() {
        // 0..10 and 20..30 are busy; of them 8..10 and 20..24 are exposed.
        let busy = [(0, 6), (4, 10), (20, 25), (22, 30)];
        assert_eq!(hidden(&busy, &[(8, 12), (15, 24)]), 8 + 6);
        assert_eq!(hidden(&busy, &[]), 20);
        assert_eq!(hidden(&[], &[(0, 9)]), 0);
    }
}
