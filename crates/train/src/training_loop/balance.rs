//! Ranks of different speed share the samples of each global batch in proportion to it.
//!
//! Each rank measures how long it computes per sample: reading, forward and backward passes, without waiting for other
//! ranks. After the first [`FIRST`] steps of a group, and at the begin of each epoch, all ranks gather the medians of
//! all, and each derives the same shares from them. An engine reads its batches by one division; where the shares
//! change, another engine continues after the batches that are done. What is in a global batch does not depend on
//! the shares, so no sample is left out or read twice.

use std::collections::VecDeque;

use everburn_distributed::RankWeights;
use everburn_record::units::counted;
use everburn_record::units::seconds;

use super::RankLoop;
use crate::config::balance::Balance;
use crate::error::TrainError;

/// The steps of a group after which its ranks compare their times for the first time: the first few are slower, as
/// kernels are compiled and memory is mapped in them, and are less than half of these.
const FIRST: usize = 20;

/// How many of the newest steps a rank's speed is the median of, and the fewest that it is found by.
const NEWEST: usize = FIRST;
const FEWEST: usize = 10;

/// The part of a step's time that must be saved for shares to change: less is noise, and kernels for batches of other
/// sizes would have to be tuned.
const LEAST_GAIN: f64 = 0.05;

/// How many ranks the message names.
const NAMED: usize = 16;

/// How fast this rank is.
#[derive(Debug)]
pub(super) struct Balancer {
    /// The seconds per sample of the newest steps with the present shares.
    per_sample: VecDeque<f64>,
    /// The step after which ranks compare their times within an epoch.
    first: usize,
}

impl Balancer {
    fn after(step: usize) -> Self {
        Self {
            per_sample: VecDeque::with_capacity(NEWEST),
            first: step + FIRST,
        }
    }

    fn measure(&mut self, samples: usize, seconds: f64) {
        if samples == 0 {
            return;
        }
        if self.per_sample.len() == NEWEST {
            self.per_sample.pop_front();
        }
        self.per_sample.push_back(seconds / samples as f64);
    }

    /// The seconds per sample; 0 where too few steps were measured.
    fn speed(&self) -> f64 {
        if self.per_sample.len() < FEWEST {
            return 0.0;
        }
        let mut sorted: Vec<f64> = self.per_sample.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// Shares of what ranks have `units` of, each in its `per_unit` seconds, where these save enough; the same on every
/// rank, of the same numbers. `None` also where a rank has not measured enough.
fn better_shares(units: &[usize], per_unit: &[f64]) -> Option<RankWeights> {
    let are_known = per_unit
        .iter()
        .all(|seconds| seconds.is_finite() && *seconds > 0.0);
    if !are_known {
        return None;
    }
    let all = units.iter().sum();
    let weights = RankWeights::of_speed(all, per_unit);
    let slowest = |units: &[usize]| {
        let times = units.iter().zip(per_unit);
        let times = times.map(|(units, seconds)| *units as f64 * seconds);
        times.fold(0.0, f64::max)
    };
    let (before, after) = (slowest(units), slowest(&weights.counts(all)));
    (after < before * (1.0 - LEAST_GAIN)).then_some(weights)
}

/// What the shares are, and by which times.
fn message(members: &[usize], samples: &[usize], per_sample: &[f64]) -> String {
    let all: usize = samples.iter().sum();
    let ranks = members.iter().zip(samples).zip(per_sample).take(NAMED);
    let ranks = ranks.enumerate().map(|(at, ((rank, samples), time))| {
        let of = match at {
            0 => format!("{samples} samples of {all}"),
            _ => samples.to_string(),
        };
        format!("rank {rank}: {of} ({} each)", seconds(*time))
    });
    let ranks = ranks.collect::<Vec<_>>().join(", ");
    match samples.len().saturating_sub(NAMED) {
        0 => format!("samples are shared by speed: {ranks}"),
        more => format!(
            "samples are shared by speed: {ranks}, and {} more",
            counted(more, "rank")
        ),
    }
}

impl RankLoop {
    /// A group begins with equal shares, where they are to follow the speed of its ranks.
    pub(super) fn begin_balancing(&mut self) -> Result<(), TrainError> {
        if self.setup.config.balance != Balance::Auto {
            return Ok(());
        }
        let (rank, world_size) = (self.setup.group.rank(), self.setup.group.world_size());
        self.setup.train = self.setup.train.clone().on_rank(rank, world_size)?;
        if let Some(loader) = &mut self.setup.validation {
            *loader = loader.clone().on_rank(rank, world_size)?;
        }
        self.balancer = (world_size > 1).then(|| Balancer::after(self.outcome.step));
        Ok(())
    }

    /// Refuses to measure where the host does not know how long a rank computes.
    pub(super) fn check_balancing(&self, has_communicator: bool) -> Result<(), TrainError> {
        match self.balancer.is_some() && has_communicator {
            true => Err(TrainError::Config(
                "`training.balance = auto` and gradients that GPUs exchange by themselves do not go together: the host \
                 does not see how long a rank computes; use `ranks.backend = host`, or give weights, as in \
                 `training.balance = 3,1`"
                    .to_string(),
            )),
            false => Ok(()),
        }
    }

    /// Remembers that this rank has computed `seconds` on its local batch.
    pub(super) fn measure(&mut self, samples: usize, seconds: f64) {
        let Some(balancer) = &mut self.balancer else {
            return;
        };
        let seconds = match &self.setup.compute_seconds {
            Some(compute_seconds) => compute_seconds(samples, seconds),
            None => seconds,
        };
        balancer.measure(samples, seconds);
    }

    /// Compares the ranks' times, where they are due within an epoch after the newest step: once for each group.
    /// Whether the ranks now have other shares.
    pub(super) fn rebalance_after_step(&mut self) -> Result<bool, TrainError> {
        let step = self.outcome.step;
        match &self.balancer {
            Some(balancer) if balancer.first == step => self.rebalance(),
            _ => Ok(false),
        }
    }

    /// Compares the ranks' times, and changes their shares where that saves enough. Whether they have changed, which is
    /// the same on all ranks.
    pub(super) fn rebalance(&mut self) -> Result<bool, TrainError> {
        let Some(balancer) = &mut self.balancer else {
            return Ok(false);
        };
        let gathered = self.setup.group.all_gather(vec![balancer.speed()]).wait()?;
        let per_sample = gathered.concat();
        let units = self.setup.train.sampler().units();
        let Some(weights) = better_shares(&units, &per_sample) else {
            return Ok(false);
        };
        // A time per sample depends on how many there are.
        balancer.per_sample.clear();
        self.setup.train = self.setup.train.clone().balanced(weights.clone())?;
        if let Some(loader) = &mut self.setup.validation {
            *loader = loader.clone().balanced(weights)?;
        }
        if self.is_first() {
            let samples = self.setup.train.sampler().local_batches();
            tracing::info!("{}", message(&self.members(), &samples, &per_sample));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_times_where_that_saves_enough() {
        let shares = |units: &[usize], times: &[f64]| {
            better_shares(units, times).map(|weights| weights.to_string())
        };
        assert_eq!(shares(&[32, 32], &[1.0, 3.0]).unwrap(), "48,16");
        assert_eq!(shares(&[48, 16], &[1.0, 3.0]), None, "nothing to save");
        assert_eq!(shares(&[32, 32], &[1.0, 1.04]), None, "too little to save");
        assert_eq!(shares(&[2, 2], &[1.0, 2.0]).unwrap(), "3,1", "shards");
        assert_eq!(shares(&[1, 1], &[1.0, 9.0]), None, "each has one");
        for unknown in [0.0, f64::NAN, f64::INFINITY] {
            assert_eq!(shares(&[32, 32], &[1.0, unknown]), None);
        }
    }

    #[test]
    fn a_ranks_speed_is_the_median_of_its_newest_steps() {
        let mut balancer = Balancer::after(7);
        assert_eq!(balancer.first, 7 + FIRST);
        for step in 0..FEWEST {
            assert_eq!(balancer.speed(), 0.0, "{step} steps are too few");
            balancer.measure(0, 5.0);
            balancer.measure(4, if step < 2 { 400.0 } else { 2.0 });
        }
        assert_eq!(balancer.speed(), 0.5, "the first steps do not count");
        for _ in 0..NEWEST {
            balancer.measure(2, 6.0);
        }
        assert_eq!(balancer.speed(), 3.0);
        assert_eq!(balancer.per_sample.len(), NEWEST);
    }

    #[test]
    fn the_message_names_ranks_samples_and_times() {
        assert_eq!(
            message(&[0, 2], &[48, 16], &[0.0012, 0.0036]),
            "samples are shared by speed: rank 0: 48 samples of 64 (1.2 ms each), rank 2: 16 (3.6 ms each)"
        );
        let many = message(&(0..20).collect::<Vec<_>>(), &[3; 20], &[0.5; 20]);
        assert!(
            many.ends_with("rank 15: 3 (500 ms each), and 4 ranks more"),
            "{many}"
        );
    }
}
