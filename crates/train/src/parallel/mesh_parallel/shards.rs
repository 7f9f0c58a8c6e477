//! Parameters of which ranks of a tensor group hold parts each.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::ProcessGroup;
use everburn_nn::ParameterShard;

use crate::checkpoint::optimizer_states::ShardedParameter;
use crate::error::TrainError;

/// The tag of messages with parts of parameters.
const PART: u64 = 1 << 59;

/// Which parameters are sharded, and how.
pub(super) struct Shards {
    /// By position in the order of the model's fields.
    by_position: HashMap<usize, ParameterShard>,
}

impl Shards {
    /// `paths` has all parameters in the order of the model's fields.
    pub(super) fn new<T>(paths: &[(String, T)], shards: Vec<ParameterShard>) -> Self {
        let mut by_path = shards
            .into_iter()
            .map(|shard| (shard.path.clone(), shard))
            .collect::<HashMap<_, _>>();
        let positions = paths.iter().enumerate();
        let by_position = positions
            .filter_map(|(position, (path, _))| Some((position, by_path.remove(path)?)))
            .collect();
        Self { by_position }
    }

    /// Whether the parameter at `path` is sharded.
    pub(super) fn has(&self, path: &str) -> bool {
        self.by_position.values().any(|shard| shard.path == path)
    }

    /// The sharded parameters that this rank has parts of.
    pub(super) fn by_id<M: Module>(&self, model: &M) -> HashMap<ParamId, ShardedParameter> {
        let mut find = Find {
            shards: self,
            position: 0,
            found: HashMap::new(),
        };
        if !self.by_position.is_empty() {
            model.visit(&mut find);
        }
        find.found
    }

    /// The model with whole parameters on the first rank of `group`, where these are on `device`; the
    /// others are given their own back. All ranks call it.
    pub(super) fn join<M: Module>(
        &self,
        model: M,
        group: &ProcessGroup,
        device: &Device,
    ) -> Result<M, TrainError> {
        if self.by_position.is_empty() {
            return Ok(model);
        }
        let mut join = Join {
            shards: self,
            group,
            device,
            position: 0,
            result: Ok(()),
        };
        let model = model.map(&mut join);
        join.result.map(|()| model)
    }
}

struct Find<'a> {
    shards: &'a Shards,
    position: usize,
    found: HashMap<ParamId, ShardedParameter>,
}

impl ModuleVisitor for Find<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shard = self.shards.by_position.get(&self.position);
        self.position += 1;
        if let Some(shard) = shard.filter(|_| is_here(param)) {
            let sharded = ShardedParameter {
                shard: shard.clone(),
                shape: param.lazy_shape().to_vec(),
            };
            self.found.insert(param.id, sharded);
        }
    }

    everburn_nn::walking! { visit others self, _param => self.position += 1 }
}

struct Join<'a> {
    shards: &'a Shards,
    group: &'a ProcessGroup,
    device: &'a Device,
    position: usize,
    result: Result<(), TrainError>,
}

impl Join<'_> {
    /// The whole parameter, on the first rank.
    fn whole<const D: usize>(
        &self,
        shard: &ParameterShard,
        param: &Param<Tensor<D>>,
    ) -> Result<Param<Tensor<D>>, TrainError> {
        let value = param.val().without_autodiff();
        let own = value.try_into_data();
        let own = own.map_err(|e| TrainError::Device(format!("`{}`: {e}", shard.path)))?;
        if self.group.rank() > 0 {
            let bytes = own.as_bytes().to_vec();
            self.group.send(bytes, 0, PART).wait()?;
            return Ok(param.clone());
        }
        let (shape, dtype, bytes) = (own.shape().clone(), own.dtype(), own.as_bytes().len());
        let mut parts = vec![own];
        for rank in 1..self.group.world_size() {
            let part = self.group.recv::<u8>(rank, PART).wait()?;
            if part.len() != bytes {
                let (path, came) = (&shard.path, part.len());
                return Err(TrainError::Config(format!(
                    "`{path}`: {bytes} bytes were expected of rank {rank} of the tensor group, and \
                     {came} came"
                )));
            }
            parts.push(TensorData::from_bytes_vec(part, shape.clone(), dtype));
        }
        let whole = shard.join(&parts);
        let whole = whole.map_err(|error| TrainError::Config(error.to_string()))?;
        let whole = Tensor::<D>::from_data(whole, (self.device, dtype));
        Ok(Param::initialized(param.id, whole))
    }
}

impl ModuleMapper for Join<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shard = self.shards.by_position.get(&self.position);
        self.position += 1;
        let (Some(shard), Ok(()), true) = (shard, &self.result, is_here(&param)) else {
            return param;
        };
        match self.whole(shard, &param) {
            Ok(whole) => whole,
            Err(error) => {
                self.result = Err(error);
                param
            }
        }
    }

    everburn_nn::walking! { map others self, param => {
        self.position += 1;
        param
    } }
}

/// The parameters that are here.
pub(super) fn held_by<M: Module>(model: &M) -> Vec<ParamId> {
    struct Held(Vec<ParamId>);
    impl ModuleVisitor for Held {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if is_here(param) {
                self.0.push(param.id);
            }
        }
    }
    let mut held = Held(Vec::new());
    model.visit(&mut held);
    held.0
}

/// Whether the parameter is one of this rank's stages.
fn is_here<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    param.lazy_shape().num_elements() > 0
}
