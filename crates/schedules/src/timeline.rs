//! When each rank does what, and what follows from it.

use serde::Serialize;

use crate::{Action, Costs, Schedule};

/// One action of a rank, with its time from the start of the step.
///
/// ```
/// use everburn_schedules::{Action, Costs, Schedule, ScheduleKind, Span, simulate};
///
/// let schedule = Schedule::new(ScheduleKind::GPipe, 2, 1, 1)?;
/// let timeline = simulate(&schedule, &Costs::equal(2))?;
/// let backward = Action::Backward { micro_batch: 0, stage: 1 };
/// assert_eq!(timeline.spans(1)[1], Span { action: backward, start: 2.0, end: 4.0 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Span {
    /// What the rank does.
    pub action: Action,
    /// When it starts, in seconds.
    pub start: f64,
    /// When it ends, in seconds.
    pub end: f64,
}

impl Span {
    /// How long it takes, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end - self.start
    }
}

/// A simulated step: when each rank does what. Made by [`simulate`](crate::simulate), drawn by
/// [`to_text`](Self::to_text) and [`to_svg`](Self::to_svg).
///
/// ```
/// use everburn_schedules::{Costs, Schedule, ScheduleKind, simulate};
///
/// let schedule = Schedule::new(ScheduleKind::GPipe, 4, 8, 1)?;
/// let timeline = simulate(&schedule, &Costs::equal(4))?;
/// assert_eq!(timeline.makespan(), 33.0);
/// assert!((timeline.idle_share() - 3.0 / 11.0).abs() < 1e-9);
/// assert_eq!(timeline.peak_live(0), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    schedule: Schedule,
    /// One list a rank, in order of time.
    spans: Vec<Vec<Span>>,
    makespan: f64,
    /// A rank each.
    peak_activation_bytes: Vec<u64>,
}

impl Timeline {
    pub(crate) fn new(schedule: &Schedule, costs: &Costs, spans: Vec<Vec<Span>>) -> Self {
        let ends = spans.iter().filter_map(|spans| spans.last());
        let makespan = ends.map(|span| span.end).fold(0.0, f64::max);
        let peak_activation_bytes = (0..schedule.ranks())
            .map(|rank| schedule.peak_activation_bytes(rank, costs))
            .collect();
        Self {
            schedule: schedule.clone(),
            spans,
            makespan,
            peak_activation_bytes,
        }
    }

    /// The schedule that was simulated.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// What `rank` does, in order of time. Empty if there is no such rank.
    #[must_use]
    pub fn spans(&self, rank: usize) -> &[Span] {
        self.spans.get(rank).map_or(&[], Vec::as_slice)
    }

    /// How long the step takes, in seconds: until the last rank has done its last action.
    #[must_use]
    pub const fn makespan(&self) -> f64 {
        self.makespan
    }

    /// How long `rank` works, in seconds.
    #[must_use]
    pub fn busy(&self, rank: usize) -> f64 {
        self.spans(rank).iter().map(Span::seconds).sum()
    }

    /// The share of the step for which `rank` is idle, from 0 to 1.
    #[must_use]
    pub fn idle_share_of(&self, rank: usize) -> f64 {
        if self.makespan == 0.0 {
            return 0.0;
        }
        (1.0 - self.busy(rank) / self.makespan).max(0.0)
    }

    /// The share of the step for which ranks are idle, the mean over ranks: the *bubble*. Compare
    /// [`theoretical_idle`](crate::theoretical_idle).
    #[must_use]
    pub fn idle_share(&self) -> f64 {
        let ranks = self.schedule.ranks();
        (0..ranks).map(|rank| self.idle_share_of(rank)).sum::<f64>() / ranks as f64
    }

    /// For how many micro-batches `rank` keeps activations at once: see [`Schedule::peak_live`].
    #[must_use]
    pub fn peak_live(&self, rank: usize) -> usize {
        self.schedule.peak_live(rank)
    }

    /// How many bytes of activations `rank` keeps at once: see
    /// [`Schedule::peak_activation_bytes`]. 0 if there is no such rank.
    #[must_use]
    pub fn peak_activation_bytes(&self, rank: usize) -> u64 {
        self.peak_activation_bytes.get(rank).copied().unwrap_or(0)
    }
}
