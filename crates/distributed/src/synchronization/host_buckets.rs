//! Buckets in host memory, which leave for the reducer when they are full.

use burn::tensor::TensorData;

use super::virtual_step::{BucketRange, VirtualStep};
use crate::bucket::BucketPlan;
use crate::error::DdpError;
use crate::gradient::Gradient;
use crate::host::{HostBuffer, Put};
use crate::reducer::{Load, Share};
use crate::shared::Shared;

/// The gradients of a step in host memory.
#[derive(Debug)]
pub(super) struct HostBuckets {
    pub(super) filling: Vec<Filling>,
    /// By parameter: the memory in which its gradient came, for the one that goes out.
    spent: Vec<Option<TensorData>>,
    /// For a step over logical shards.
    pub(super) over_virtual: Option<VirtualStep>,
}

/// A bucket that is being filled.
#[derive(Debug)]
pub(super) struct Filling {
    /// `None` once it has left.
    pub(super) buffer: Option<HostBuffer>,
    scaling: Scaling,
}

/// Whether gradients are multiplied by this rank's share as they are put into a bucket, which saves
/// a way through memory, or by the reducer. Both ways lead to the same bits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    Undecided,
    Here(f64),
    ByReducer,
}

/// A gradient of one pass on its way into a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) number: usize,
    /// The pass's share of this rank's samples in the step.
    pub(super) factor: f64,
    /// No other pass follows in the step.
    pub(super) last: bool,
    /// The number of this rank's logical shard that it is of.
    pub(super) own: Option<usize>,
    /// An earlier pass has brought one.
    pub(super) used: bool,
}

impl Arrival {
    /// Refuses a gradient that is not the only one of its parameter in its step: shards of it leave at once.
    pub(super) fn check_only(&self) -> Result<(), String> {
        if self.used || !self.last || self.factor != 1.0 {
            return Err(
                "a step with sharded gradients has one pass: begin another one for \
                 each micro-batch"
                    .to_string(),
            );
        }
        Ok(())
    }
}

impl HostBuckets {
    pub(super) fn new(buffers: Vec<HostBuffer>, parameters: usize) -> Self {
        let filling = buffers.into_iter().map(|buffer| Filling {
            buffer: Some(buffer),
            scaling: Scaling::Undecided,
        });
        Self {
            filling: filling.collect(),
            spent: (0..parameters).map(|_| None).collect(),
            over_virtual: None,
        }
    }

    /// Puts a gradient at its place in its bucket.
    pub(super) fn put(
        &mut self,
        arrival: Arrival,
        gradient: Gradient,
        plan: &BucketPlan,
        share: &Share,
    ) -> Result<(), String> {
        let data = gradient.read()?;
        let Arrival {
            number,
            factor,
            last,
            own,
            used,
        } = arrival;
        let (bucket, slot) = plan.place(number);
        let range = plan.buckets()[bucket].range(slot);
        let filling = &mut self.filling[bucket];
        if let (Some(own), Some(over)) = (own, &mut self.over_virtual) {
            if let Some(lowest) = &mut filling.buffer {
                let place = BucketRange {
                    bucket,
                    number,
                    range,
                    lowest,
                };
                over.add(place, own, &data)?;
            }
            self.spent[number] = Some(data);
            return Ok(());
        }
        let how = if used { Put::Add } else { Put::Replace };
        let whole = last && factor == 1.0 && how == Put::Replace;
        if filling.scaling == Scaling::Undecided {
            // Only what is put down once, so that nothing is rounded in another order.
            let share = share.get().filter(|_| whole);
            filling.scaling = share.map_or(Scaling::ByReducer, |share| Scaling::Here(*share));
        }
        let factor = match filling.scaling {
            Scaling::Here(share) if whole => share,
            _ => factor,
        };
        // A bucket that has left has no incomplete parameter.
        if let Some(buffer) = &mut filling.buffer {
            buffer.put(range, &data, factor, how)?;
        }
        self.spent[number] = Some(data);
        Ok(())
    }

    /// The bucket `index`, ready to leave; what this rank has no gradient of (`used`) is zero. `None` if
    /// it has left. Fails if a parameter could not be completed.
    pub(super) fn load(
        &mut self,
        index: usize,
        plan: &BucketPlan,
        used: &[bool],
        shared: &Shared,
    ) -> Result<Option<Load>, DdpError> {
        let bucket = &plan.buckets()[index];
        let Some(mut buffer) = self.filling[index].buffer.take() else {
            return Ok(None);
        };
        let mut failed = None;
        for (slot, number) in bucket.parameters().iter().enumerate() {
            if let Some(over) = &mut self.over_virtual {
                let place = BucketRange {
                    bucket: index,
                    number: *number,
                    range: bucket.range(slot),
                    lowest: &mut buffer,
                };
                if let Err(reason) = over.complete(place) {
                    failed.get_or_insert_with(|| shared.unread(*number, reason));
                }
            } else if !used[*number] {
                // The buffer still holds an earlier step's.
                buffer.clear(bucket.range(slot));
            }
            buffer.set_flag(bucket.len() + slot, used[*number]);
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        let of_virtual = self.over_virtual.as_mut().map(|over| {
            let flags = bucket.len()..bucket.length_with_flags();
            (over.ranks(), over.take_upper(index, flags))
        });
        let scaled = matches!(self.filling[index].scaling, Scaling::Here(_));
        Ok(Some(Load {
            index,
            bucket: bucket.clone(),
            buffer,
            with_flags: !shared.knows_used(),
            with_squares: shared.config.max_gradient_norm.is_some(),
            is_scaled: of_virtual.is_some() || scaled,
            of_virtual,
        }))
    }

    /// By parameter: memory for its gradient, where there is some.
    pub(super) fn take_spent(&mut self) -> Vec<Option<TensorData>> {
        std::mem::take(&mut self.spent)
    }
}
