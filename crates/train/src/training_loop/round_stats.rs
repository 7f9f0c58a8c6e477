//! What ranks exchange after a round of local steps.

use std::time::{Duration, Instant};

use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp, Work};
use everburn_record::{RankStep, StepCost};

use crate::metrics::layout::MetricLayout;
use crate::metrics::rank_times;
use crate::metrics::step_reduction::{StepCodec, StepNumbers, Votes};
use crate::metrics::sums::MetricSums;

/// Where the flags of gradients begin among a rank's numbers: after the number of steps, their seconds, and the mean step.
const FLAGS: usize = 2 + rank_times::NUMBERS;

/// What this rank has done since the newest outer step.
#[derive(Debug, Clone)]
pub(super) struct Round {
    began: Instant,
    /// The number of its first step.
    first: usize,
    /// By step, what this rank's samples have shown, and what it was for the rank.
    steps: Vec<(MetricSums, RankStep)>,
    /// The outer step before it, with which the others' numbers are told.
    behind: RankStep,
}

/// What all ranks have done.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RoundStats {
    /// By step, the sums over all ranks; as many as the rank made that made most.
    pub(super) sums: Vec<MetricSums>,
    pub(super) votes: Votes,
    /// By rank, how many steps it made.
    pub(super) made: Vec<usize>,
    /// By rank, how long these took, in seconds.
    seconds: Vec<f64>,
    /// What the mean step was for each rank that made any, the outer step before the round included; `rank` is
    /// the place in the group.
    pub(super) times: Vec<RankStep>,
    /// The most memory that a rank has told of, in bytes.
    pub(super) peak_memory: Option<u64>,
    /// By rank, its flags of gradients.
    pub(super) flags: Vec<Vec<f64>>,
}

impl Round {
    /// Begins a round whose first step has this number, after an outer step that has held the rank up for so long.
    pub(super) fn begin(first: usize, behind: RankStep) -> Self {
        Self {
            began: Instant::now(),
            first,
            steps: Vec::new(),
            behind,
        }
    }

    pub(super) fn add(&mut self, sums: MetricSums, times: RankStep) {
        self.steps.push((sums, times));
    }

    /// This round, and the one after it as if they were one.
    pub(super) fn followed_by(mut self, next: Self) -> Self {
        self.steps.extend(next.steps);
        self
    }

    pub(super) fn first(&self) -> usize {
        self.first
    }

    pub(super) fn made(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn samples(&self) -> u64 {
        self.steps.iter().map(|(sums, _)| sums.samples).sum()
    }

    /// What each of `made` steps has cost this rank, if it made them; the last one also what the
    /// communication has.
    pub(super) fn costs(&self, made: usize, communication: StepCost) -> Vec<StepCost> {
        let cost = |step: usize| StepCost {
            seconds: self.steps.get(step).map_or(0.0, |(_, times)| times.seconds),
            peak_memory: communication.peak_memory,
            ..StepCost::default()
        };
        let mut costs = (0..made).map(cost).collect::<Vec<_>>();
        if let Some(last) = costs.last_mut() {
            *last += communication;
        }
        costs
    }

    pub(super) fn sums(&self) -> impl Iterator<Item = &MetricSums> + Clone {
        self.steps.iter().map(|(sums, _)| sums)
    }

    /// Begins to add up the rounds of all ranks, none of which has more than `planned` steps, and to exchange their flags
    /// of gradients, of which all ranks have as many. Every rank calls it.
    pub(super) fn send(
        &self,
        votes: Votes,
        planned: usize,
        layout: MetricLayout,
        group: &ProcessGroup,
        flags: &[f64],
    ) -> PendingStats {
        let mut times: Vec<_> = self.steps.iter().map(|(_, times)| *times).collect();
        let seconds = times.iter().map(|times| times.seconds).sum();
        if let Some(first) = times.first_mut() {
            first.seconds += self.behind.seconds;
            first.waited += self.behind.waited;
            first.exposed += self.behind.exposed;
        }
        let mut own = vec![self.made() as f64, seconds];
        own.extend(rank_times::numbers_of(&RankStep::mean(&times)));
        own.extend(flags);
        let codec = StepCodec {
            layout,
            steps: planned,
            own: own.len(),
            ranks: group.world_size(),
        };
        let numbers = codec.pack(votes, self.sums(), group.rank(), &own);
        PendingStats {
            sum: group.all_reduce(numbers, ReduceOp::Sum),
            codec,
        }
    }
}

/// The rounds of all ranks that are being added up.
pub(super) struct PendingStats {
    sum: Work<Vec<f64>>,
    codec: StepCodec,
}

impl PendingStats {
    pub(super) fn wait(self) -> Result<RoundStats, CollectiveError> {
        let numbers = self.sum.wait()?;
        Ok(RoundStats::of(self.codec.unpack(&numbers)))
    }
}

impl RoundStats {
    fn of(told: StepNumbers) -> Self {
        let of_rank = |number: usize| told.of_ranks.iter().map(move |own| own[number]);
        let made = of_rank(0).map(|made| made as usize).collect::<Vec<_>>();
        let most = made.iter().copied().max().unwrap_or_default();
        let times = told.of_ranks.iter().flat_map(|own| &own[2..FLAGS]);
        let times = rank_times::of_ranks(&times.copied().collect::<Vec<_>>(), |rank| rank);
        Self {
            seconds: of_rank(1).collect(),
            sums: told.sums.into_iter().take(most).collect(),
            votes: told.votes,
            peak_memory: times.iter().filter_map(|times| times.peak_memory).max(),
            times,
            made,
            flags: told
                .of_ranks
                .iter()
                .map(|own| own[FLAGS..].to_vec())
                .collect(),
        }
    }

    /// How many samples all ranks have learnt from.
    pub(super) fn samples(&self) -> u64 {
        self.sums.iter().map(|sums| sums.samples).sum()
    }

    /// The ranks that have made fewer steps than another, each with its number of them, because they are slower: none if the
    /// ranks are to stop, or were `interrupted`. Then some have made steps while they waited for one that had none to make.
    pub(super) fn late_ranks(&self, interrupted: bool) -> Vec<(usize, usize)> {
        if interrupted || self.votes.stop {
            return Vec::new();
        }
        let made = self.made.iter().copied().enumerate();
        made.filter(|(_, made)| *made < self.sums.len()).collect()
    }

    /// How long a step takes, in seconds, in the median of the ranks that have made any.
    pub(super) fn pace(&self) -> Option<f64> {
        let each = self.made.iter().zip(&self.seconds);
        let each = each.filter(|(made, _)| **made > 0);
        let mut each = each.map(|(made, s)| s / *made as f64).collect::<Vec<_>>();
        each.sort_by(f64::total_cmp);
        // Of two ranks, the faster one sets the pace.
        each.get(each.len().saturating_sub(1) / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;
    use everburn_tests::in_parallel;

    use super::*;

    fn sums(samples: u64) -> MetricSums {
        let sums = MetricSums {
            loss_sum: samples as f64 * 0.5,
            predictions: samples,
            samples,
            ..MetricSums::default()
        };
        sums.with_metric("mae", 1.0, samples as f64)
    }

    #[test]
    fn rounds_of_unequal_length_add_up_step_by_step() {
        let groups = ProcessGroup::over_threads(3, GroupOptions::default());
        let all = in_parallel(groups, |group| {
            // Rank 0 has just come, rank 1 is slow.
            let made = [0, 2, 4][group.rank()];
            let mut round = Round::begin(
                1,
                RankStep {
                    seconds: 0.5,
                    waited: 0.5,
                    ..RankStep::default()
                },
            );
            for step in 0..made {
                let times = RankStep {
                    seconds: if group.rank() == 1 { 6.0 } else { 1.0 },
                    forward: 0.25,
                    samples: Some(4 + step),
                    peak_memory: Some(100 * group.rank() as u64),
                    ..RankStep::default()
                };
                round.add(sums(4 + step), times);
            }
            let votes = Votes {
                save: group.rank() == 2,
                ..Votes::default()
            };
            let layout = MetricLayout::of(&sums(1));
            let flags = [group.rank() as f64];
            round.send(votes, 5, layout, &group, &flags).wait().unwrap()
        });
        for stats in &all {
            assert_eq!(stats, &all[0]);
        }
        let stats = &all[0];
        let samples = stats.sums.iter().map(|sums| sums.samples);
        assert_eq!(samples.collect::<Vec<_>>(), [8, 10, 6, 7]);
        assert_eq!(stats.samples(), 31);
        assert_eq!(stats.sums[1].mean("mae"), Some(2.0 / 10.0));
        assert_eq!(stats.made, [0, 2, 4]);
        assert!(stats.votes.save && !stats.votes.stop);
        assert_eq!(stats.late_ranks(false), [(0, 0), (1, 2)]);
        assert_eq!(stats.peak_memory, Some(200));
        assert_eq!(stats.pace(), Some(1.0));
        assert_eq!(stats.flags, [[0.0], [1.0], [2.0]]);
        // Of the rank that made no step there is nothing to tell.
        let times = stats.times.iter();
        let times = times.map(|it| (it.rank, it.seconds, it.waited, it.forward, it.samples));
        let expected = [
            (1, 6.25, 0.25, 0.25, Some(5)),
            (2, 1.125, 0.125, 0.25, Some(6)),
        ];
        assert_eq!(times.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn no_rank_is_late_in_a_round_that_was_interrupted_or_is_the_last() {
        let round = |made: &[usize], stop| RoundStats {
            sums: vec![sums(1); 8],
            votes: Votes {
                stop,
                ..Votes::default()
            },
            made: made.to_vec(),
            seconds: vec![1.0; made.len()],
            times: Vec::new(),
            peak_memory: None,
            flags: Vec::new(),
        };
        assert!(round(&[8, 8], false).late_ranks(false).is_empty());
        let one_is_slow = round(&[8, 3, 8], false);
        assert_eq!(one_is_slow.late_ranks(false), [(1, 3)]);
        // Rank 2 has just come, and rank 1 was the first to see that it waits.
        let resumed = round(&[8, 6, 0], false);
        assert!(resumed.late_ranks(true).is_empty());
        assert!(round(&[8, 6, 8], true).late_ranks(false).is_empty());
    }

    #[test]
    fn the_communication_is_the_last_steps_and_steps_of_others_cost_nothing() {
        let mut round = Round::begin(1, RankStep::default());
        let times = RankStep {
            seconds: 2.0,
            ..RankStep::default()
        };
        round.add(sums(1), times);
        let communication = StepCost {
            seconds: 1.0,
            gradient_bytes: 7,
            ..StepCost::default()
        };
        let seconds = round
            .costs(3, communication)
            .into_iter()
            .map(|cost| cost.seconds);
        assert_eq!(seconds.collect::<Vec<_>>(), [2.0, 0.0, 1.0]);
        let one = round.costs(1, communication);
        assert_eq!((one[0].seconds, one[0].gradient_bytes), (3.0, 7));
    }
}
