//! Shards the parameters and gradients of a module, and puts gathered parameters into it.

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, ParamMapper};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::ProcessGroup;
use everburn_nn::TiedParameters;

use super::gather::read;
use super::layout::ShardLayout;
use super::parameters::LocalShards;
use super::pending_parameters::PendingParameters;
use crate::bucket::BucketEntry;
use crate::error::DdpError;
use crate::initial_state::{InitialValues, initial_value};
use crate::replicas::{fingerprint, first_difference};

/// Shards of parameters by their numbers, where they are there already.
pub(crate) type KnownShards = Vec<Option<Param<Tensor<1>>>>;

/// This rank's shard of a tensor, on its device, padded with zeros.
fn local_shard<const D: usize>(full: Tensor<D>, layout: ShardLayout) -> Tensor<1> {
    let elements = full.shape().num_elements();
    let (own, length) = (layout.own(elements), layout.length(elements));
    let options = (full.device(), full.dtype());
    let zeros = |length: usize| Tensor::<1>::zeros([length], (&options.0, options.1));
    if own.is_empty() {
        return zeros(length);
    }
    let shard = full.reshape([elements]).narrow(0, own.start, own.len());
    match length - own.len() {
        0 => shard,
        missing => Tensor::cat(vec![shard, zeros(missing)], 0),
    }
}

fn moved(shard: Tensor<1>, device: &Device) -> Result<Tensor<1>, DdpError> {
    let data = read(shard)?;
    let (dtype, shape) = (data.dtype(), data.shape().clone());
    // A shard may be a view, which would keep the full parameter alive.
    let data = TensorData::from_bytes_vec(data.as_bytes().to_vec(), shape, dtype);
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// This rank's shards of the parameters of `model`, copied to the device `kept` if one is given; those that are `known`
/// stay. Waits for parameters that are being gathered.
pub(crate) fn local_shards<M: Module>(
    model: &M,
    numbers: &HashMap<ParamId, usize>,
    layout: ShardLayout,
    kept: Option<&Device>,
    known: KnownShards,
) -> Result<LocalShards, DdpError> {
    struct ShardParameters<'a> {
        numbers: &'a HashMap<ParamId, usize>,
        layout: ShardLayout,
        kept: Option<&'a Device>,
        shards: KnownShards,
        failed: Option<DdpError>,
    }
    impl ModuleVisitor for ShardParameters<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let number = self.numbers.get(&param.id).copied();
            let Some(number) = number.filter(|number| self.shards[*number].is_none()) else {
                return;
            };
            let shard = local_shard(param.base().without_autodiff(), self.layout);
            let shard = match self.kept {
                Some(kept) => moved(shard, kept),
                None => Ok(Tensor::from_inner(shard)),
            };
            match shard {
                Ok(shard) => {
                    let shard = Param::initialized(param.id, shard.require_grad());
                    self.shards[number] = Some(shard);
                }
                Err(error) => {
                    self.failed.get_or_insert(error);
                }
            }
        }
    }
    let mut visitor = ShardParameters {
        numbers,
        layout,
        kept,
        shards: known,
        failed: None,
    };
    visitor.shards.resize(numbers.len(), None);
    model.visit(&mut visitor);
    if let Some(error) = visitor.failed {
        return Err(error);
    }
    let shards: Option<LocalShards> = visitor.shards.into_iter().collect();
    shards.ok_or_else(|| DdpError::OtherModel {
        difference: "it has lost a parameter".to_string(),
    })
}

/// This rank's shards of `gradients` of the parameters of `model`, on the device `home`, and how many bytes
/// the full gradients have.
pub(crate) fn shard_gradients<M: Module>(
    model: &M,
    gradients: GradientsParams,
    numbers: &HashMap<ParamId, usize>,
    layout: ShardLayout,
    home: &Device,
) -> Result<(GradientsParams, u64), DdpError> {
    struct ShardGradients<'a> {
        numbers: &'a HashMap<ParamId, usize>,
        layout: ShardLayout,
        home: &'a Device,
        gradients: GradientsParams,
        shards: GradientsParams,
        bytes: u64,
        failed: Option<DdpError>,
    }
    impl ModuleVisitor for ShardGradients<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.numbers.contains_key(&param.id) {
                return;
            }
            // Tied weights are visited twice and have one gradient.
            let Some(gradient) = self.gradients.remove::<D>(param.id) else {
                return;
            };
            self.bytes += bytes(&gradient);
            let elsewhere = gradient.device() != *self.home;
            let shard = local_shard(gradient, self.layout);
            let shard = match elsewhere {
                true => moved(shard, self.home),
                false => Ok(shard),
            };
            match shard {
                Ok(shard) => self.shards.register(param.id, shard),
                Err(error) => {
                    self.failed.get_or_insert(error);
                }
            }
        }
    }
    let mut visitor = ShardGradients {
        numbers,
        layout,
        home,
        gradients,
        shards: GradientsParams::new(),
        bytes: 0,
        failed: None,
    };
    model.visit(&mut visitor);
    match visitor.failed {
        Some(error) => Err(error),
        None => Ok((visitor.shards, visitor.bytes)),
    }
}

/// This rank's shards on `home` of the parameters that `values` has, each of which is read whole and dropped before the
/// next. All ranks call it.
pub(crate) fn initial_shards(
    parameters: &[BucketEntry],
    layout: ShardLayout,
    home: &Device,
    values: &dyn InitialValues,
    group: &ProcessGroup,
) -> Result<KnownShards, DdpError> {
    let paths: HashSet<String> = values.paths().into_iter().collect();
    let (mut shards, mut read) = (Vec::new(), Vec::new());
    for entry in parameters {
        if !paths.contains(&entry.path) {
            shards.push(None);
            continue;
        }
        let full = initial_value(values, &entry.path, &entry.shape, entry.dtype)?;
        read.push((&entry.path, fingerprint(&full)));
        let bytes = layout.bytes(layout.rank, full.as_bytes(), entry.dtype.size());
        drop(full);
        let length = bytes.len() / entry.dtype.size();
        let shard = TensorData::from_bytes_vec(bytes, vec![length], entry.dtype);
        let shard = Tensor::<1>::from_data(shard, (home, entry.dtype)).require_grad();
        shards.push(Some(Param::initialized(entry.id, shard)));
    }
    match first_difference(read.iter().map(|(_, hash)| *hash), group)? {
        None => Ok(shards),
        Some((rank, position)) => Err(DdpError::DifferentInitialValues {
            rank,
            parameter: read[position].0.clone(),
        }),
    }
}

fn bytes<const D: usize>(tensor: &Tensor<D>) -> u64 {
    (tensor.shape().num_elements() * tensor.dtype().size()) as u64
}

/// How many bytes of trained parameters `model` holds; parameters without values do not count.
pub(crate) fn held_bytes<M: Module>(model: &M) -> u64 {
    #[derive(Default)]
    struct Count {
        counted: Vec<ParamId>,
        bytes: u64,
    }
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !param.is_initialized() || self.counted.contains(&param.id) {
                return;
            }
            let value = param.base();
            if value.is_require_grad() {
                self.counted.push(param.id);
                self.bytes += bytes(&value);
            }
        }
    }
    let mut count = Count::default();
    model.visit(&mut count);
    count.bytes
}

pub(crate) fn bytes_of(shards: &LocalShards) -> u64 {
    shards.iter().map(|shard| bytes(&shard.base())).sum()
}

/// Waits for the parameters of `model` that are being gathered.
pub(crate) fn wait_for_all<M: Module>(model: &M) {
    struct Wait;
    impl ModuleVisitor for Wait {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            drop(param.base());
        }
    }
    model.visit(&mut Wait);
}

/// The mappers of the parameters, which convert them when they are saved and loaded (a layer may keep its weight in
/// another layout).
pub(crate) struct ParamMappers {
    /// `ParamMapper<Tensor<D>>` by the parameter's number.
    mappers: HashMap<usize, Box<dyn Any + Send + Sync>>,
}

impl ParamMappers {
    pub(crate) fn of<M: Module>(model: &M, numbers: &HashMap<ParamId, usize>) -> Self {
        struct Take<'a> {
            numbers: &'a HashMap<ParamId, usize>,
            mappers: HashMap<usize, Box<dyn Any + Send + Sync>>,
        }
        impl ModuleVisitor for Take<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(number) = self.numbers.get(&param.id) {
                    let (_, _, mapper) = param.clone().consume();
                    self.mappers.insert(*number, Box::new(mapper));
                }
            }
        }
        let mut take = Take {
            numbers,
            mappers: HashMap::new(),
        };
        model.visit(&mut take);
        Self {
            mappers: take.mappers,
        }
    }

    /// `model` with parameters that are being gathered, or that have no values.
    pub(crate) fn replaced<M: Module>(
        &self,
        model: M,
        numbers: &HashMap<ParamId, usize>,
        pending: Option<&PendingParameters>,
    ) -> M {
        model.map(&mut Replace {
            mappers: self,
            numbers,
            pending,
            known: TiedParameters::default(),
        })
    }
}

struct Replace<'a> {
    mappers: &'a ParamMappers,
    numbers: &'a HashMap<ParamId, usize>,
    pending: Option<&'a PendingParameters>,
    known: TiedParameters,
}

impl ModuleMapper for Replace<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        let Some(number) = self.numbers.get(&id).copied() else {
            return param;
        };
        if let Some(known) = self.known.get(id) {
            return known;
        }
        let (device, shape) = (param.lazy_device(), param.lazy_shape());
        let replaced = match self.pending.map(|pending| pending.parameter(number)) {
            Some(parameter) => {
                let at_first_use = move |device: &Device, trained: bool| {
                    parameter.value::<D>(device).set_require_grad(trained)
                };
                Param::uninitialized(id, at_first_use, device, true, shape)
            }
            None => {
                let refuse = move |_: &Device, _: bool| -> Tensor<D> {
                    panic!(
                        "parameter {id} was used while this rank has only its shard: \
                         `ParameterShards::open` gathers it"
                    )
                };
                Param::uninitialized(id, refuse, device, true, shape)
            }
        };
        let mapper = self.mappers.mappers.get(&number);
        let mapper = mapper.and_then(|mapper| mapper.downcast_ref::<ParamMapper<Tensor<D>>>());
        let replaced = match mapper.cloned() {
            None => replaced,
            Some(mapper) => {
                let loads = mapper.clone();
                replaced
                    .load_mapper(move |tensor| loads.on_load(tensor))
                    .save_mapper(move |tensor| mapper.on_save(tensor))
            }
        };
        self.known.keep(id, replaced)
    }
}
