//! The gradients of logical shards, added up along their tree as they come.

use std::ops::Range;

use burn::tensor::TensorData;

use super::upper_sums::UpperSums;
use crate::bucket::BucketPlan;
use crate::error::DdpError;
use crate::host::{HostBuffer, Put};
use crate::shared::Shared;
use crate::virtual_ranks::{Addition, VirtualRanks};

/// What a step over logical shards keeps besides a step's usual buffers, which are the lowest sums of
/// each bucket's stack.
#[derive(Debug)]
pub(super) struct VirtualStep {
    ranks: VirtualRanks,
    additions: Vec<Addition>,
    /// By own logical shard: its share of all samples.
    shares: Vec<f64>,
    /// By own logical shard: how many samples it has.
    samples: Vec<usize>,
    /// By parameter: how many of the own logical shards have been added.
    added: Vec<usize>,
    /// By bucket: the upper sums of the stack.
    upper: Vec<UpperSums>,
}

impl VirtualStep {
    /// A step in which the own logical shards have `samples` each, of `all`.
    pub(super) fn new(
        ranks: VirtualRanks,
        samples: &[usize],
        all: usize,
        shared: &Shared,
        plan: &BucketPlan,
    ) -> Result<Self, DdpError> {
        if samples.len() != ranks.own().len() {
            return Err(DdpError::MicroBatches {
                announced: ranks.own().len(),
                found: samples.len(),
            });
        }
        let additions = ranks.additions();
        // What is merged at once needs no place of its own.
        let stays = additions.iter().filter(|addition| addition.merges == 0);
        let highest = stays.map(|addition| addition.slot).max().unwrap_or(0);
        let spare = shared.spare_sums();
        let upper = plan.buckets().iter().map(|bucket| {
            let length = bucket.length_with_flags();
            spare.take(highest, bucket.dtype(), length)
        });
        Ok(Self {
            upper: upper.collect(),
            shares: samples
                .iter()
                .map(|own| *own as f64 / all.max(1) as f64)
                .collect(),
            samples: samples.to_vec(),
            added: vec![0; shared.parameters.len()],
            additions,
            ranks,
        })
    }

    pub(super) fn ranks(&self) -> VirtualRanks {
        self.ranks.clone()
    }

    /// How many samples the own logical shard `own` has, and whether none after it has any.
    pub(super) fn pass(&self, own: usize) -> (usize, bool) {
        let rest = self.samples.get(own + 1..).unwrap_or_default();
        let samples = self.samples.get(own).copied().unwrap_or(0);
        (samples, rest.iter().all(|samples| *samples == 0))
    }

    /// Adds the gradient of a parameter that is `range` of a bucket, whose lowest sum is `lowest`.
    pub(super) fn add(
        &mut self,
        mut place: BucketRange<'_>,
        own: usize,
        gradient: &TensorData,
    ) -> Result<(), String> {
        self.add_zeros(&mut place, own)?;
        self.add_one(&mut place, Some(gradient))
    }

    /// Adds zeros for the logical shards that have produced no gradient.
    pub(super) fn complete(&mut self, mut place: BucketRange<'_>) -> Result<(), String> {
        self.add_zeros(&mut place, self.additions.len())
    }

    /// The same for those below `own`.
    fn add_zeros(&mut self, place: &mut BucketRange<'_>, own: usize) -> Result<(), String> {
        while self.added[place.number] < own {
            self.add_one(place, None)?;
        }
        Ok(())
    }

    /// The sums of a bucket above the lowest. Flags of used parameters are in the lowest one.
    pub(super) fn take_upper(&mut self, bucket: usize, flags: Range<usize>) -> UpperSums {
        let mut upper = std::mem::take(&mut self.upper[bucket]);
        upper.truncate(self.ranks.num_nodes() - 1);
        for sum in &mut *upper {
            sum.clear(flags.clone());
        }
        upper
    }

    fn add_one(
        &mut self,
        place: &mut BucketRange<'_>,
        gradient: Option<&TensorData>,
    ) -> Result<(), String> {
        let (lowest, range) = (&mut *place.lowest, &place.range);
        let own = self.added[place.number];
        self.added[place.number] += 1;
        let Addition { slot, merges } = self.additions[own];
        let upper = &mut self.upper[place.bucket];
        let (target, how) = match merges {
            0 => (slot, Put::Replace),
            _ => (slot - 1, Put::Add),
        };
        let sum = match target {
            0 => &mut *lowest,
            upper_slot => &mut upper[upper_slot - 1],
        };
        match (gradient, how) {
            (Some(gradient), how) => sum.put(range.clone(), gradient, self.shares[own], how)?,
            (None, Put::Replace) => sum.clear(range.clone()),
            // Zero is added all the same: it makes a negative zero positive, as it does between ranks.
            (None, Put::Add) => sum.add_zero(range.clone()),
        }
        for merge in 1..merges {
            let from = slot - merge;
            let (below, above) = upper.split_at_mut(from - 1);
            let into = match below.last_mut() {
                Some(below) => below,
                None => &mut *lowest,
            };
            into.add(range.clone(), &above[0]);
        }
        Ok(())
    }
}

/// A parameter's range of its bucket.
pub(super) struct BucketRange<'a> {
    pub(super) bucket: usize,
    pub(super) number: usize,
    pub(super) range: Range<usize>,
    /// The lowest sum of the bucket's stack.
    pub(super) lowest: &'a mut HostBuffer,
}
