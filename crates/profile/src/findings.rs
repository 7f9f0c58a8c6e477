//! What is worth mending, in plain words.
//!
//! Each rule asks "what if": how long would a step take if this were fixed? All ranks wait for the slowest, so a step
//! is as long as the longest own work of a rank (what it does without waiting for others) and what the exchange takes
//! when nobody is late. A finding's share is what a fix would save of the step; the largest come first.
//!
//! After them comes what is no fault and promises nothing: a layer that computes far below what the machine can, and
//! the layer that takes most of the time, if that is a fifth of a step or more.

mod below_peak;
mod burn_layers;
mod device_idle;
mod order;
mod rules;

use everburn_record::units;
use serde::Serialize;

use crate::analysis::Analysis;

/// What wins less of a step than this is not told.
const LEAST_SHARE: f64 = 0.03;

/// How many percent of `whole` a part of it is.
pub(crate) fn percent(part: f64, whole: f64) -> String {
    units::percent(part / whole.max(f64::MIN_POSITIVE), 0)
}

/// What makes steps longer than they need be.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Finding, FindingKind};
///
/// /// Whether there is something to fix, and not only something to know.
/// fn is_fault(finding: &Finding) -> bool {
///     !matches!(finding.kind, FindingKind::BelowPeak | FindingKind::LargestLayer)
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// Ranks wait for their batches.
    Data,
    /// One rank does the same as the others, and takes longer.
    SlowRank,
    /// A layer copies between device and host.
    HostCopy,
    /// Layers of Burn's own compute on the CPU, where there are faster ones.
    BurnLayers,
    /// The exchange of gradients takes longer than the backward pass can hide.
    Exchange,
    /// Others have the cores.
    Cores,
    /// The optimizer takes a large part.
    Optimizer,
    /// Records, comparisons and checkpoints take a large part.
    Records,
    /// Nothing is wrong with the device: it waits for the host most of the time.
    DeviceIdle,
    /// Nothing is wrong: a layer computes much slower than the machine can.
    BelowPeak,
    /// Nothing is wrong: where most of the time is, if that is a fifth of a step or more.
    LargestLayer,
}

/// What was found, and what to do about it.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{Finding, FindingKind};
///
/// let finding = Finding {
///     kind: FindingKind::Data,
///     rank: Some(1),
///     layer: None,
///     share: 0.6,
///     text: "71 % of rank 1's step waits for data".to_owned(),
///     advice: "raise `training.input.workers`".to_owned(),
/// };
/// assert_eq!(finding.to_string(), "71 % of rank 1's step waits for data: raise `training.input.workers` (saves up to 60 % of a step)");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// The rank, if it is about one.
    pub rank: Option<usize>,
    /// The module of the model, if it is about one.
    pub layer: Option<String>,
    /// Which part of a step mending would win, at most; 0 for what is no fault.
    pub share: f64,
    /// What was found.
    pub text: String,
    /// What to do.
    pub advice: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.text, self.advice)?;
        if self.share > 0.0 {
            write!(
                f,
                " (saves up to {} of a step)",
                units::percent(self.share, 0)
            )?;
        }
        Ok(())
    }
}

impl Analysis {
    /// What is worth mending, the most first; last, where the machine is not used well and where most of the time is.
    pub fn findings(&self) -> Vec<Finding> {
        let rules = [
            rules::data,
            rules::slow_rank,
            rules::host_copy,
            burn_layers::burn_layers,
            rules::exchange,
            rules::cores,
            rules::optimizer,
            rules::records,
        ];
        // Who is slow, and whether an exchange waits for a rank or a link, is seen where all ranks are.
        let of_all = |kind| matches!(kind, FindingKind::SlowRank | FindingKind::Exchange);
        let found = rules.iter().filter_map(|rule| rule(self));
        let found = found.filter(|it| self.missing.is_empty() || !of_all(it.kind));
        let mut findings: Vec<Finding> = found
            .filter(|finding| finding.share >= LEAST_SHARE)
            .collect();
        order::sort(self, &mut findings);
        findings.extend(device_idle::device_idle(self));
        findings.extend(below_peak::below_peak(self));
        findings.extend(rules::largest_layer(self));
        findings
    }
}
