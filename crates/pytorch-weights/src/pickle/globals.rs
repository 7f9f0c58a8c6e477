//! The names that a pickle of weights may have, those that `torch.load` takes with `weights_only` and a few more
//! of Python itself. Each stands for what it builds; none is called.

use crate::dtype::DType;

/// A class or function that may be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Global {
    /// A class of dicts, which begin empty.
    Dict,
    /// `_rebuild_tensor` and `_rebuild_tensor_v2`, whose storages have a type.
    Tensor,
    /// `_rebuild_tensor_v3`, which says the type.
    TensorWithType,
    /// A parameter is its tensor.
    Parameter,
    /// A tensor of a class, or with attributes.
    FromType,
    /// `torch.Tensor` and classes of tensors that are the same otherwise.
    TensorClass,
    Storage(StorageClass),
    /// A type of numbers, `torch.float32` say.
    Type(DType),
    /// A type of numbers that is not read.
    OtherType,
    /// `torch.Size`, a tuple.
    Size,
    /// Builds a value that weights are not made of.
    Other,
}

/// What a storage holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StorageClass {
    Of(DType),
    /// Bytes; each tensor says what they are.
    Untyped,
    /// Complex and quantised numbers.
    Unknown,
}

/// What is not of torch. Protocol 2 calls Python's `builtins` by their old name.
const OF_PYTHON: [(&str, Global); 15] = [
    ("collections.OrderedDict", Global::Dict),
    ("collections.defaultdict", Global::Dict),
    ("collections.Counter", Global::Other),
    ("_codecs.encode", Global::Other),
    ("__builtin__.bytearray", Global::Other),
    ("__builtin__.bytes", Global::Other),
    ("__builtin__.complex", Global::Other),
    ("__builtin__.frozenset", Global::Other),
    ("__builtin__.set", Global::Other),
    ("builtins.bytearray", Global::Other),
    ("builtins.bytes", Global::Other),
    ("builtins.complex", Global::Other),
    ("builtins.frozenset", Global::Other),
    ("builtins.set", Global::Other),
    ("torch.serialization._get_layout", Global::Other),
];

const OF_TORCH: [(&str, Global); 17] = [
    ("_utils._rebuild_tensor", Global::Tensor),
    ("_utils._rebuild_tensor_v2", Global::Tensor),
    ("_utils._rebuild_tensor_v3", Global::TensorWithType),
    ("_utils._rebuild_parameter", Global::Parameter),
    ("_utils._rebuild_parameter_with_state", Global::Parameter),
    ("_tensor._rebuild_from_type_v2", Global::FromType),
    ("Tensor", Global::TensorClass),
    ("nn.parameter.Parameter", Global::TensorClass),
    ("nn.parameter.Buffer", Global::TensorClass),
    ("Size", Global::Size),
    ("device", Global::Other),
    (
        "storage.UntypedStorage",
        Global::Storage(StorageClass::Untyped),
    ),
    ("UntypedStorage", Global::Storage(StorageClass::Untyped)),
    ("strided", Global::Other),
    ("contiguous_format", Global::Other),
    ("preserve_format", Global::Other),
    ("channels_last", Global::Other),
];

/// Types of numbers and of storages that may be named, though no tensor of them can be read.
const UNREAD: [&str; 14] = [
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "ComplexFloatStorage",
    "ComplexDoubleStorage",
    "QInt8Storage",
    "QInt32Storage",
    "QUInt8Storage",
    "QUInt4x2Storage",
];

/// Names, by how they begin and end, that build values that are not plain tensors; what these are, and what makes a
/// tensor of a value `v` in Python. Numpy is called otherwise in its older versions.
const NOT_PLAIN: [(&str, &str, &str, &str); 4] = [
    (
        "numpy.",
        "._reconstruct",
        "numpy arrays",
        "torch.as_tensor(v)",
    ),
    (
        "numpy.",
        "._frombuffer",
        "numpy arrays",
        "torch.as_tensor(v)",
    ),
    (
        "torch._utils._rebuild_sparse",
        "_tensor",
        "sparse tensors",
        "v.to_dense()",
    ),
    (
        "torch._utils.",
        "_rebuild_qtensor",
        "quantised tensors",
        "v.dequantize()",
    ),
];

/// What `module.name` builds and what makes a tensor of it, if that is numbers of a kind that is not read.
pub(super) fn not_plain(full: &[u8]) -> Option<(&'static str, &'static str)> {
    let found = NOT_PLAIN.iter().find(|(begin, end, ..)| {
        full.starts_with(begin.as_bytes()) && full.ends_with(end.as_bytes())
    });
    found.map(|(_, _, what, convert)| (*what, *convert))
}

impl Global {
    /// What `module.name` stands for; `None` of what weights do not need.
    pub(super) fn of(full: &[u8]) -> Option<Self> {
        let known = OF_PYTHON.iter().find(|(known, _)| known.as_bytes() == full);
        if let Some((_, global)) = known {
            return Some(*global);
        }
        let full = std::str::from_utf8(full).ok()?;
        Self::of_torch(full.strip_prefix("torch.")?)
    }

    fn of_torch(name: &str) -> Option<Self> {
        if let Some((_, global)) = OF_TORCH.iter().find(|(known, _)| *known == name) {
            return Some(*global);
        }
        if let Some(dtype) = DType::of_name(name) {
            return Some(Self::Type(dtype));
        }
        if let Some(dtype) = DType::of_storage_class(name) {
            return Some(Self::Storage(StorageClass::Of(dtype)));
        }
        UNREAD
            .contains(&name)
            .then(|| match name.ends_with("Storage") {
                true => Self::Storage(StorageClass::Unknown),
                false => Self::OtherType,
            })
    }
}
