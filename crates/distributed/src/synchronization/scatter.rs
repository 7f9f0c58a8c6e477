//! Buckets that are reduce-scattered: filled from one backward pass, sent when full, and freed then.

use std::time::Instant;

use everburn_collectives::sync::lock;

use super::Synchronization;
use super::device_sum::DeviceSum;
use super::host_buckets::Arrival;
use super::step::Contents;
use crate::bucket::{BucketEntry, BucketPlan};
use crate::error::DdpError;
use crate::gradient::Gradient;
use crate::host::HostBuffer;
use crate::reducer::{Outcome, ScatterLoad};
use crate::sharding::layout::{ShardLayout, ShardedBucket};
use crate::sharding::{GradientShard, GradientShards, MemoryTracker, TrackedMemory};
use crate::shared::Shared;
use crate::synchronization::Communication;

/// The gradients of a step, on their way to the ranks that keep them.
#[derive(Debug)]
pub(super) struct ScatterBuckets {
    layouts: Vec<ShardedBucket>,
    filling: Vec<Option<Filling>>,
    tracker: MemoryTracker,
}

/// A bucket that is being filled.
#[derive(Debug)]
pub(super) struct Filling {
    buffer: HostBuffer,
    memory: TrackedMemory,
}

impl ScatterBuckets {
    pub(super) fn new(plan: &BucketPlan, shards: ShardLayout, tracker: MemoryTracker) -> Self {
        let buckets = plan.buckets();
        Self {
            layouts: buckets
                .iter()
                .map(|b| ShardedBucket::of(b, shards))
                .collect(),
            filling: buckets.iter().map(|_| None).collect(),
            tracker,
        }
    }

    /// The bucket `index`, created with zeros if it is new.
    fn bucket(&mut self, index: usize, entry: &BucketEntry) -> Result<&mut Filling, String> {
        let filling = &mut self.filling[index];
        if filling.is_none() {
            let elements = self.layouts[index].elements();
            let buffer = HostBuffer::zeroed(entry.dtype, elements);
            let buffer = buffer.ok_or("its type of number cannot be averaged")?;
            let memory = self.tracker.track((elements * entry.dtype.size()) as u64);
            *filling = Some(Filling { buffer, memory });
        }
        filling
            .as_mut()
            .ok_or_else(|| "it was not created".to_string())
    }

    /// Copies the shards of a gradient into its bucket.
    pub(super) fn put(
        &mut self,
        arrival: Arrival,
        gradient: Gradient,
        plan: &BucketPlan,
        entry: &BucketEntry,
    ) -> Result<(), String> {
        arrival.check_only()?;
        let data = gradient.read()?;
        let elements = entry.num_elements();
        if data.num_elements() != elements {
            return Err(format!(
                "it has {} elements instead of {elements}",
                data.num_elements()
            ));
        }
        let (index, slot) = plan.place(arrival.number);
        let layout = self.layouts[index].clone();
        let filling = self.bucket(index, entry)?;
        for rank in 0..layout.shards.world_size {
            let from = layout.shards.of_rank(rank, elements);
            let start = layout.shard_of(rank, slot).start;
            filling.buffer.put_part(start, &data, from)?;
        }
        Ok(())
    }

    /// The bucket `index`, ready to send; `used` says which parameters this rank has gradients of. Fails if it could not be
    /// created.
    pub(super) fn load(
        &mut self,
        index: usize,
        plan: &BucketPlan,
        used: &[bool],
        shared: &Shared,
    ) -> Result<ScatterLoad, DdpError> {
        let numbers = plan.buckets()[index].parameters();
        let layout = self.layouts[index].clone();
        let first = &shared.parameters[numbers[0]];
        let filling = self.bucket(index, first);
        let filling = filling.map_err(|reason| shared.unread(numbers[0], reason))?;
        for rank in 0..layout.shards.world_size {
            for (slot, number) in numbers.iter().enumerate() {
                let place = rank * layout.segment() + layout.flag(slot);
                filling.buffer.set_flag(place, used[*number]);
            }
        }
        let filling = self.filling[index].take();
        let Filling { buffer, memory } = filling.expect("it was created above");
        Ok(ScatterLoad {
            index,
            layout,
            buffer,
            memory,
        })
    }

    /// Keeps the bucket, on a rank that is alone.
    pub(super) fn keep(&mut self, load: ScatterLoad) {
        let (buffer, memory) = (load.buffer, load.memory);
        self.filling[load.index] = Some(Filling { buffer, memory });
    }

    fn take_filled(&mut self) -> Vec<Option<HostBuffer>> {
        let filled = self.filling.iter_mut().map(Option::take);
        filled.map(|filling| Some(filling?.buffer)).collect()
    }
}

impl Synchronization {
    /// As [`finish`](Synchronization::finish), for a step with sharded gradients ([`crate::DdpConfig::shard`]): this
    /// rank's shards of the mean gradients.
    ///
    /// # Errors
    /// As [`finish`](Synchronization::finish), but for gradients that are NaN or infinite.
    pub fn finish_sharded(self) -> Result<GradientShards, DdpError> {
        let on_device = matches!(lock(&self.step).contents, Contents::Device(_));
        let result = match on_device {
            true => self.complete_on_device().and_then(DeviceSum::give_shards),
            false => self.complete_scattered(),
        };
        self.conclude(result)
    }

    /// Ends a step in host memory, of which each rank has its shards: unlike the other two ends it keeps a segment of each
    /// bucket, whose flags say which of its parameters some rank used.
    fn complete_scattered(&self) -> Result<GradientShards, DdpError> {
        let start = self.waiting_since.unwrap_or_else(Instant::now);
        let shared = self.ddp.shared();
        let asks_for_order = shared.wants_order();
        let mut step = lock(&self.step);
        let expected = step.close_and_submit(asks_for_order)?;
        let plan = step.plan.clone();
        let (own_samples, own) = (step.samples, step.used().to_vec());
        let mut samples = own_samples as u64;
        let Contents::Scatter(buckets) = &mut step.contents else {
            return Err(not_sharded());
        };
        let layouts = buckets.layouts.clone();
        let mut segments = buckets.take_filled();
        drop(step);
        let (mut order, mut communication) = (Vec::new(), Communication::default());
        if let Some(reducer) = &shared.reducer {
            self.receive(reducer, expected, |report| {
                communication.busy += report.busy;
                match report.outcome? {
                    Outcome::Samples(all) => samples = all,
                    Outcome::Segment { index, buffer } => {
                        communication.bytes += report.bytes;
                        segments[index] = Some(buffer);
                    }
                    Outcome::Order(offered) => order = offered,
                    Outcome::Bucket { .. } | Outcome::Used(_) => {}
                }
                Ok(())
            })?;
            communication.exposed = start.elapsed();
        }
        lock(&self.step).late()?;
        if samples == 0 {
            return Err(DdpError::NoSamples);
        }
        let mut used = own.clone();
        let mut shards: Vec<Option<GradientShard>> = used.iter().map(|_| None).collect();
        for ((bucket, layout), segment) in plan.buckets().iter().zip(&layouts).zip(segments) {
            let Some(segment) = segment else { continue };
            for (slot, number) in bucket.parameters().iter().enumerate() {
                used[*number] = segment.flag(layout.flag(slot));
                let shard = used[*number].then(|| segment.part(layout.shard(slot)));
                shards[*number] = shard.map(GradientShard::Host);
            }
        }
        self.remember(used, &own, own_samples, &order)?;
        Ok(GradientShards {
            shards,
            samples,
            communication,
        })
    }
}

/// The error of a step whose gradients every rank has in full.
pub(super) fn not_sharded() -> DdpError {
    DdpError::Config(
        "gradients are sharded only if `DdpConfig::shard` says so: call `finish`".to_string(),
    )
}

/// The error of a step whose gradients no rank has in full.
pub(super) fn only_shards() -> DdpError {
    DdpError::Config(
        "gradients are sharded, and no rank has all of them: call `finish_sharded`".to_string(),
    )
}
