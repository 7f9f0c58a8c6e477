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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StorageClass {
    Of(DType),
    /// Bytes; each tensor says what they are.
    Untyped,
    /// Complex and quantised numbers.
    Unknown,
}

/// What builds values that weights are not made of. Protocol 2 calls Python's `builtins` by their old name.
const OTHERS: &str = "collections.Counter _codecs.encode \
    __builtin__.bytearray __builtin__.bytes __builtin__.complex __builtin__.frozenset __builtin__.set \
    builtins.bytearray builtins.bytes builtins.complex builtins.frozenset builtins.set \
    torch.serialization._get_layout torch.device \
    torch.strided torch.contiguous_format torch.preserve_format torch.channels_last";

/// Types of numbers and of storages that may be named, though no tensor of them can be read.
const UNREAD: &str = "complex32 complex64 complex128 \
    float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu \
    ComplexFloatStorage ComplexDoubleStorage QInt8Storage QInt32Storage QUInt8Storage QUInt4x2Storage";

/// Of a name `module.name` that builds values that are not plain tensors: what these are, and what makes a tensor of a
/// value `v` in Python. Numpy is called otherwise in its older versions.
pub(super) fn not_plain(full: &[u8]) -> Option<(&'static str, &'static str)> {
    let is = |begin: &[u8], end: &[u8]| full.starts_with(begin) && full.ends_with(end);
    if is(b"numpy.", b"._reconstruct") || is(b"numpy.", b"._frombuffer") {
        Some(("numpy arrays", "torch.as_tensor(v)"))
    } else if is(b"torch._utils._rebuild_sparse", b"_tensor") {
        Some(("sparse tensors", "v.to_dense()"))
    } else if is(b"torch._utils.", b"_rebuild_qtensor") {
        Some(("quantised tensors", "v.dequantize()"))
    } else {
        None
    }
}

impl Global {
    /// What `module.name` stands for; `None` of what weights do not need.
    pub(super) fn of(full: &[u8]) -> Option<Self> {
        let full = std::str::from_utf8(full).ok()?;
        Some(match full {
            "collections.OrderedDict" | "collections.defaultdict" => Self::Dict,
            "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" => Self::Tensor,
            "torch._utils._rebuild_tensor_v3" => Self::TensorWithType,
            "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
                Self::Parameter
            }
            "torch._tensor._rebuild_from_type_v2" => Self::FromType,
            "torch.Tensor" | "torch.nn.parameter.Parameter" | "torch.nn.parameter.Buffer" => {
                Self::TensorClass
            }
            "torch.Size" => Self::Size,
            "torch.storage.UntypedStorage" | "torch.UntypedStorage" => {
                Self::Storage(StorageClass::Untyped)
            }
            _ if OTHERS.split(' ').any(|known| known == full) => Self::Other,
            _ => return Self::of_numbers(full.strip_prefix("torch.")?),
        })
    }

    /// A type of numbers, or a storage of numbers of a type.
    fn of_numbers(name: &str) -> Option<Self> {
        if let Some(dtype) = DType::of_name(name) {
            return Some(Self::Type(dtype));
        }
        if let Some(dtype) = DType::of_storage_class(name) {
            return Some(Self::Storage(StorageClass::Of(dtype)));
        }
        let is_known = UNREAD.split(' ').any(|known| known == name);
        is_known.then(|| match name.ends_with("Storage") {
            true => Self::Storage(StorageClass::Unknown),
            false => Self::OtherType,
        })
    }
}
