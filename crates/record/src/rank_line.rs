//! `ranks.jsonl`: what each rank did in a step.

use serde::{Deserialize, Serialize};

/// A line of `ranks.jsonl`: one step on all ranks that took part in it.
///
/// ```
/// use everburn_record::{RankLine, RankStep};
///
/// let line = RankLine {
///     step: 10,
///     ranks: vec![RankStep { rank: 0, seconds: 0.02, waited: 0.005, ..RankStep::default() }],
///     ..RankLine::default()
/// };
/// let text = serde_json::to_string(&line).unwrap();
/// assert_eq!(text, r#"{"step":10,"ranks":[{"rank":0,"seconds":0.02,"waited":0.005}]}"#);
/// assert_eq!(serde_json::from_str::<RankLine>(&text).unwrap(), line);
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RankLine {
    /// How many steps have been made over all epochs, this one included.
    pub step: u64,
    /// When the step ended, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_time_ms: Option<u64>,
    /// The ranks, in any order. One that is missing took no part.
    pub ranks: Vec<RankStep>,
}

impl RankLine {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "ranks.jsonl";
}

/// What a step was for one rank. Times are in seconds; what is not known is left out, and is zero.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankStep {
    /// The rank: its number at the start of the job, however ranks are numbered later.
    pub rank: usize,
    /// How long the step took.
    pub seconds: f64,
    /// For how long of that it stood still for other ranks: `exposed` and the wait for the verdict.
    pub waited: f64,
    /// Waiting for data.
    #[serde(skip_serializing_if = "is_zero")]
    pub data: f64,
    /// The forward pass.
    #[serde(skip_serializing_if = "is_zero")]
    pub forward: f64,
    /// The backward pass.
    #[serde(skip_serializing_if = "is_zero")]
    pub backward: f64,
    /// The exchange of gradients that the backward pass did not hide: a part of `waited`.
    #[serde(skip_serializing_if = "is_zero")]
    pub exposed: f64,
    /// The optimizer.
    #[serde(skip_serializing_if = "is_zero")]
    pub optimizer: f64,
    /// How many samples it read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// The most memory that it has used, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
}

impl RankStep {
    /// The mean of `steps`, with the most memory of any; zeros of none. Its rank is 0.
    ///
    /// ```
    /// use everburn_record::RankStep;
    ///
    /// let step = |seconds, peak_memory| RankStep { seconds, peak_memory, ..RankStep::default() };
    /// let mean = RankStep::mean(&[step(2.0, Some(30)), step(4.0, None)]);
    /// assert_eq!((mean.seconds, mean.samples, mean.peak_memory), (3.0, Some(0), Some(30)));
    /// assert_eq!(RankStep::mean(&[]).seconds, 0.0);
    /// ```
    pub fn mean<'a, I>(steps: I) -> Self
    where
        I: IntoIterator<Item = &'a Self, IntoIter: ExactSizeIterator + Clone>,
    {
        let steps = steps.into_iter();
        let count = steps.len().max(1) as f64;
        let of = |part: fn(&Self) -> f64| steps.clone().map(part).sum::<f64>() / count;
        Self {
            rank: 0,
            seconds: of(|step| step.seconds),
            waited: of(|step| step.waited),
            data: of(|step| step.data),
            forward: of(|step| step.forward),
            backward: of(|step| step.backward),
            exposed: of(|step| step.exposed),
            optimizer: of(|step| step.optimizer),
            samples: Some(of(|step| step.samples.unwrap_or(0) as f64).round() as u64),
            peak_memory: steps.clone().filter_map(|step| step.peak_memory).max(),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}
