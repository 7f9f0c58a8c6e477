//! The one all-reduce after a step, or after several steps together: metrics and votes.
//!
//! A message has, one after the other, the votes, the sums of each step in the order of a [`MetricLayout`], and for
//! each rank of the group a place with as many numbers, in which all but that rank have zeros: so that a sum hands
//! out what each rank has.

use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp, Work};
use everburn_record::RankStep;

use crate::metrics::layout::MetricLayout;
use crate::metrics::rank_times::{self, NUMBERS, PastStep};
use crate::metrics::sums::MetricSums;

/// What a rank votes for after a step, and then what any rank has voted for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Votes {
    pub(crate) stop: bool,
    /// A checkpoint is due.
    pub(crate) save: bool,
    /// A rank waits to join.
    pub(crate) regroup: bool,
    /// A hook has a request for all ranks.
    pub(crate) hook_requests: bool,
}

impl Votes {
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            stop: self.stop || other.stop,
            save: self.save || other.save,
            regroup: self.regroup || other.regroup,
            hook_requests: self.hook_requests || other.hook_requests,
        }
    }
}

const VOTES: usize = 4;

/// The shape of a message, the same on all ranks.
#[derive(Debug, Clone)]
pub(crate) struct StepCodec {
    pub(crate) layout: MetricLayout,
    pub(crate) steps: usize,
    /// How many numbers each rank has of its own.
    pub(crate) own: usize,
    pub(crate) ranks: usize,
}

/// What a message says, once it is added up.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepNumbers {
    pub(crate) votes: Votes,
    /// By step, over all ranks.
    pub(crate) sums: Vec<MetricSums>,
    /// By rank, its own numbers.
    pub(crate) of_ranks: Vec<Vec<f64>>,
}

impl StepCodec {
    /// What rank `rank` tells: the sums of as many steps as it has made, at most those of the message, and its `own`
    /// numbers.
    ///
    /// # Panics
    /// Panics if there are other than as many numbers of its own, or more steps.
    pub(crate) fn pack<'a>(
        &self,
        votes: Votes,
        sums: impl IntoIterator<Item = &'a MetricSums>,
        rank: usize,
        own: &[f64],
    ) -> Vec<f64> {
        let Votes {
            stop,
            save,
            regroup,
            hook_requests,
        } = votes;
        let width = self.layout.width();
        let behind = VOTES + self.steps * width;
        let mut numbers = vec![0.0; behind + self.own * self.ranks];
        numbers[..VOTES].copy_from_slice(&[stop, save, regroup, hook_requests].map(f64::from));
        for (step, sums) in sums.into_iter().enumerate() {
            let place = &mut numbers[VOTES..behind][step * width..][..width];
            self.layout.write(sums, place);
        }
        numbers[behind + rank * self.own..][..self.own].copy_from_slice(own);
        numbers
    }

    /// What the sum of all ranks' messages says.
    pub(crate) fn unpack(&self, numbers: &[f64]) -> StepNumbers {
        let (votes, rest) = numbers.split_at(VOTES);
        let width = self.layout.width();
        let (sums, of_ranks) = rest.split_at(self.steps * width);
        let sums = sums.chunks_exact(width);
        let of_rank = |rank: usize| of_ranks[rank * self.own..][..self.own].to_vec();
        StepNumbers {
            votes: Votes {
                stop: votes[0] > 0.0,
                save: votes[1] > 0.0,
                regroup: votes[2] > 0.0,
                hook_requests: votes[3] > 0.0,
            },
            sums: sums.map(|numbers| self.layout.read(numbers)).collect(),
            of_ranks: (0..self.ranks).map(of_rank).collect(),
        }
    }
}

/// What a rank sends to the others after a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalReply<'a> {
    pub(crate) sums: &'a MetricSums,
    pub(crate) votes: Votes,
    /// What memory this rank has used, in bytes.
    pub(crate) memory: Option<u64>,
    /// What the step before was for this rank, if it has made one; sent by all ranks or by none.
    pub(crate) past: Option<Option<PastStep>>,
}

impl LocalReply<'_> {
    pub(crate) fn send(self, layout: MetricLayout, group: &ProcessGroup) -> PendingReply {
        let mut own = vec![self.memory.unwrap_or(0) as f64];
        if let Some(past) = self.past {
            own.extend(past.map_or([0.0; NUMBERS], |past| past.numbers()));
        }
        let codec = StepCodec {
            layout,
            steps: 1,
            own: own.len(),
            ranks: group.world_size(),
        };
        let numbers = codec.pack(self.votes, [self.sums], group.rank(), &own);
        PendingReply {
            numbers: group.all_reduce(numbers, ReduceOp::Sum),
            codec,
        }
    }
}

/// The sums of a step on their way between the ranks.
pub(crate) struct PendingReply {
    numbers: Work<Vec<f64>>,
    codec: StepCodec,
}

impl PendingReply {
    pub(crate) fn wait(self) -> Result<StepReply, CollectiveError> {
        let told = self.codec.unpack(&self.numbers.wait()?);
        let memory = told.of_ranks.iter().map(|own| own[0] as u64).max();
        let past: Vec<f64> = told
            .of_ranks
            .iter()
            .flat_map(|own| &own[1..])
            .copied()
            .collect();
        Ok(StepReply {
            sums: told.sums.into_iter().next().unwrap_or_default(),
            votes: told.votes,
            peak_memory: memory.filter(|bytes| *bytes > 0),
            past: rank_times::of_ranks(&past, |rank| rank),
        })
    }
}

/// What all ranks together found in a step: the same on every rank.
pub(crate) struct StepReply {
    pub(crate) sums: MetricSums,
    pub(crate) votes: Votes,
    /// The most memory that a rank has told of, in bytes.
    pub(crate) peak_memory: Option<u64>,
    /// What the step before was for each rank of the group, where they have told.
    pub(crate) past: Vec<RankStep>,
}

/// What all ranks together found in a step, once it is there.
pub(crate) enum Verdict {
    Pending(PendingReply),
    Known(StepReply),
}

impl Verdict {
    pub(crate) fn known(self) -> Result<Self, CollectiveError> {
        Ok(Self::Known(self.wait()?))
    }

    pub(crate) fn wait(self) -> Result<StepReply, CollectiveError> {
        match self {
            Self::Pending(pending) => pending.wait(),
            Self::Known(reply) => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;
    use everburn_tests::in_parallel;

    use super::*;

    fn sums(rank: usize) -> MetricSums {
        let rank = rank as f64;
        let sums = MetricSums {
            loss_sum: 0.5 + rank,
            predictions: 2,
            samples: 1,
            ..MetricSums::default()
        };
        sums.with_metric("mae", rank, 1.0)
    }

    #[test]
    fn what_each_rank_has_is_told_to_all() {
        let codec = StepCodec {
            layout: MetricLayout::of(&sums(0)),
            steps: 2,
            own: 2,
            ranks: 3,
        };
        let votes = |rank| Votes {
            save: rank == 1,
            ..Votes::default()
        };
        // Rank 1 has an empty share of the second step, and rank 2 has made none.
        let steps = [
            vec![sums(0), sums(1)],
            vec![sums(2), MetricSums::default()],
            vec![],
        ];
        let messages = steps.iter().enumerate().map(|(rank, steps)| {
            let own = [rank as f64, 10.0];
            codec.pack(votes(rank), steps, rank, &own)
        });
        let messages: Vec<Vec<f64>> = messages.collect();
        let mut all = vec![0.0; messages[0].len()];
        for message in &messages {
            assert_eq!(message.len(), all.len());
            for (sum, number) in all.iter_mut().zip(message) {
                *sum += number;
            }
        }
        let told = codec.unpack(&all);
        assert_eq!(told.votes, votes(1));
        assert_eq!(told.sums, [sums(0) + sums(2), sums(1)]);
        assert_eq!(told.of_ranks, [[0.0, 10.0], [1.0, 10.0], [2.0, 10.0]]);
    }

    #[test]
    fn a_reply_has_the_sums_of_all_ranks_and_what_each_was_told() {
        let groups = ProcessGroup::over_threads(2, GroupOptions::default());
        let replies = in_parallel(groups, |group| {
            let times = RankStep {
                seconds: 0.5,
                ..RankStep::default()
            };
            let own = match group.rank() {
                0 => MetricSums::default(),
                rank => sums(rank),
            };
            let reply = LocalReply {
                sums: &own,
                votes: Votes {
                    stop: group.rank() == 0,
                    ..Votes::default()
                },
                memory: Some(100 + group.rank() as u64),
                past: Some((group.rank() == 1).then_some(PastStep { step: 3, times })),
            };
            let layout = MetricLayout::of(&sums(0));
            reply.send(layout, &group).wait().unwrap()
        });
        for reply in replies {
            assert_eq!(reply.sums, sums(1));
            assert!(reply.votes.stop && !reply.votes.save);
            assert_eq!(reply.peak_memory, Some(101));
            assert_eq!(reply.past.len(), 1);
            assert_eq!((reply.past[0].rank, reply.past[0].seconds), (1, 0.5));
        }
    }
}
