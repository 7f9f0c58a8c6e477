//! Shards that are gathered into full parameters on their device.
//!
//! There is no thread: the gather continues while the device computes, and the device waits for a chunk when one of its
//! parameters is first used.

use std::sync::Mutex;

use burn::prelude::*;
use everburn_collectives::sync::lock;

use super::gather::Chunk;
use super::layout::ShardLayout;
use crate::bucket::BucketEntry;
use crate::device::{DeviceCollective, DeviceCommunicator, PendingTensor};
use crate::error::DdpError;

/// A chunk that is being gathered on its device.
pub(crate) struct DeviceChunk {
    runs: Mutex<Vec<Run>>,
}

/// Neighbours in a chunk of one type.
struct Run {
    numbers: Vec<usize>,
    gathered: Gathered,
}

enum Gathered {
    UnderWay(Box<dyn PendingTensor>),
    /// By rank: the shards, one after the other.
    Over(Box<Result<Tensor<1>, DdpError>>),
}

impl DeviceChunk {
    /// Begins to gather `chunk` from this rank's `shards` and the others'. All ranks call it for the same chunks in the same
    /// order.
    ///
    /// # Errors
    /// What has failed the communicator. This rank must then begin nothing else: the others' next collectives would be with it.
    pub(crate) fn begin(
        communicator: &dyn DeviceCommunicator,
        chunk: &Chunk,
        shards: Vec<Tensor<1>>,
    ) -> Result<Self, DdpError> {
        let mut runs: Vec<(Vec<usize>, Vec<Tensor<1>>)> = Vec::new();
        for (number, shard) in chunk.numbers.iter().zip(shards) {
            match runs.last_mut() {
                Some((numbers, row)) if row[0].dtype() == shard.dtype() => {
                    numbers.push(*number);
                    row.push(shard);
                }
                _ => runs.push((vec![*number], vec![shard])),
            }
        }
        let runs = runs.into_iter().map(|(numbers, row)| {
            let row = Tensor::cat(row, 0);
            let under_way = communicator.begin_collective(DeviceCollective::AllGather, row)?;
            Ok(Run {
                numbers,
                gathered: Gathered::UnderWay(under_way),
            })
        });
        let runs = Mutex::new(runs.collect::<Result<Vec<_>, DdpError>>()?);
        Ok(Self { runs })
    }

    /// The full parameter `number` of the chunk, in one row. What the device is given from now on comes after the gather.
    ///
    /// # Errors
    /// What has failed the communicator.
    pub(crate) fn full_parameter(
        &self,
        number: usize,
        parameters: &[BucketEntry],
        layout: ShardLayout,
    ) -> Result<Tensor<1>, DdpError> {
        let mut runs = lock(&self.runs);
        let run = runs.iter_mut().find(|run| run.numbers.contains(&number));
        let run = run.expect("a parameter is in its chunk");
        let gathered = run.gathered()?;
        let length = |number: usize| layout.length(parameters[number].num_elements());
        let before = run.numbers.iter().take_while(|other| **other != number);
        let start: usize = before.map(|other| length(*other)).sum();
        drop(runs);
        let (elements, ranks) = (parameters[number].num_elements(), layout.world_size);
        if elements == 0 {
            return Ok(Tensor::zeros([0], (&gathered.device(), gathered.dtype())));
        }
        let [all] = gathered.dims();
        let rows: Tensor<2> = gathered.reshape([ranks, all / ranks]);
        let shards = rows.slice([0..ranks, start..start + length(number)]);
        let padded: Tensor<1> = shards.reshape([ranks * length(number)]);
        Ok(padded.slice(0..elements))
    }
}

impl Run {
    fn gathered(&mut self) -> Result<Tensor<1>, DdpError> {
        let panicked = DdpError::Gather("a thread panicked while it took them".to_string());
        let taken = Gathered::Over(Box::new(Err(panicked)));
        let result = match std::mem::replace(&mut self.gathered, taken) {
            Gathered::UnderWay(under_way) => under_way.collect(),
            Gathered::Over(result) => *result,
        };
        self.gathered = Gathered::Over(Box::new(result.clone()));
        result
    }
}
