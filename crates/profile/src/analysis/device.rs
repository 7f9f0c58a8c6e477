//! What a device computed in the steps in which its kernels were timed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Window;
use super::layers::Segment;
use crate::kernels::KernelLaunch;
use crate::recording::{PhaseSpan, Recording};

/// What a device did. Numbers are means of the steps in which its kernels were timed, times in seconds.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{DeviceProfile, RankProfile};
///
/// /// Which part of a step the rank's device is busy, if its kernels were timed.
/// fn busy_share(rank: &RankProfile) -> Option<f64> {
///     let device: &DeviceProfile = rank.device.as_ref()?;
///     Some(device.busy / rank.step_seconds)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceProfile {
    /// How many steps that were.
    pub steps: usize,
    /// How long at least one kernel ran.
    pub busy: f64,
    /// How many kernels ran.
    pub launches: f64,
    /// How many more ran and were not kept, in all steps together.
    pub dropped: u64,
    /// The kernels by name, those that took longest first.
    pub kernels: Vec<KernelCost>,
}

/// What a kernel cost a step.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::KernelCost;
///
/// let cost = KernelCost {
///     name: "matmul".to_owned(),
///     launches: 4.0,
///     seconds: 0.02,
///     asked_in: "fc1 forward".to_owned(),
/// };
/// assert_eq!(cost.seconds / cost.launches, 0.005);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelCost {
    /// What it calls itself.
    pub name: String,
    /// How often it ran.
    pub launches: f64,
    /// How long.
    pub seconds: f64,
    /// Where most of that was asked for: a module and a pass, or a phase. Where operations are fused, they are asked for
    /// a little later than in the model's code.
    pub asked_in: String,
}

impl DeviceProfile {
    /// What ran in `windows`; `None` if nothing was timed in them.
    pub(super) fn of(
        recording: &Recording,
        windows: &[Window],
        phases: &[PhaseSpan],
        segments: &[Segment<'_>],
    ) -> Option<Self> {
        let kernels = &recording.kernels;
        let is_within = |launch: &&KernelLaunch| super::is_held(windows, launch.asked);
        let launches: Vec<&KernelLaunch> = kernels.launches.iter().filter(is_within).collect();
        if launches.is_empty() {
            return None;
        }
        let steps = windows.len() as f64;
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9 / steps;
        let mut spans: Vec<(u64, u64)> = launches.iter().map(|l| (l.begin, l.end)).collect();
        spans.sort_unstable();
        let mut by_name: BTreeMap<u32, ByPlace> = BTreeMap::new();
        for launch in &launches {
            let place = place(launch.asked, phases, segments);
            let of_name = by_name.entry(launch.name).or_default();
            let sum = of_name.entry(place).or_default();
            sum.0 += 1;
            sum.1 += launch.end - launch.begin;
        }
        let mut costs: Vec<KernelCost> = by_name
            .into_iter()
            .map(|(name, places)| KernelCost {
                name: kernels
                    .names
                    .get(name as usize)
                    .cloned()
                    .unwrap_or_default(),
                launches: places.values().map(|sum| sum.0).sum::<u64>() as f64 / steps,
                seconds: seconds(places.values().map(|sum| sum.1).sum()),
                asked_in: places
                    .into_iter()
                    .max_by_key(|(_, sum)| sum.1)
                    .map_or(String::new(), |(place, _)| place),
            })
            .collect();
        costs.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        Some(Self {
            steps: windows.len(),
            busy: seconds(super::union(&spans).iter().map(|(b, e)| e - b).sum()),
            launches: launches.len() as f64 / steps,
            dropped: kernels.dropped,
            kernels: costs,
        })
    }
}

/// How often a kernel was asked for in each place, and for how long it ran.
type ByPlace = BTreeMap<String, (u64, u64)>;

fn place(at: u64, phases: &[PhaseSpan], segments: &[Segment<'_>]) -> String {
    // Both are in the order of time.
    let segment = &segments[..segments.partition_point(|segment| segment.begin <= at)];
    if let Some(segment) = segment.last().filter(|segment| at < segment.end) {
        return format!("{} {}", segment.module, segment.pass.name());
    }
    let phase = &phases[..phases.partition_point(|span| span.begin <= at)];
    let phase = phase.last().filter(|span| at < span.end);
    phase.map_or("other", |span| span.phase.name()).to_owned()
}
