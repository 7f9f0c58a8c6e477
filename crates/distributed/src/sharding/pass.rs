//! A forward and backward pass of a model whose parameters this rank has slices of.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use burn::backend::DispatchTensor;
use burn::module::ParamId;
use burn::prelude::*;
use burn::tensor::DType;
use everburn_nn::{ParameterSource, recomputing, with_parameters_from};

use super::prefetcher::{Half, Prefetcher};
use super::whole::Common;
use crate::reducer::lock;

/// A forward and backward pass of a model of whose parameters each rank has slices: what
/// [`ParameterShards::pass`](crate::ParameterShards::pass) begins, and
/// [`Synchronization::watch_cut`](crate::Synchronization::watch_cut) runs the model with. Every rank begins it,
/// and drops it when its pass is over.
///
/// Where the model runs in checkpointed segments ([`everburn_nn::checkpoint`]), the parameters of one are there
/// while it computes, and gathered again when it is recomputed. What runs in none has its parameters until the
/// backward pass is over.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn_collectives::group::{GroupOptions, ProcessGroup};
/// use everburn_distributed::{Ddp, DdpConfig, ParameterShards, ShardStage};
/// use everburn_nn::checkpoint;
///
/// let device = Device::flex().autodiff();
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let config = DdpConfig { shard: Some(ShardStage::Parameters), ..DdpConfig::default() };
/// let (ddp, model) = Ddp::new(LinearConfig::new(3, 1).init(&device), group, config)?;
/// let (mut shards, model) = ParameterShards::cut(model, &ddp, None)?;
///
/// let step = ddp.begin(2)?;
/// let pass = shards.pass(true)?.expect("this rank has slices only");
/// let watched = step.watch_cut(&model, 2, &pass);
/// pass.run(|| {
///     let rows = Tensor::<2>::ones([2, 3], &device);
///     checkpoint(&watched, rows, |model, rows| model.forward(rows)).mean().backward();
/// });
/// drop(pass);
/// assert_eq!(shards.average(step.finish_cut()?)?.gradients.len(), 2);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
pub struct CutPass {
    pub(crate) pass: Arc<Pass>,
}

impl CutPass {
    /// Runs the watched model forward and backward.
    pub fn run<R>(&self, pass: impl FnOnce() -> R) -> R {
        with_parameters_from(self.pass.clone(), pass)
    }
}

impl Drop for CutPass {
    fn drop(&mut self) {
        self.pass.end();
    }
}

/// What the watched model of a pass has in place of parameters.
pub(crate) struct Pass {
    common: Arc<Common>,
    prefetcher: Arc<Prefetcher>,
    numbers: HashMap<ParamId, usize>,
    places: Mutex<HashMap<ParamId, Place>>,
}

struct Place {
    device: Device,
    tensor: State,
}

enum State {
    /// Made when it is first asked for: how deep a tap is depends on when.
    Ahead(Box<dyn FnOnce() -> DispatchTensor + Send>),
    Made(Box<DispatchTensor>),
    Being,
}

impl Pass {
    pub(crate) fn new(
        common: Arc<Common>,
        prefetcher: Arc<Prefetcher>,
        numbers: HashMap<ParamId, usize>,
    ) -> Self {
        Self {
            common,
            prefetcher,
            numbers,
            places: Mutex::default(),
        }
    }

    pub(crate) fn dtype(&self, number: usize) -> DType {
        self.common.parameters[number].dtype
    }

    /// That `make` yields the place of parameter `id`, which is on `device`.
    pub(crate) fn place_of(
        &self,
        id: ParamId,
        device: &Device,
        make: impl FnOnce() -> DispatchTensor + Send + 'static,
    ) {
        let device = device.clone();
        let tensor = State::Ahead(Box::new(make));
        lock(&self.places).insert(id, Place { device, tensor });
    }

    fn end(&self) {
        self.prefetcher.end();
        // They hold the graph, which holds this.
        lock(&self.places).clear();
    }
}

impl ParameterSource for Pass {
    fn has(&self, id: ParamId) -> bool {
        lock(&self.places).contains_key(&id)
    }

    fn place(&self, id: ParamId) -> DispatchTensor {
        let mut places = lock(&self.places);
        let place = places.get_mut(&id).expect("it was asked whether it has it");
        let tensor = match std::mem::replace(&mut place.tensor, State::Being) {
            State::Ahead(make) => make(),
            State::Made(tensor) => *tensor,
            State::Being => unreachable!("making a place asks for no other"),
        };
        place.tensor = State::Made(Box::new(tensor.clone()));
        tensor
    }

    fn numbers(&self, id: ParamId) -> DispatchTensor {
        let half = match recomputing() {
            true => Half::Backward,
            false => Half::Forward,
        };
        let number = self.numbers[&id];
        let device = lock(&self.places)
            .get(&id)
            .map(|place| place.device.clone());
        let device = device.unwrap_or_default();
        let found = self.prefetcher.take(half, number);
        let shape = &self.common.parameters[number].shape;
        macro_rules! of_rank {
            ($($rank:tt)*) => {
                match shape.len() {
                    $($rank => self.common.tensor::<$rank>(number, found, &device).into_dispatch(),)*
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
            let (mut shards, model) = ParameterShards::cut(model, &ddp, None).unwrap();
            recorder.begin_step(1);
            recorder.enter(Phase::Forward);
            let step = ddp.begin(2).unwrap();
            let pass = shards.pass(in_segment).unwrap().unwrap();
            let watched = step.watch_cut(&model, 2, &pass);
            pass.run(|| {
                let rows = Tensor::<2>::ones([2, 3], &device);
                let rows = match in_segment {
                    true => checkpoint(&watched, rows, |model: &Linear, rows| model.forward(rows)),
                    false => watched.forward(rows),
                };
                drop(rows.mean().backward());
            });
            drop(pass);
            let synced = shards.average(step.finish_cut().unwrap()).unwrap();
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
