//! The thread that gathers shards into full parameters while the model computes.
//!
//! Parameters are gathered in *chunks* of neighbours, in the order of registration, which is about that of the
//! forward pass. All ranks gather the same chunks in the same order, whatever their models use: a rank without samples
//! uses none.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use burn::backend::{AllocationProperty, Bytes};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::ProcessGroup;
use everburn_collectives::sync::lock;
use everburn_collectives::worker::{Worker, WorkerError};
use everburn_profile::{Recorder, Track};

use super::layout::ShardLayout;
use super::memory::{MemoryTracker, TrackedMemory};
use super::prefetcher::Prefetcher;
use crate::bucket::BucketEntry;
use crate::error::DdpError;
use crate::worker_timeout::{AT_THE_END, WorkerTimeout, end};

/// Parameters gathered together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) numbers: Vec<usize>,
}

/// Chunks of `parameters` of at most `limit` bytes, the first of at most `first`, unless a single parameter is larger.
pub(crate) fn chunks(parameters: &[BucketEntry], first: usize, limit: usize) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut bytes = usize::MAX;
    for (number, entry) in parameters.iter().enumerate() {
        let limit = if chunks.len() < 2 { first } else { limit };
        bytes = bytes.saturating_add(entry.num_bytes());
        match chunks.last_mut() {
            Some(chunk) if bytes <= limit => chunk.numbers.push(number),
            _ => {
                bytes = entry.num_bytes();
                chunks.push(Chunk {
                    numbers: vec![number],
                });
            }
        }
    }
    chunks
}

/// All ranks' bytes of a chunk.
pub(crate) struct GatheredChunk {
    /// By rank: the shards of the chunk's parameters, one after the other.
    ranks: Vec<Vec<u8>>,
}

impl GatheredChunk {
    /// The full parameter `number` of `chunk`; `tracker` counts its memory.
    pub(crate) fn full_parameter(
        &self,
        chunk: &Chunk,
        number: usize,
        parameters: &[BucketEntry],
        layout: ShardLayout,
        tracker: Option<&MemoryTracker>,
    ) -> TensorData {
        let bytes_of = |number: usize| {
            let entry = &parameters[number];
            layout.length(entry.num_elements()) * entry.dtype.size()
        };
        let before = chunk.numbers.iter().take_while(|other| **other != number);
        let start: usize = before.map(|other| bytes_of(*other)).sum();
        let entry = &parameters[number];
        let mut full = TrackedBuffer::of(entry.num_bytes(), tracker);
        let mut rest = full.bytes_mut();
        for rank in &self.ranks {
            let shard = &rank[start..start + bytes_of(number)];
            // The last shards end with padding.
            let (own, behind) = rest.split_at_mut(shard.len().min(rest.len()));
            own.copy_from_slice(&shard[..own.len()]);
            rest = behind;
        }
        TensorData::from_bytes(full.share(), Shape::from(entry.shape.clone()), entry.dtype)
    }
}

/// A parameter's memory, in 64-bit words so that it is aligned for every dtype.
struct TrackedBuffer {
    words: Vec<u64>,
    length: usize,
    _tracked: Option<TrackedMemory>,
}

impl TrackedBuffer {
    fn of(length: usize, tracker: Option<&MemoryTracker>) -> Self {
        Self {
            words: vec![0; length.div_ceil(size_of::<u64>())],
            length,
            _tracked: tracker.map(|tracker| tracker.track(length as u64)),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }

    /// As memory of tensors, freed with the last of them.
    fn share(self) -> Bytes {
        let shared = bytes::Bytes::from_owner(self);
        Bytes::from_shared(shared, AllocationProperty::Native)
    }
}

impl AsRef<[u8]> for TrackedBuffer {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }
}

/// A chunk that is being gathered.
#[derive(Default)]
pub(crate) struct Promise {
    state: Mutex<Option<Result<Arc<GatheredChunk>, DdpError>>>,
    ready: Condvar,
}

impl Promise {
    fn fulfil(&self, result: Result<GatheredChunk, DdpError>) {
        *lock(&self.state) = Some(result.map(Arc::new));
        self.ready.notify_all();
    }

    /// Waits for the chunk; also returns how long. `wanted` names the parameter for errors.
    ///
    /// # Errors
    /// If the gather failed, or with [`DdpError::Gather`] after the time limit `timeout`.
    pub(crate) fn wait(
        &self,
        timeout: WorkerTimeout,
        wanted: &str,
    ) -> (Result<Arc<GatheredChunk>, DdpError>, Duration) {
        let start = Instant::now();
        let state = lock(&self.state);
        let waited = self
            .ready
            .wait_timeout_while(state, timeout.duration(), |state| state.is_none());
        let state = match waited {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        let result = state.clone().unwrap_or_else(|| {
            let what = format!("the parameter `{wanted}`");
            Err(DdpError::Gather(timeout.is_over(&what)))
        });
        (result, start.elapsed())
    }
}

/// A handle to the thread.
pub(crate) struct Gatherer {
    group: ProcessGroup,
    worker: Worker<Link>,
}

impl Gatherer {
    /// Starts the thread over `group`, which nothing else may use; `recorder` records its work.
    pub(crate) fn start(group: ProcessGroup, recorder: Option<Recorder>) -> Result<Self, DdpError> {
        let link = Link {
            // The forward pass computes on the same cores.
            group: group.in_background(),
            recorder,
        };
        let giving_up = group.clone();
        let panicked = move |message: &str| {
            let rank = giving_up.rank();
            giving_up.abort(format!("rank {rank}: its thread panicked: {message}"));
        };
        let worker = Worker::start("everburn-gather", link, panicked)
            .map_err(|error| DdpError::Gather(format!("it could not be started: {error}")))?;
        Ok(Self { group, worker })
    }

    /// Gathers chunk `number` from this rank's `shards` and the others'. All ranks call it for the same chunks in the
    /// same order.
    pub(crate) fn gather(&self, number: usize, shards: Vec<Tensor<1>>) -> Arc<Promise> {
        let promise = Arc::new(Promise::default());
        let promised = promise.clone();
        let answer = move |gathered: Result<_, WorkerError>| {
            promised
                .fulfil(gathered.unwrap_or_else(|lost| Err(DdpError::Gather(lost.to_string()))));
        };
        let gather = move |link: &mut Link| link.gather(number, shards);
        self.worker.submit(gather, answer);
        promise
    }

    /// Runs the prefetcher of a pass. All ranks call it, in the same order.
    pub(crate) fn follow(&self, prefetcher: &Arc<Prefetcher>) {
        let (followed, failing) = (prefetcher.clone(), prefetcher.clone());
        let answer = move |done: Result<(), WorkerError>| {
            if let Err(lost) = done {
                failing.fail(DdpError::Gather(lost.to_string()));
            }
        };
        self.worker.submit(move |link| followed.run(link), answer);
    }

    /// Aborts the group, so that the other ranks stop too.
    pub(crate) fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }
}

impl Drop for Gatherer {
    fn drop(&mut self) {
        // A pass was never ended, or a device does not answer.
        let reason = "the thread that gathers parameters does not end";
        end(&mut self.worker, AT_THE_END, &self.group, reason);
    }
}

/// What the thread uses to gather.
pub(crate) struct Link {
    group: ProcessGroup,
    recorder: Option<Recorder>,
}

impl Link {
    /// Gathers chunk `number` from this rank's `shards` and the others'.
    pub(crate) fn gather(
        &self,
        number: usize,
        shards: Vec<Tensor<1>>,
    ) -> Result<GatheredChunk, DdpError> {
        let began = Instant::now();
        self.group.set_label(u32::try_from(number).ok());
        let gathered = self.all_gather(shards);
        if let Err(DdpError::Read { reason, .. }) = &gathered {
            // The others would wait for what this rank cannot read.
            self.group.abort(format!(
                "a shard of a parameter could not be read: {reason}"
            ));
        }
        if let Some(recorder) = &self.recorder {
            let name = format!("parameters {number}");
            recorder.background(Track::Gatherer, &name, began, began.elapsed());
        }
        gathered
    }

    fn all_gather(&self, shards: Vec<Tensor<1>>) -> Result<GatheredChunk, DdpError> {
        let mut own = Vec::new();
        for shard in shards {
            own.extend_from_slice(read(shard)?.as_bytes());
        }
        let ranks = self.group.all_gather(own).wait()?;
        Ok(GatheredChunk { ranks })
    }
}

pub(crate) fn read(shard: Tensor<1>) -> Result<TensorData, DdpError> {
    shard.try_into_data().map_err(|error| DdpError::Read {
        parameter: "a shard of a parameter".to_string(),
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;

    #[test]
    fn chunks_are_no_larger_than_asked_for_unless_one_parameter_is() {
        let lengths = [1, 2, 100, 3, 4];
        let parameters = lengths.map(|length| BucketEntry::of_shape(&[length], DType::F32));
        let numbers = |first, limit| {
            let chunks = chunks(&parameters, first, limit);
            chunks.into_iter().map(|c| c.numbers).collect::<Vec<_>>()
        };
        assert_eq!(numbers(12, 28), [vec![0, 1], vec![2], vec![3, 4]]);
        assert_eq!(numbers(1 << 20, 1 << 20), [vec![0, 1, 2, 3, 4]]);
        assert!(chunks(&[], 1, 1).is_empty());
    }
}
