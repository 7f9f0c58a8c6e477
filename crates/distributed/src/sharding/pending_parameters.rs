//! Full parameters that are being gathered.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::sync::lock;

use super::device_gather::DeviceChunk;
use super::gather::{Chunk, GatheredChunk, Promise};
use super::layout::ShardLayout;
use super::memory::MemoryTracker;
use super::prefetcher::AccessTrace;
use crate::bucket::BucketEntry;
use crate::error::DdpError;
use crate::gradient::{Gradient, moved};
use crate::worker_timeout::WorkerTimeout;

/// What all parameters of a model have in context, however often they are gathered.
pub(crate) struct GatherContext {
    pub(crate) parameters: Vec<BucketEntry>,
    layout: ShardLayout,
    pub(crate) chunks: Arc<Vec<Chunk>>,
    /// By parameter: the index of its chunk.
    pub(crate) chunk_of: Vec<usize>,
    pub(crate) timeout: WorkerTimeout,
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
        timeout: WorkerTimeout,
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
            timeout,
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

    /// The same of a chunk that is gathered on its device, which waits for it, and not this thread.
    fn tensor_of_device<const D: usize>(
        &self,
        number: usize,
        chunk: &DeviceChunk,
        device: &Device,
    ) -> Tensor<D> {
        let full = chunk.full_parameter(number, &self.parameters, self.layout);
        let full = match full {
            Ok(full) => Gradient::of_tensor(full).shaped(&self.parameters[number].shape),
            Err(error) => return self.tensor(number, Err(error), device),
        };
        let full = moved(full.tensor::<D>(), &device.clone().inner());
        match device.gradient_checkpointing_strategy() {
            Some(strategy) => {
                Tensor::from_inner(full).with_gradient_checkpointing_strategy(strategy)
            }
            None => full,
        }
    }

    pub(crate) fn failure(&self) -> Option<DdpError> {
        lock(&self.failure).clone()
    }
}

/// A chunk that is being gathered: in host memory, by a thread, or on the device of the model.
#[derive(Clone)]
pub(crate) enum PendingChunk {
    Host(Arc<Promise>),
    Device(Arc<DeviceChunk>),
}

/// The parameters of a model, being gathered.
#[derive(Clone)]
pub(crate) struct PendingParameters {
    pub(crate) chunks: Vec<PendingChunk>,
    pub(crate) context: Arc<GatherContext>,
}

impl PendingParameters {
    pub(crate) fn parameter(&self, number: usize) -> PendingParameter {
        PendingParameter {
            number,
            chunk: self.chunks[self.context.chunk_of[number]].clone(),
            context: self.context.clone(),
        }
    }
}

/// A parameter that is being gathered.
pub(crate) struct PendingParameter {
    number: usize,
    chunk: PendingChunk,
    context: Arc<GatherContext>,
}

impl PendingParameter {
    /// The parameter, on `device`; waits until it is gathered, or has the device wait.
    pub(crate) fn value<const D: usize>(self, device: &Device) -> Tensor<D> {
        let (number, context) = (self.number, self.context);
        let promise = match self.chunk {
            PendingChunk::Host(promise) => promise,
            PendingChunk::Device(chunk) => {
                return context.tensor_of_device(number, &chunk, device);
            }
        };
        let (gathered, waited) = promise.wait(context.timeout, &context.parameters[number].path);
        context.add_waited(waited);
        let full = gathered.map(|gathered| context.full_parameter(&gathered, number, false));
        context.tensor(number, full, device)
    }
}
