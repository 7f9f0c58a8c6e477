//! A device that waits for its host.

use super::{Finding, FindingKind};
use crate::analysis::Analysis;

/// For which part of a step a device is expected to compute.
const EXPECTED: f64 = 0.7;

/// Kernels that take no longer on the average, in seconds, are about as long as it takes to ask for one.
const SHORT: f64 = 20e-6;

/// The device that computes for the least part of a step, if that is little. It promises nothing: what the host does
/// meanwhile is what the other findings are about.
pub(super) fn device_idle(analysis: &Analysis) -> Option<Finding> {
    let ranks = analysis.ranks.iter();
    let devices = ranks.filter_map(|rank| rank.device.as_ref().map(|device| (rank, device)));
    let share = |rank: &crate::RankProfile, busy: f64| busy / rank.step_seconds;
    let (rank, device) = devices
        .min_by(|(one, a), (other, b)| share(one, a.busy).total_cmp(&share(other, b.busy)))?;
    let busy = share(rank, device.busy);
    if busy.is_nan() || busy >= EXPECTED {
        return None;
    }
    let mean = device.busy / device.launches.max(1.0);
    Some(Finding {
        kind: FindingKind::DeviceIdle,
        rank: Some(rank.facts.rank),
        layer: None,
        share: 0.0,
        text: format!(
            "the device of rank {} computes for {:.0} % of a step ({:.2} of {:.2} ms, in {:.0} kernels)",
            rank.facts.rank,
            100.0 * busy,
            device.busy * 1e3,
            rank.step_seconds * 1e3,
            device.launches
        ),
        advice: match mean < SHORT {
            true => "its kernels are about as short as it takes to ask for them: raise `training.batch_size`".to_owned(),
            false => "it waits for the host the rest of the time: see the phases above for what that does".to_owned(),
        },
    })
}
