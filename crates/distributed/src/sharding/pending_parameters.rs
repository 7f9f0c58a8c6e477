//! Full parameters that are being gathered.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::sync::lock;

use super::gather::{Chunk, GatheredChunk, Promise};
use super::layout::ShardLayout;
use super::memory::MemoryTracker;
use super::prefetcher::AccessTrace;
use crate::bucket::BucketEntry;
use crate::error::DdpError;
use crate::patience::Patience;

/// What all parameters of a model have in context, however often they are gathered.
pub(crate) struct GatherContext {
    pub(crate) parameters: Vec<BucketEntry>,
    layout: ShardLayout,
    pub(crate) chunks: Arc<Vec<Chunk>>,
    /// By parameter: the index of its chunk.
    pub(crate) chunk_of: Vec<usize>,
    pub(crate) patience: Patience,
    /// Memory of the parameters that passes gather.
    pub(crate) gathered: MemoryTracker,
    pub(crate) access_trace: Mutex<AccessTrace>,
    waited: Mutex<Duration>,
    failure: Mutex<Option<DdpError>>,
}

impl GatherContext {
    pub(crate) fn new(
        parameters: Vec<BucketEntry>,
        layout: ShardLayout,
        chunks: Arc<Vec<Chunk>>,
        patience: Patience,
    ) -> Self {
        let mut chunk_of = vec![0; parameters.len()];
        for (index, chunk) in chunks.iter().enumerate() {
            for number in &chunk.numbers {
                chunk_of[*number] = index;
            }
        }
        Self {
            parameters,
            layout,
            chunks,
            chunk_of,
            patience,
            gathered: MemoryTracker::default(),
            access_trace: Mutex::default(),
            waited: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    pub(crate) fn take_waited(&self) -> Duration {
        std::mem::take(&mut *lock(&self.waited))
    }

    pub(crate) fn add_waited(&self, waited: Duration) {
        *lock(&self.waited) += waited;
    }

    /// The full parameter `number` of a gathered chunk; its memory is tracked if it belongs to a pass.
    pub(crate) fn full_parameter(
        &self,
        gathered: &GatheredChunk,
        number: usize,
        of_pass: bool,
    ) -> TensorData {
        let chunk = &self.chunks[self.chunk_of[number]];
        let tracker = of_pass.then_some(&self.gathered);
        gathered.full_parameter(chunk, number, &self.parameters, self.layout, tracker)
    }

    /// `gathered` as a tensor on `device`, or zeros if the gather failed: the forward pass cannot return an error, so
    /// the step fails after it ([`GatherContext::failure`]).
    pub(crate) fn tensor<const D: usize>(
        &self,
        number: usize,
        gathered: Result<TensorData, DdpError>,
        device: &Device,
    ) -> Tensor<D> {
        let entry = &self.parameters[number];
        match gathered {
            Ok(data) => Tensor::from_data(data, (device, entry.dtype)),
            Err(error) => {
                lock(&self.failure).get_or_insert(error);
                Tensor::zeros(Shape::from(entry.shape.clone()), (device, entry.dtype))
            }
        }
    }

    pub(crate) fn failure(&self) -> Option<DdpError> {
        lock(&self.failure).clone()
    }
}

/// The parameters of a model, being gathered.
#[derive(Clone)]
pub(crate) struct PendingParameters {
    /// By chunk.
    pub(crate) promises: Vec<Arc<Promise>>,
    pub(crate) context: Arc<GatherContext>,
}

impl PendingParameters {
    pub(crate) fn parameter(&self, number: usize) -> PendingParameter {
        PendingParameter {
            number,
            promise: self.promises[self.context.chunk_of[number]].clone(),
            context: self.context.clone(),
        }
    }
}

/// A parameter that is being gathered.
pub(crate) struct PendingParameter {
    number: usize,
    promise: Arc<Promise>,
    context: Arc<GatherContext>,
}

impl PendingParameter {
    /// The parameter, on `device`; waits until it is gathered.
    pub(crate) fn value<const D: usize>(self, device: &Device) -> Tensor<D> {
        let Self {
            number,
            promise,
            context,
        } = self;
        let (gathered, waited) = promise.wait(context.patience, &context.parameters[number].path);
        context.add_waited(waited);
        let full = gathered.map(|gathered| context.full_parameter(&gathered, number, false));
        context.tensor(number, full, device)
    }
}
