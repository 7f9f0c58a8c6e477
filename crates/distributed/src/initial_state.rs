//! Every rank starts with the same model: the same structure, and rank 0's values.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param};
use burn::prelude::*;
use burn::tensor::{DType, TensorData};
use everburn_collectives::group::ProcessGroup;
use everburn_collectives::sync::lock;
use sha2::{Digest, Sha256};

use crate::config::DdpConfig;
use crate::ddp::{Ddp, Reduction};
use crate::error::DdpError;
use crate::objects::find_different_text;
use crate::replicas::{self, FINGERPRINT_BYTES, TensorDescription, TensorKind, fingerprint};
use crate::sharding::ShardStage;

/// All ranks exchange hashes of what they have built, and of the values in `state`, and all reach the same verdict: whether
/// all have the same values.
pub(crate) fn compare_models(
    group: &ProcessGroup,
    tensors: &[TensorDescription],
    config: &str,
    state: &[(TensorDescription, TensorData)],
) -> Result<bool, DdpError> {
    if group.world_size() == 1 {
        return Ok(true);
    }
    let mut text = tensors.iter().map(|t| format!("{t}\n")).collect::<String>();
    text.push_str(config);
    let values = state.iter().flat_map(|(_, data)| fingerprint(data));
    let values = Sha256::digest(values.collect::<Vec<u8>>());
    let mut own = Sha256::digest(&text).to_vec();
    own.extend_from_slice(&values);
    let all = group.all_gather(own).wait()?;
    let structure = |hashes: &Vec<u8>| hashes[..FINGERPRINT_BYTES] == all[0][..FINGERPRINT_BYTES];
    if all.iter().all(structure) {
        return Ok(all.iter().all(|hashes| *hashes == all[0]));
    }
    let Some((rank, [ours, theirs])) = find_different_text(group, &text)? else {
        return Ok(false);
    };
    let pairs = ours.lines().zip(theirs.lines());
    let position = pairs.take_while(|(ours, theirs)| ours == theirs).count();
    let name = |text: &str| text.lines().nth(position).unwrap_or("missing").to_string();
    Err(DdpError::DifferentModels {
        rank,
        position,
        ours: name(&ours),
        theirs: name(&theirs),
    })
}

/// Rank 0's tensors replace everybody's, a bucket's worth of bytes at a time. `state` is that of `model`.
pub(crate) fn broadcast_state<M: Module>(
    model: M,
    state: Vec<(TensorDescription, TensorData)>,
    group: &ProcessGroup,
    bucket_bytes: usize,
) -> Result<M, DdpError> {
    let values = broadcast(state.into_iter().map(|(_, data)| data), group, bucket_bytes)?;
    Ok(replicas::replace(model, values))
}

fn broadcast(
    tensors: impl Iterator<Item = TensorData>,
    group: &ProcessGroup,
    bucket_bytes: usize,
) -> Result<Vec<TensorData>, DdpError> {
    let mut values = Vec::new();
    let mut chunk = Vec::new();
    let mut waiting = Vec::new();
    let mut tensors = tensors.peekable();
    while let Some(data) = tensors.next() {
        chunk.extend_from_slice(data.as_bytes());
        waiting.push((data.as_bytes().len(), data.shape().clone(), data.dtype()));
        drop(data);
        if chunk.len() < bucket_bytes && tensors.peek().is_some() {
            continue;
        }
        group.broadcast_in_place(&mut chunk, 0)?;
        let mut rest = chunk.as_slice();
        for (bytes, shape, dtype) in waiting.drain(..) {
            let (own, others) = rest.split_at(bytes);
            rest = others;
            values.push(TensorData::from_bytes_vec(own.to_vec(), shape, dtype));
        }
        chunk.clear();
    }
    Ok(values)
}

/// Where the first values of a model come from, a tensor at a time and on each rank: a file of pretrained weights.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::tensor::TensorData;
/// use everburn::distributed::InitialValues;
///
/// #[derive(Debug)]
/// struct Ones;
///
/// impl InitialValues for Ones {
///     fn paths(&self) -> Vec<String> {
///         vec!["weight".to_string()]
///     }
///
///     fn value(&self, _path: &str) -> Result<TensorData, String> {
///         Ok(TensorData::ones::<f32, _>([4, 2]))
///     }
/// }
///
/// assert_eq!(Ones.value("weight").unwrap().shape().to_vec(), [4, 2]);
/// ```
pub trait InitialValues: fmt::Debug + Send + Sync {
    /// The paths of the tensors that it has, in the model.
    fn paths(&self) -> Vec<String>;

    /// The tensor at one of these paths.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn value(&self, path: &str) -> Result<TensorData, String>;
}

/// The value at `path` for a tensor of this shape and type.
pub(crate) fn initial_value(
    values: &dyn InitialValues,
    path: &str,
    shape: &[usize],
    dtype: DType,
) -> Result<TensorData, DdpError> {
    let failed = |reason| DdpError::InitialValue {
        parameter: path.to_string(),
        reason,
    };
    let data = values.value(path).map_err(failed)?;
    match data.shape().to_vec() == shape && data.dtype() == dtype {
        true => Ok(data),
        false => Err(failed(format!(
            "it is {:?} {:?}, and the model has {shape:?} {dtype:?}",
            data.shape(),
            data.dtype()
        ))),
    }
}

impl Ddp {
    /// As [`Ddp::new`], where each rank reads the first values of the model itself, from `values`: those of trained
    /// parameters when [`ParameterShards::new`](crate::ParameterShards::new) is called, which keeps this rank's shards of
    /// one after another, so that no rank ever holds all of them. In `model` these are [`placeholders`]. What `values`
    /// has not is rank 0's. Only with [`ShardStage::Parameters`]; all ranks call it.
    ///
    /// # Errors
    /// As [`Ddp::new`]; [`DdpError::Config`] if parameters are not sharded, or `values` has a tensor that the model has
    /// not; [`DdpError::InitialValue`] if one cannot be read.
    pub fn with_initial_values<M: Module>(
        model: M,
        group: ProcessGroup,
        config: DdpConfig,
        values: Arc<dyn InitialValues>,
    ) -> Result<(Self, M), DdpError> {
        if config.shard != Some(ShardStage::Parameters) {
            let problem = "first values are read in parts only where parameters are sharded";
            return Err(DdpError::Config(problem.to_string()));
        }
        Self::build(model, group, config, Reduction::Automatic, Some(values))
    }

    /// As [`Ddp::verify_replicas`], but for values that each rank is yet to read itself.
    pub(crate) fn verify_first_values<M: Module>(&self, model: &M) -> Result<(), DdpError> {
        let values = lock(&self.shared().initial).clone();
        let Some(values) = values.filter(|_| self.group().world_size() > 1) else {
            return self.verify_replicas(model);
        };
        let later: HashSet<String> = values.paths().into_iter().collect();
        let there = move |path: &str, kind| kind != TensorKind::Trainable || !later.contains(path);
        replicas::compare(&replicas::read_where(model, there)?, self.group())
    }
}

/// Gives `model`, which has these tensors, its first values, but for the trained ones that `values` has.
pub(crate) fn begin_with<M: Module>(
    model: M,
    group: &ProcessGroup,
    bucket_bytes: usize,
    tensors: &[TensorDescription],
    values: &dyn InitialValues,
) -> Result<M, DdpError> {
    let paths: HashSet<String> = values.paths().into_iter().collect();
    let in_model: HashSet<&String> = tensors.iter().map(|tensor| &tensor.path).collect();
    if let Some(path) = paths.iter().find(|path| !in_model.contains(path)) {
        let problem = format!("there are first values of `{path}`, which the model has not");
        return Err(DdpError::Config(problem));
    }
    let mut state = HashMap::new();
    for tensor in tensors {
        if paths.contains(&tensor.path) && tensor.kind != TensorKind::Trainable {
            let value = initial_value(values, &tensor.path, &tensor.shape, tensor.dtype)?;
            state.insert(tensor.position, value);
        }
    }
    if group.world_size() > 1 {
        let of_rank_0 = replicas::read_where(&model, |path, _| !paths.contains(path))?;
        let positions: Vec<usize> = of_rank_0
            .iter()
            .map(|(tensor, _)| tensor.position)
            .collect();
        let tensors = of_rank_0.into_iter().map(|(_, data)| data);
        state.extend(
            positions
                .into_iter()
                .zip(broadcast(tensors, group, bucket_bytes)?),
        );
    }
    Ok(replicas::replace_some(model, state))
}

/// `model` with zeros that take no memory in place of its weights at `paths`: those that are not drawn yet, or require a
/// gradient. No weight is drawn for it, unless `draws`: then all are, in their order and one at a time, so that those
/// that stay are as in a whole model.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::distributed::placeholders;
///
/// let linear = LinearConfig::new(3, 2).init(&Device::flex());
/// let linear = placeholders(linear, &["weight".to_string()].into(), false);
/// assert_eq!(linear.weight.val().into_data(), TensorData::zeros::<f32, _>([3, 2]));
/// ```
pub fn placeholders<M: Module>(model: M, paths: &HashSet<String>, draws: bool) -> M {
    model.map(&mut Placeholders {
        paths,
        draws,
        path: Vec::new(),
    })
}

struct Placeholders<'a> {
    paths: &'a HashSet<String>,
    draws: bool,
    path: Vec<String>,
}

impl ModuleMapper for Placeholders<'_> {
    everburn_nn::walking! { path }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, device, shape) = (param.id, param.lazy_device(), param.lazy_shape());
        // Running statistics are there from the beginning, and a model shares them with its clones.
        let is_there = param.is_initialized() && !param.base().is_require_grad();
        if self.draws {
            drop(param.base());
        }
        if is_there || !self.paths.contains(&self.path.join(".")) {
            return param;
        }
        // A view of one number: no step of an optimizer sees it, and a copy of the model costs nothing.
        let zeros = Tensor::<D>::zeros([1; D], &device).expand(shape);
        param.transform_for_load(zeros, id)
    }
}
