//! Buckets on a device: gradients are kept as they come, and copied into a flat buffer when the bucket is complete.

use std::fmt;
use std::sync::Arc;

use burn::prelude::*;

use super::host_buckets::Arrival;
use crate::bucket::{Bucket, BucketEntry};
use crate::device::{
    DeviceCollective, DeviceCommunicator, FlatLayout, PendingTensor, Ready, flatten, segments,
};
use crate::error::DdpError;
use crate::gradient::Gradient;
use crate::sharding::MemoryTracker;
use crate::sharding::layout::{ShardLayout, ShardedBucket};

/// The gradients of a step on their device.
pub(super) struct DeviceBuckets {
    device: Device,
    /// `None` for a rank that is alone.
    communicator: Option<Arc<dyn DeviceCommunicator>>,
    /// No flat buffers are made: there is no other rank and nothing to clip.
    stay_apart: bool,
    /// How they are sharded, if each rank gets its shards of the sums alone, and what counts the memory of buckets.
    shards: Option<(ShardLayout, MemoryTracker)>,
    /// By parameter: its gradient, until its bucket is full.
    held: Vec<Option<Gradient>>,
    /// By bucket: the sum of its flat buffer, under way.
    sums: PendingSums,
}

/// By bucket: the sum of its flat buffer, under way.
pub(super) type PendingSums = Vec<Option<Box<dyn PendingTensor>>>;

impl DeviceBuckets {
    pub(super) fn new(
        device: Device,
        communicator: Option<Arc<dyn DeviceCommunicator>>,
        clips: bool,
        buckets: usize,
        parameters: usize,
    ) -> Self {
        Self {
            device,
            stay_apart: communicator.is_none() && !clips,
            communicator,
            shards: None,
            held: (0..parameters).map(|_| None).collect(),
            sums: (0..buckets).map(|_| None).collect(),
        }
    }

    /// The same, where each rank gets its shards of the sums alone.
    pub(super) fn scattered(self, layout: ShardLayout, tracker: MemoryTracker) -> Self {
        Self {
            shards: Some((layout, tracker)),
            ..self
        }
    }

    /// Keeps a gradient, or adds it to that of an earlier pass.
    pub(super) fn put(
        &mut self,
        arrival: Arrival,
        gradient: Gradient,
        expected: &BucketEntry,
    ) -> Result<(), String> {
        let Arrival { number, factor, .. } = arrival;
        if self.shards.is_some() {
            arrival.check_only()?;
        }
        if gradient.device() != self.device {
            return Err(format!(
                "it is on {:?}, and this rank's device is {:?}: build the model and its batches there",
                gradient.device(),
                self.device
            ));
        }
        let found = (gradient.shape(), gradient.dtype());
        if found != (expected.shape.clone(), expected.dtype) {
            return Err(format!(
                "it is {:?} of {:?}, and the parameter is {:?} of {:?}",
                found.0, found.1, expected.shape, expected.dtype
            ));
        }
        let sum = match self.held[number].take() {
            None => gradient.times(factor),
            Some(before) => before.plus(gradient, factor),
        };
        self.held[number] = Some(sum);
        Ok(())
    }

    /// Flattens bucket `index`, weighted by `share`, and begins its sum.
    pub(super) fn launch(
        &mut self,
        index: usize,
        bucket: &Bucket,
        share: f64,
    ) -> Result<(), DdpError> {
        if self.stay_apart {
            return Ok(());
        }
        let parts = bucket.parameters().iter();
        let parts: Vec<_> = parts.map(|number| self.held[*number].take()).collect();
        if let (Some((layout, tracker)), Some(communicator)) = (&self.shards, &self.communicator) {
            let layout = ShardedBucket::of(bucket, *layout);
            let bytes = layout.gradients() * bucket.dtype().size();
            // The communicator keeps it until it is over, which the host does not see: one bucket counts.
            let _memory = tracker.track(bytes as u64);
            let whole = segments(parts, bucket, &layout, share, &self.device);
            let scatter = DeviceCollective::ReduceScatter { bucket: index };
            self.sums[index] = Some(communicator.begin_collective(scatter, whole)?);
            return Ok(());
        }
        let layout = FlatLayout::of(bucket);
        let flat = flatten(&parts, &layout, bucket.dtype(), share, &self.device);
        drop(parts);
        self.sums[index] = Some(match &self.communicator {
            // The sum over a rank that is alone.
            None => Box::new(Ready(flat)),
            Some(communicator) => communicator.begin(index, flat)?,
        });
        Ok(())
    }

    /// Takes the gradients by parameter and the sums by bucket.
    pub(super) fn take(&mut self) -> (Vec<Option<Gradient>>, PendingSums) {
        let sums = std::mem::take(&mut self.sums);
        (std::mem::take(&mut self.held), sums)
    }
}

impl fmt::Debug for DeviceBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuckets")
            .field("device", &self.device)
            .field("communicator", &self.communicator)
            .finish_non_exhaustive()
    }
}
