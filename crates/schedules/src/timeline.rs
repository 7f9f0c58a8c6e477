//! When each rank does what, and what follows from it.

use serde::{Deserialize, Serialize};

use crate::{Action, Costs, Schedule};

/// One action of a rank, with its time from the start of the step.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Action, Costs, Schedule, ScheduleKind, Span, simulate};
///
/// let schedule = Schedule::new(ScheduleKind::GPipe, 2, 1, 1)?;
/// let timeline = simulate(&schedule, &Costs::equal(2))?;
/// let backward = Action::Backward { micro_batch: 0, stage: 1 };
/// assert_eq!(timeline.spans(1)[1], Span { action: backward, start: 2.0, end: 4.0 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// A step: when each rank does what. Made by [`simulate`](crate::simulate), or of measured times by
/// [`measured`](Self::measured); drawn by [`to_text`](Self::to_text) and [`to_svg`](Self::to_svg).
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Costs, Schedule, ScheduleKind, simulate};
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
        let peak_activation_bytes = (0..schedule.ranks())
            .map(|rank| schedule.peak_activation_bytes(rank, costs))
            .collect();
        Self {
            makespan: last_end(&spans),
            schedule: schedule.clone(),
            spans,
            peak_activation_bytes,
        }
    }

    /// The timeline of a step that has really been run: what each rank has measured, from the start
    /// of the step on, by rank. It has no bytes.
    ///
    /// # Errors
    /// [`TimelineError`] if the actions are not those of `schedule`, in its order, or if the times of
    /// a rank do not follow each other.
    ///
    /// ```
    /// # mod everburn { pub use everburn_schedules as schedules; }
    /// use everburn::schedules::{Action, Schedule, ScheduleKind, Span, Timeline};
    ///
    /// let schedule = Schedule::new(ScheduleKind::GPipe, 1, 1, 1)?;
    /// let forward = Action::Forward { micro_batch: 0, stage: 0 };
    /// let backward = Action::Backward { micro_batch: 0, stage: 0 };
    /// let spans = vec![
    ///     Span { action: forward, start: 0.0, end: 0.010 },
    ///     Span { action: backward, start: 0.012, end: 0.031 },
    /// ];
    /// let timeline = Timeline::measured(&schedule, vec![spans])?;
    /// assert_eq!(timeline.makespan(), 0.031);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn measured(schedule: &Schedule, spans: Vec<Vec<Span>>) -> Result<Self, TimelineError> {
        if spans.len() != schedule.ranks() {
            return Err(TimelineError::OtherRanks {
                schedule: schedule.ranks(),
                spans: spans.len(),
            });
        }
        for (rank, spans) in spans.iter().enumerate() {
            check_spans(schedule, rank, spans)?;
        }
        Ok(Self {
            makespan: last_end(&spans),
            peak_activation_bytes: vec![0; schedule.ranks()],
            schedule: schedule.clone(),
            spans,
        })
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

/// Why measured times are no [`Timeline`] of a schedule.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Schedule, ScheduleKind, Timeline};
///
/// let schedule = Schedule::new(ScheduleKind::GPipe, 2, 1, 1)?;
/// let error = Timeline::measured(&schedule, vec![vec![]]).unwrap_err();
/// assert_eq!(error.to_string(), "the schedule has 2 ranks, but there are times of 1");
/// # Ok::<(), everburn_schedules::ScheduleError>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TimelineError {
    /// The times are those of another number of ranks.
    #[error("the schedule has {schedule} ranks, but there are times of {spans}")]
    OtherRanks {
        /// How many ranks the schedule has.
        schedule: usize,
        /// How many ranks there are times of.
        spans: usize,
    },
    /// The actions of a rank are not those of its list.
    #[error("action {position} of rank {rank} is {expected}, but the times have {found}", expected = told(expected), found = told(found))]
    OtherAction {
        /// The rank.
        rank: usize,
        /// The first place that differs, from 0.
        position: usize,
        /// What is there in the schedule.
        expected: Option<Action>,
        /// What is there in the times.
        found: Option<Action>,
    },
    /// An action that ends before it starts, or starts before the one before it has ended, or at no
    /// time at all.
    #[error(
        "action {position} of rank {rank} lasts from {start} s to {end} s, after one that ends at \
         {before} s: check the clock"
    )]
    OutOfTime {
        /// The rank.
        rank: usize,
        /// The place in its list, from 0.
        position: usize,
        /// When it starts.
        start: f64,
        /// When it ends.
        end: f64,
        /// When the action before it ends; 0 for the first.
        before: f64,
    },
}

fn told(action: &Option<Action>) -> String {
    action.map_or_else(|| "nothing".to_owned(), |action| format!("the {action}"))
}

fn check_spans(schedule: &Schedule, rank: usize, spans: &[Span]) -> Result<(), TimelineError> {
    let actions = schedule.actions(rank);
    let found = |position: usize| spans.get(position).map(|span| span.action);
    let differs = |position: &usize| actions.get(*position).copied() != found(*position);
    if let Some(position) = (0..actions.len().max(spans.len())).find(differs) {
        return Err(TimelineError::OtherAction {
            rank,
            position,
            expected: actions.get(position).copied(),
            found: found(position),
        });
    }
    let mut before = 0.0;
    for (position, &Span { start, end, .. }) in spans.iter().enumerate() {
        // Comparisons with what is not a number are false.
        if !(before <= start && start <= end && end.is_finite()) {
            return Err(TimelineError::OutOfTime {
                rank,
                position,
                start,
                end,
                before,
            });
        }
        before = end;
    }
    Ok(())
}

fn last_end(spans: &[Vec<Span>]) -> f64 {
    let ends = spans.iter().filter_map(|spans| spans.last());
    ends.map(|span| span.end).fold(0.0, f64::max)
}
