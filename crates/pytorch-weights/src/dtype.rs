//! Types of numbers.

use std::fmt;

/// A type of numbers that tensors may have.
///
/// ```
/// use everburn_pytorch_weights::DType;
///
/// assert_eq!(DType::BF16.size(), 2);
/// assert_eq!(DType::BF16.to_string(), "torch.bfloat16");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// `torch.float64`
    F64,
    /// `torch.float32`
    F32,
    /// `torch.float16`
    F16,
    /// `torch.bfloat16`
    BF16,
    /// `torch.int64`
    I64,
    /// `torch.int32`
    I32,
    /// `torch.int16`
    I16,
    /// `torch.int8`
    I8,
    /// `torch.uint64`
    U64,
    /// `torch.uint32`
    U32,
    /// `torch.uint16`
    U16,
    /// `torch.uint8`
    U8,
    /// `torch.bool`, a byte each, 0 or 1
    Bool,
}

/// Each type, its name as `torch.<name>`, its storage class where it has one, and its size.
const TYPES: [(DType, &str, Option<&str>, usize); 13] = [
    (DType::F64, "float64", Some("DoubleStorage"), 8),
    (DType::F32, "float32", Some("FloatStorage"), 4),
    (DType::F16, "float16", Some("HalfStorage"), 2),
    (DType::BF16, "bfloat16", Some("BFloat16Storage"), 2),
    (DType::I64, "int64", Some("LongStorage"), 8),
    (DType::I32, "int32", Some("IntStorage"), 4),
    (DType::I16, "int16", Some("ShortStorage"), 2),
    (DType::I8, "int8", Some("CharStorage"), 1),
    (DType::U64, "uint64", None, 8),
    (DType::U32, "uint32", None, 4),
    (DType::U16, "uint16", None, 2),
    (DType::U8, "uint8", Some("ByteStorage"), 1),
    (DType::Bool, "bool", Some("BoolStorage"), 1),
];

impl DType {
    fn entry(self) -> (&'static str, Option<&'static str>, usize) {
        let found = TYPES.iter().find(|(dtype, ..)| *dtype == self);
        let (_, name, class, size) = found.expect("every type is in the table");
        (name, *class, *size)
    }

    /// How many bytes a number has.
    pub fn size(self) -> usize {
        self.entry().2
    }

    /// The class of its storages in PyTorch; later types have none.
    pub(crate) fn storage_class(self) -> Option<&'static str> {
        self.entry().1
    }

    pub(crate) fn of_storage_class(class: &str) -> Option<Self> {
        let found = TYPES.iter().find(|(_, _, known, _)| *known == Some(class));
        found.map(|(dtype, ..)| *dtype)
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let found = TYPES.iter().find(|(_, known, ..)| *known == name);
        found.map(|(dtype, ..)| *dtype)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "torch.{}", self.entry().0)
    }
}
