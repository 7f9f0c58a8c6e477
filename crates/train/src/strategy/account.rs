//! What ranks tell each other of a round of steps that each has taken by itself.

use std::time::{Duration, Instant};

use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_record::RankStep;

use crate::rank_times::{self, NUMBERS};
use crate::tally::{StepCost, Tally, Votes};

/// How many numbers a tally has.
const TALLY: usize = 4;

/// How many votes there are.
const VOTES: usize = 3;

/// How many numbers there are of each rank: steps, their seconds, and what the mean step was for it.
const OF_A_RANK: usize = 2 + NUMBERS;

/// What this rank has done since the newest outer step.
#[derive(Debug)]
pub(super) struct Round {
    began: Instant,
    /// By step, what this rank's samples have shown, and what it was for the rank.
    steps: Vec<(Tally, RankStep)>,
    /// The outer step before it, with which the others' numbers are told.
    behind: RankStep,
}

/// What all ranks have done.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Account {
    /// By step, the sums over all ranks; as many as the rank made that made most.
    pub(super) tallies: Vec<Tally>,
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
}

impl Round {
    /// Begins a round, behind an outer step that has held the rank up for so long.
    pub(super) fn begin(behind: RankStep) -> Self {
        Self {
            began: Instant::now(),
            steps: Vec::new(),
            behind,
        }
    }

    pub(super) fn add(&mut self, tally: Tally, times: RankStep) {
        self.steps.push((tally, times));
    }

    /// How many steps this rank has made.
    pub(super) fn made(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// How many samples this rank has learnt from.
    pub(super) fn samples(&self) -> u64 {
        self.steps.iter().map(|(tally, _)| tally.samples).sum()
    }

    /// What each of `made` steps has cost this rank, if it made them; the last one also what the exchange
    /// has.
    pub(super) fn costs(&self, made: usize, exchange: StepCost) -> Vec<StepCost> {
        let cost = |step: usize| StepCost {
            seconds: self.steps.get(step).map_or(0.0, |(_, times)| times.seconds),
            peak_memory: exchange.peak_memory,
            ..StepCost::default()
        };
        let mut costs = (0..made).map(cost).collect::<Vec<_>>();
        if let Some(last) = costs.last_mut() {
            *last += exchange;
        }
        costs
    }

    /// Adds up the rounds of all ranks, none of which has more than `planned` steps. Every rank calls it.
    pub(super) fn settle(
        &self,
        votes: Votes,
        planned: usize,
        group: &ProcessGroup,
    ) -> Result<Account, CollectiveError> {
        let (rank, ranks) = (group.rank(), group.world_size());
        let mut numbers = vec![0.0; VOTES + OF_A_RANK * ranks + TALLY * planned];
        let all = [votes.stop, votes.save, votes.regroup];
        numbers[..VOTES].copy_from_slice(&all.map(f64::from));
        // A place for each rank, so that a sum hands out what each has.
        let mut times: Vec<_> = self.steps.iter().map(|(_, times)| *times).collect();
        let seconds = times.iter().map(|times| times.seconds).sum();
        if let Some(first) = times.first_mut() {
            first.seconds += self.behind.seconds;
            first.waited += self.behind.waited;
            first.exposed += self.behind.exposed;
        }
        let own = &mut numbers[VOTES + OF_A_RANK * rank..][..OF_A_RANK];
        own[..2].copy_from_slice(&[self.made() as f64, seconds]);
        own[2..].copy_from_slice(&rank_times::numbers_of(&rank_times::mean(&times)));
        let tallies = numbers[VOTES + OF_A_RANK * ranks..].chunks_mut(TALLY);
        for (place, (tally, _)) in tallies.zip(&self.steps) {
            place.copy_from_slice(&[
                tally.loss_sum,
                tally.correct as f64,
                tally.predictions as f64,
                tally.samples as f64,
            ]);
        }
        group.all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        Ok(Account::of(&numbers, ranks))
    }
}

impl Account {
    fn of(numbers: &[f64], ranks: usize) -> Self {
        let (votes, rest) = numbers.split_at(VOTES);
        let (of_ranks, tallies) = rest.split_at(OF_A_RANK * ranks);
        let of_rank = |number: usize| of_ranks.iter().skip(number).step_by(OF_A_RANK).copied();
        let made = of_rank(0).map(|made| made as usize).collect::<Vec<_>>();
        let most = made.iter().copied().max().unwrap_or_default();
        let tallies = tallies.chunks(TALLY).take(most).map(|sums| Tally {
            loss_sum: sums[0],
            correct: sums[1] as u64,
            predictions: sums[2] as u64,
            samples: sums[3] as u64,
        });
        let times = of_ranks.chunks_exact(OF_A_RANK).flat_map(|own| &own[2..]);
        let times = rank_times::of_ranks(&times.copied().collect::<Vec<_>>(), |rank| rank);
        let memory = times.iter().filter_map(|times| times.peak_memory).max();
        Self {
            tallies: tallies.collect(),
            votes: Votes {
                stop: votes[0] > 0.0,
                save: votes[1] > 0.0,
                regroup: votes[2] > 0.0,
            },
            seconds: of_rank(1).collect(),
            times,
            peak_memory: memory,
            made,
        }
    }

    /// How many samples all ranks have learnt from.
    pub(super) fn samples(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.samples).sum()
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

    use super::*;

    fn tally(samples: u64) -> Tally {
        Tally {
            loss_sum: samples as f64 * 0.5,
            correct: samples / 2,
            predictions: samples,
            samples,
        }
    }

    #[test]
    fn rounds_of_unequal_length_add_up_step_by_step() {
        let groups = ProcessGroup::over_threads(3, GroupOptions::default());
        let ranks = groups.into_iter().map(|group| {
            std::thread::spawn(move || {
                // Rank 0 has just come, rank 1 is slow.
                let made = [0, 2, 4][group.rank()];
                let mut round = Round::begin(RankStep {
                    seconds: 0.5,
                    waited: 0.5,
                    ..RankStep::default()
                });
                for step in 0..made {
                    let times = RankStep {
                        seconds: if group.rank() == 1 { 6.0 } else { 1.0 },
                        forward: 0.25,
                        samples: Some(4 + step),
                        peak_memory: Some(100 * group.rank() as u64),
                        ..RankStep::default()
                    };
                    round.add(tally(4 + step), times);
                }
                let votes = Votes {
                    save: group.rank() == 2,
                    ..Votes::default()
                };
                round.settle(votes, 5, &group).unwrap()
            })
        });
        let accounts = ranks.collect::<Vec<_>>().into_iter();
        let accounts = accounts
            .map(|rank| rank.join().unwrap())
            .collect::<Vec<_>>();
        for account in &accounts {
            assert_eq!(account, &accounts[0]);
        }
        let account = &accounts[0];
        let samples = account.tallies.iter().map(|tally| tally.samples);
        assert_eq!(samples.collect::<Vec<_>>(), [8, 10, 6, 7]);
        assert_eq!(account.samples(), 31);
        assert_eq!(account.made, [0, 2, 4]);
        assert!(account.votes.save && !account.votes.stop);
        assert_eq!(account.peak_memory, Some(200));
        assert_eq!(account.pace(), Some(1.0));
        // Of the rank that made no step there is nothing to tell.
        let times = account.times.iter();
        let times = times.map(|it| (it.rank, it.seconds, it.waited, it.forward, it.samples));
        let expected = [
            (1, 6.25, 0.25, 0.25, Some(5)),
            (2, 1.125, 0.125, 0.25, Some(6)),
        ];
        assert_eq!(times.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_exchange_is_the_last_steps_and_steps_of_others_cost_nothing() {
        let mut round = Round::begin(RankStep::default());
        let times = RankStep {
            seconds: 2.0,
            ..RankStep::default()
        };
        round.add(tally(1), times);
        let exchange = StepCost {
            seconds: 1.0,
            gradient_bytes: 7,
            ..StepCost::default()
        };
        let seconds = round
            .costs(3, exchange)
            .into_iter()
            .map(|cost| cost.seconds);
        assert_eq!(seconds.collect::<Vec<_>>(), [2.0, 0.0, 1.0]);
        let one = round.costs(1, exchange);
        assert_eq!((one[0].seconds, one[0].gradient_bytes), (3.0, 7));
    }
}
