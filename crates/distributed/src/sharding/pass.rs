//! A forward and backward pass of a model with sharded parameters.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::backend::DispatchTensor;
use burn::module::ParamId;
use burn::prelude::*;
use burn::tensor::DType;
use everburn_collectives::sync::lock;
use everburn_nn::{ParameterSource, recomputing, with_parameters_from};

use super::pending_parameters::GatherContext;
use super::prefetcher::{Half, Prefetcher};

/// A forward and backward pass of a model with sharded parameters.
/// [`ParameterShards::pass`](crate::ParameterShards::pass) begins it, and
/// [`Synchronization::with_hooks_sharded`](crate::Synchronization::with_hooks_sharded) takes it. Every rank begins one, and drops
/// it when its pass is over.
///
/// The parameters of a checkpointed segment ([`everburn::nn::checkpoint`](everburn_nn::checkpoint)) are there while it computes, and are gathered
/// again when it is recomputed. Parameters outside segments stay until the backward pass is over.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; pub use everburn_nn as nn; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Ddp, DdpConfig, ParameterShards, ShardStage};
/// use everburn::nn::checkpoint;
///
/// let device = Device::flex().autodiff();
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let config = DdpConfig { shard: Some(ShardStage::Parameters), ..DdpConfig::default() };
/// let (ddp, model) = Ddp::new(LinearConfig::new(3, 1).init(&device), group, config)?;
/// let (mut shards, model) = ParameterShards::new(model, &ddp, None)?;
///
/// let step = ddp.begin(2)?;
/// let pass = shards.pass(true)?.expect("parameters are sharded");
/// let watched = step.with_hooks_sharded(&model, 2, &pass);
/// pass.run(|| {
///     let rows = Tensor::<2>::ones([2, 3], &device);
///     checkpoint(&watched, rows, |model, rows| model.forward(rows)).mean().backward();
/// });
/// drop(pass);
/// assert_eq!(shards.average(step.finish_sharded()?)?.gradients.len(), 2);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
pub struct ShardedPass {
    pub(crate) pass: Arc<Pass>,
}

impl ShardedPass {
    /// Runs the watched model forward and backward.
    pub fn run<R>(&self, pass: impl FnOnce() -> R) -> R {
        with_parameters_from(self.pass.clone(), pass)
    }
}

impl Drop for ShardedPass {
    fn drop(&mut self) {
        self.pass.end();
    }
}

/// Provides the parameters of the watched model of a pass.
pub(crate) struct Pass {
    context: Arc<GatherContext>,
    prefetcher: Arc<Prefetcher>,
    numbers: HashMap<ParamId, usize>,
    placeholders: Mutex<HashMap<ParamId, Placeholder>>,
}

struct Placeholder {
    device: Device,
    tensor: State,
}

enum State {
    /// Built at first use: the depth of a gradient hook depends on when that is.
    Ahead(Box<dyn FnOnce() -> DispatchTensor + Send>),
    Made(Box<DispatchTensor>),
    Being,
}

impl Pass {
    pub(crate) fn new(
        context: Arc<GatherContext>,
        prefetcher: Arc<Prefetcher>,
        numbers: HashMap<ParamId, usize>,
    ) -> Self {
        Self {
            context,
            prefetcher,
            numbers,
            placeholders: Mutex::default(),
        }
    }

    pub(crate) fn dtype(&self, number: usize) -> DType {
        self.context.parameters[number].dtype
    }

    /// Lets `make` build the placeholder of parameter `id`, which is on `device`.
    pub(crate) fn set_placeholder(
        &self,
        id: ParamId,
        device: &Device,
        make: impl FnOnce() -> DispatchTensor + Send + 'static,
    ) {
        let device = device.clone();
        let tensor = State::Ahead(Box::new(make));
        lock(&self.placeholders).insert(id, Placeholder { device, tensor });
    }

    fn end(&self) {
        self.prefetcher.end();
        // The placeholders hold the graph, which holds this.
        lock(&self.placeholders).clear();
    }
}

impl ParameterSource for Pass {
    fn has(&self, id: ParamId) -> bool {
        lock(&self.placeholders).contains_key(&id)
    }

    fn placeholder(&self, id: ParamId) -> DispatchTensor {
        let mut placeholders = lock(&self.placeholders);
        let placeholder = placeholders.get_mut(&id).expect("`has` was called before");
        let tensor = match std::mem::replace(&mut placeholder.tensor, State::Being) {
            State::Ahead(make) => make(),
            State::Made(tensor) => *tensor,
            State::Being => unreachable!("building a placeholder asks for no other"),
        };
        placeholder.tensor = State::Made(Box::new(tensor.clone()));
        tensor
    }

    fn numbers(&self, id: ParamId) -> DispatchTensor {
        let half = match recomputing() {
            true => Half::Backward,
            false => Half::Forward,
        };
        let number = self.numbers[&id];
        let device = lock(&self.placeholders)
            .get(&id)
            .map(|placeholder| placeholder.device.clone());
        let device = device.unwrap_or_default();
        let found = self.prefetcher.take(half, number);
        let shape = &self.context.parameters[number].shape;
        macro_rules! of_rank {
            ($($rank:tt)*) => {
                match shape.len() {
                    $($rank => self.context.tensor::<$rank>(number, found, &device).into_dispatch(),)*
                    rank => unreachable!("a parameter of {rank} dimensions"),
                }
            };
        }
        of_rank!(1 2 3 4 5 6 7 8)
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use everburn_collectives::group::{GroupOptions, ProcessGroup};
    use everburn_nn::checkpoint;
    use everburn_profile::{Facts, Pass as Part, Phase, Recorder, Track};

    use crate::config::DdpConfig;
    use crate::ddp::Ddp;
    use crate::sharding::{ParameterShards, ShardStage};

    use super::*;

    #[test]
    fn a_recorder_is_told_of_each_parameter_in_a_segment_and_without_one() {
        for in_segment in [false, true] {
            let device = Device::flex().autodiff();
            let group = ProcessGroup::alone(GroupOptions::default());
            let config = DdpConfig {
                shard: Some(ShardStage::Parameters),
                ..DdpConfig::default()
            };
            let model: Linear = LinearConfig::new(3, 1).init(&device);
            let (ddp, model) = Ddp::new(model, group, config).unwrap();
            let recorder = Recorder::new(Facts::default());
            ddp.record_into(&recorder);
            let (mut shards, model) = ParameterShards::new(model, &ddp, None).unwrap();
            recorder.begin_step(1);
            recorder.enter(Phase::Forward);
            let step = ddp.begin(2).unwrap();
            let pass = shards.pass(in_segment).unwrap().unwrap();
            let watched = step.with_hooks_sharded(&model, 2, &pass);
            pass.run(|| {
                let rows = Tensor::<2>::ones([2, 3], &device);
                let rows = match in_segment {
                    true => checkpoint(&watched, rows, |model: &Linear, rows| model.forward(rows)),
                    false => watched.forward(rows),
                };
                drop(rows.mean().backward());
            });
            drop(pass);
            let synced = shards.average(step.finish_sharded().unwrap()).unwrap();
            assert_eq!(synced.gradients.len(), 2);
            let recording = recorder.finish();
            let marks = |part: Part| recording.marks.iter().filter(move |mark| mark.pass == part);
            let counts = [Part::Forward, Part::Backward].map(|part| marks(part).count());
            assert_eq!(counts, [2, 2], "in a segment: {in_segment}");
            let mut background = recording.background.iter();
            assert!(background.any(|span| span.track == Track::Gatherer));
        }
    }
}
