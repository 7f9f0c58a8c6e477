//! Reading, comparing and replacing all tensors of a module.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::prelude::*;
use burn::tensor::{Bool, DType, Int, Shape, TensorData};
use everburn_collectives::group::ProcessGroup;
use everburn_nn::TiedParameters;
use sha2::{Digest, Sha256};

use crate::error::DdpError;

/// What a tensor of a module is, without its values: ranks whose models differ differ here first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TensorDescription {
    /// Its number in visiting order.
    pub(crate) position: usize,
    pub(crate) path: String,
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) kind: TensorKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorKind {
    /// A float tensor with a gradient.
    Trainable,
    /// A float tensor without: a frozen parameter or a running statistic.
    FixedFloat,
    /// An integer or boolean tensor.
    Discrete,
}

impl std::fmt::Display for TensorDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, shape) = (&self.path, &self.shape);
        write!(f, "`{path}` {shape:?} {:?} ({:?})", self.dtype, self.kind)
    }
}

/// Batch norms keep their newest statistics aside until somebody asks for a validation copy; after
/// this call the values that a visitor sees are up to date.
pub(crate) fn flush_running_statistics<M: Module>(model: &M) {
    drop(model.valid());
}

/// Every tensor of the module in visiting order, without its values.
pub(crate) fn describe<M: Module>(model: &M) -> Vec<TensorDescription> {
    let none = |_: &str, _: TensorKind| false;
    let mut visitor = Reader::new(&none);
    model.visit(&mut visitor);
    visitor
        .tensors
        .into_iter()
        .map(|(description, _)| description)
        .collect()
}

/// Every tensor of the module in visiting order, with its values.
pub(crate) fn read<M: Module>(model: &M) -> Result<Vec<(TensorDescription, TensorData)>, DdpError> {
    read_where(model, |_, _| true)
}

/// The trained tensors in visiting order, with their values.
pub(crate) fn read_trained<M: Module>(
    model: &M,
) -> Result<Vec<(TensorDescription, TensorData)>, DdpError> {
    read_where(model, |_, kind| kind == TensorKind::Trainable)
}

/// The tensors that are neither trained nor whole numbers, with their values.
pub(crate) fn read_buffers<M: Module>(
    model: &M,
) -> Result<Vec<(TensorDescription, TensorData)>, DdpError> {
    read_where(model, |_, kind| kind == TensorKind::FixedFloat)
}

/// The tensors in visiting order whose paths and kinds are `wanted`, with their values.
pub(crate) fn read_where<M: Module>(
    model: &M,
    wanted: impl Fn(&str, TensorKind) -> bool,
) -> Result<Vec<(TensorDescription, TensorData)>, DdpError> {
    flush_running_statistics(model);
    let mut visitor = Reader::new(&wanted);
    model.visit(&mut visitor);
    let mut tensors = visitor.tensors;
    tensors.retain(|(description, _)| wanted(&description.path, description.kind));
    tensors.into_iter().map(read_or_error).collect()
}

fn read_or_error(
    (description, data): (TensorDescription, Result<TensorData, String>),
) -> Result<(TensorDescription, TensorData), DdpError> {
    match data {
        Ok(data) => Ok((description, data)),
        Err(reason) => Err(DdpError::Read {
            parameter: description.path,
            reason,
        }),
    }
}

/// The module with the values of every tensor replaced, in visiting order.
pub(crate) fn replace<M: Module>(model: M, values: Vec<TensorData>) -> M {
    let values = values.into_iter().enumerate().collect();
    replace_some(model, values)
}

/// The module with the values of some tensors replaced, by their numbers in visiting order.
pub(crate) fn replace_some<M: Module>(model: M, values: HashMap<usize, TensorData>) -> M {
    flush_running_statistics(&model);
    model.map(&mut Writer {
        values,
        position: 0,
        known: TiedParameters::default(),
    })
}

/// The module with every place of a parameter that it holds more than once as the first of them.
pub(crate) fn tie<M: Module>(model: M) -> M {
    replace_some(model, HashMap::new())
}

/// The size of a [`fingerprint`].
pub(crate) const FINGERPRINT_BYTES: usize = 32;

/// SHA-256 of type, shape and bytes.
pub(crate) fn fingerprint(data: &TensorData) -> [u8; FINGERPRINT_BYTES] {
    let mut hash = begin_fingerprint(data.dtype(), data.shape());
    hash.update(data.as_bytes());
    hash.finalize().into()
}

fn begin_fingerprint(dtype: DType, shape: &Shape) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update(format!("{dtype:?}{shape:?}"));
    hash
}

/// The identity of a tensor's values.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::nn::LinearConfig;
/// use burn::prelude::*;
/// use everburn::distributed::Fingerprint;
///
/// let linear = LinearConfig::new(2, 1).init(&Device::flex());
/// let fingerprints = Fingerprint::of_all(&linear)?;
/// assert_eq!(fingerprints[0].path, "weight");
/// assert_eq!(fingerprints[0].hash.len(), 32);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// The tensor's path in the model.
    pub path: String,
    /// Its identity in this process.
    pub id: ParamId,
    /// SHA-256 of type, shape and bytes.
    pub hash: [u8; FINGERPRINT_BYTES],
}

impl Fingerprint {
    /// Those of all parameters and buffers of `model`, in the order of its fields and in the layout in which they are saved.
    ///
    /// # Errors
    /// [`DdpError::Read`] if a device does not give the numbers.
    pub fn of_all<M: Module>(model: &M) -> Result<Vec<Self>, DdpError> {
        flush_running_statistics(model);
        let all = |_: &str, _: TensorKind| true;
        let mut visitor = Reader {
            as_saved: true,
            ..Reader::new(&all)
        };
        model.visit(&mut visitor);
        let of = |tensor| {
            let (description, data) = read_or_error(tensor)?;
            Ok(Self {
                hash: fingerprint(&data),
                path: description.path,
                id: description.id,
            })
        };
        visitor.tensors.into_iter().map(of).collect()
    }

    /// The [`hash`](Self::hash) of a tensor whose numbers are read from `bytes`, to their end.
    ///
    /// # Errors
    /// That of `bytes`.
    pub fn hash_of(
        dtype: DType,
        shape: &Shape,
        mut bytes: impl Read,
    ) -> io::Result<[u8; FINGERPRINT_BYTES]> {
        let mut hash = begin_fingerprint(dtype, shape);
        let mut block = vec![0_u8; 1 << 16];
        loop {
            match bytes.read(&mut block) {
                Ok(0) => return Ok(hash.finalize().into()),
                Ok(length) => hash.update(&block[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Compares tensors over the ranks of `group`, all of which call it.
pub(crate) fn compare(
    tensors: &[(TensorDescription, TensorData)],
    group: &ProcessGroup,
) -> Result<(), DdpError> {
    let hashes = tensors.iter().map(|(_, data)| fingerprint(data));
    match first_difference(hashes, group)? {
        None => Ok(()),
        Some((rank, position)) => Err(DdpError::Diverged {
            rank,
            parameter: tensors[position].0.path.clone(),
        }),
    }
}

/// The first rank whose fingerprints are not rank 0's, and the place of the first that differs. All ranks of `group`
/// call it.
pub(crate) fn first_difference(
    hashes: impl Iterator<Item = [u8; FINGERPRINT_BYTES]>,
    group: &ProcessGroup,
) -> Result<Option<(usize, usize)>, DdpError> {
    let all = group
        .all_gather(hashes.flatten().collect::<Vec<u8>>())
        .wait()?;
    let differences = all.iter().enumerate().map(|(rank, theirs)| {
        let mut pairs = all[0]
            .chunks(FINGERPRINT_BYTES)
            .zip(theirs.chunks(FINGERPRINT_BYTES));
        let position = pairs.position(|(a, b)| a != b);
        position.map(|position| (rank, position))
    });
    Ok(differences.flatten().next())
}

struct Reader<'a> {
    path: Vec<String>,
    /// Values are read in the layout in which they are saved, not in that in which a layer holds them.
    as_saved: bool,
    /// Whether the values at a path, of a kind, are read.
    reads: &'a dyn Fn(&str, TensorKind) -> bool,
    tensors: Vec<(TensorDescription, Result<TensorData, String>)>,
}

impl<'a> Reader<'a> {
    fn new(reads: &'a dyn Fn(&str, TensorKind) -> bool) -> Self {
        Self {
            path: Vec::new(),
            as_saved: false,
            reads,
            tensors: Vec::new(),
        }
    }

    /// Notes the next tensor; where its values go, if they are read.
    fn push(
        &mut self,
        id: ParamId,
        shape: Vec<usize>,
        dtype: DType,
        kind: TensorKind,
    ) -> Option<&mut Result<TensorData, String>> {
        let description = TensorDescription {
            position: self.tensors.len(),
            path: self.path.join("."),
            id,
            shape,
            dtype,
            kind,
        };
        let wanted = (self.reads)(&description.path, kind);
        let nothing = Ok(TensorData::new(Vec::<u8>::new(), [0]));
        self.tensors.push((description, nothing));
        let data = self.tensors.last_mut().map(|(_, data)| data);
        data.filter(|_| wanted)
    }
}

impl ModuleVisitor for Reader<'_> {
    everburn_nn::walking! { path }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = match self.as_saved {
            true => param.transform_for_save().val(),
            false => param.base(),
        };
        let kind = if value.is_require_grad() {
            TensorKind::Trainable
        } else {
            TensorKind::FixedFloat
        };
        let (shape, dtype) = (value.dims().to_vec(), value.dtype());
        if let Some(data) = self.push(param.id, shape, dtype, kind) {
            let read = value.without_autodiff().try_into_data();
            *data = read.map_err(|e| e.to_string());
        }
    }

    everburn_nn::walking! { visit others self, param => {
        let value = param.base();
        let (shape, dtype) = (value.dims().to_vec(), value.dtype());
        if let Some(data) = self.push(param.id, shape, dtype, TensorKind::Discrete) {
            *data = value.try_into_data().map_err(|e| e.to_string());
        }
    } }
}

struct Writer {
    values: HashMap<usize, TensorData>,
    position: usize,
    known: TiedParameters,
}

impl Writer {
    fn next(&mut self) -> Option<TensorData> {
        let position = self.position;
        self.position += 1;
        self.values.remove(&position)
    }
}

impl ModuleMapper for Writer {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let data = self.next();
        if let Some(known) = self.known.get(param.id) {
            return known;
        }
        let id = param.id;
        let param = match data {
            None => param,
            Some(data) => param.map(|old| {
                let dtype = data.dtype();
                Tensor::from_data(data, (&old.device(), dtype))
                    .set_require_grad(old.is_require_grad())
            }),
        };
        self.known.keep(id, param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.next() {
            None => param,
            Some(data) => param.map(|old| {
                let dtype = data.dtype();
                Tensor::from_data(data, (&old.device(), dtype))
            }),
        }
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        match self.next() {
            None => param,
            Some(data) => param.map(|old| Tensor::from_data(data, &old.device())),
        }
    }
}
