//! Whole parameters that are on their way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::prelude::*;
use burn::tensor::TensorData;

use super::cut::Cut;
use super::gather::{Chunk, Gathered, Promise};
use super::memory::MemoryTracker;
use super::prefetcher::AccessTrace;
use crate::bucket::BucketEntry;
use crate::error::DdpError;
use crate::patience::Patience;
use crate::reducer::lock;

/// What all parameters of a model have in common, however often they are gathered.
pub(crate) struct Common {
    pub(crate) parameters: Vec<BucketEntry>,
    cut: Cut,
    pub(crate) chunks: Arc<Vec<Chunk>>,
    /// By parameter: its chunk.
    pub(crate) places: Vec<usize>,
    pub(crate) patience: Patience,
    /// The parameters of passes.
    pub(crate) gathered: MemoryTracker,
    pub(crate) access_trace: Mutex<AccessTrace>,
    waited: Mutex<Duration>,
    trouble: Mutex<Option<DdpError>>,
}

impl Common {
    pub(crate) fn new(
        parameters: Vec<BucketEntry>,
        cut: Cut,
        chunks: Arc<Vec<Chunk>>,
        patience: Patience,
    ) -> Self {
        let mut places = vec![0; parameters.len()];
        for (index, chunk) in chunks.iter().enumerate() {
            for number in &chunk.numbers {
                places[*number] = index;
            }
        }
        Self {
            parameters,
            cut,
            chunks,
            places,
            patience,
            gathered: MemoryTracker::default(),
            access_trace: Mutex::default(),
            waited: Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    pub(crate) fn take_waited(&self) -> Duration {
        std::mem::take(&mut *lock(&self.waited))
    }

    pub(crate) fn add_waited(&self, waited: Duration) {
        *lock(&self.waited) += waited;
    }

    /// The whole parameter `number`, of its chunk; counted as long as it lives, if it is of a pass.
    pub(crate) fn whole(&self, gathered: &Gathered, number: usize, of_pass: bool) -> TensorData {
        let chunk = &self.chunks[self.places[number]];
        let tracker = of_pass.then_some(&self.gathered);
        gathered.whole(chunk, number, &self.parameters, self.cut, tracker)
    }

    /// `found` as a tensor on `device`. Where it did not come, zeros: whoever asks is in the middle of a pass,
    /// which has no way to fail, and the step is refused behind it ([`Common::trouble`]).
    pub(crate) fn tensor<const D: usize>(
        &self,
        number: usize,
        found: Result<TensorData, DdpError>,
        device: &Device,
    ) -> Tensor<D> {
        let entry = &self.parameters[number];
        match found {
            Ok(data) => Tensor::from_data(data, (device, entry.dtype)),
            Err(error) => {
                lock(&self.trouble).get_or_insert(error);
                Tensor::zeros(Shape::from(entry.shape.clone()), (device, entry.dtype))
            }
        }
    }

    pub(crate) fn trouble(&self) -> Option<DdpError> {
        lock(&self.trouble).clone()
    }
}

/// The parameters of a model, on their way.
#[derive(Clone)]
pub(crate) struct Whole {
    /// By chunk.
    pub(crate) promises: Vec<Arc<Promise>>,
    pub(crate) common: Arc<Common>,
}

impl Whole {
    /// The way of parameter `number` alone: what is kept until it is asked for.
    pub(crate) fn parameter(&self, number: usize) -> OnItsWay {
        OnItsWay {
            number,
            promise: self.promises[self.common.places[number]].clone(),
            common: self.common.clone(),
        }
    }
}

/// A parameter on its way.
pub(crate) struct OnItsWay {
    number: usize,
    promise: Arc<Promise>,
    common: Arc<Common>,
}

impl OnItsWay {
    /// The parameter, on `device`; waits for it.
    pub(crate) fn value<const D: usize>(self, device: &Device) -> Tensor<D> {
        let Self {
            number,
            promise,
            common,
        } = self;
        let (gathered, waited) = promise.wait(common.patience, &common.parameters[number].path);
        common.add_waited(waited);
        let found = gathered.map(|gathered| common.whole(&gathered, number, false));
        common.tensor(number, found, device)
    }
}
