//! The elements of a message, shared without a copy.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use crate::group::{DType, Element};

/// Whoever owns the elements: a `Vec` of any element type.
trait Owner: Any + Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: Element> Owner for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

/// A run of elements of one type, cheap to clone: clones share the elements.
///
/// What a rank sends is a part of the caller's own `Vec`; what it receives was read from the
/// network into a `Vec` of the right type, which [`Payload::into_vec`] hands out as it is.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::transport::Payload;
///
/// let payload = Payload::from_vec(vec![1.0f32, 2.0]);
/// assert_eq!(payload.as_slice::<f32>().unwrap(), [1.0, 2.0]);
/// assert!(payload.as_slice::<i32>().is_none());
/// ```
#[derive(Clone)]
pub struct Payload {
    dtype: DType,
    owner: Option<Arc<dyn Owner>>,
    /// The bytes of the owner that are meant.
    range: Range<usize>,
}

impl Payload {
    /// No elements: what travels with a signature alone.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            dtype: DType::U8,
            owner: None,
            range: 0..0,
        }
    }

    /// All elements of `values`.
    #[must_use]
    pub fn from_vec<T: Element>(values: Vec<T>) -> Self {
        let length = values.len();
        Self::part_of(&Arc::new(values), 0..length)
    }

    /// The elements `range` of `values`, which the payload keeps alive; none where `range` is out
    /// of bounds.
    #[must_use]
    pub fn part_of<T: Element>(values: &Arc<Vec<T>>, range: Range<usize>) -> Self {
        let size = size_of::<T>();
        let range = if values.get(range.clone()).is_some() {
            range
        } else {
            0..0
        };
        let owner: Arc<dyn Owner> = values.clone();
        Self {
            dtype: T::DTYPE,
            owner: Some(owner),
            range: range.start * size..range.end * size,
        }
    }

    /// Zeros of type `dtype`, to be overwritten with what a peer sends; `None` where there is not enough memory.
    /// The system provides zeroed pages as they are written: a length that is never sent costs nothing.
    pub(crate) fn zeroed(dtype: DType, bytes: u64) -> Option<Self> {
        fn owner<T: Element>(bytes: usize) -> Option<Arc<dyn Owner>> {
            let values: Vec<T> =
                bytemuck::allocation::try_zeroed_vec(bytes / size_of::<T>()).ok()?;
            Some(Arc::new(values))
        }
        if bytes == 0 {
            return Some(Self::empty());
        }
        let bytes = usize::try_from(bytes).ok()?;
        let owner = match dtype {
            DType::F32 => owner::<f32>(bytes),
            DType::F64 => owner::<f64>(bytes),
            DType::F16 => owner::<f16>(bytes),
            DType::Bf16 => owner::<bf16>(bytes),
            DType::I32 => owner::<i32>(bytes),
            DType::I64 => owner::<i64>(bytes),
            DType::U8 => owner::<u8>(bytes),
        };
        Some(Self {
            dtype,
            owner: Some(owner?),
            range: 0..bytes,
        })
    }

    /// The bytes, to write; none once the elements are shared.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let owner = self.owner.as_mut().and_then(Arc::get_mut);
        let bytes = owner.map_or(&mut [][..], |owner| owner.bytes_mut());
        bytes.get_mut(self.range.clone()).unwrap_or_default()
    }

    /// The type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len() / self.dtype.size()
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The elements as bytes in this machine's order (little-endian on every supported one).
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.owner.as_ref().map_or(&[][..], |owner| owner.bytes());
        bytes.get(self.range.clone()).unwrap_or(&[])
    }

    /// The elements, or `None` if they are of another type. An empty payload is of any type.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        if self.is_empty() {
            return Some(&[]);
        }
        if self.dtype != T::DTYPE {
            return None;
        }
        // Cannot fail: the owner is a `Vec<T>` and the range counts whole elements.
        bytemuck::try_cast_slice(self.bytes()).ok()
    }

    /// The elements as a `Vec`, or `None` if they are of another type.
    ///
    /// Costs nothing where this payload is the only one of all the elements of its owner, which is
    /// so for everything that came over the network; else the elements are copied.
    #[must_use]
    pub fn into_vec<T: Element>(self) -> Option<Vec<T>> {
        self.as_slice::<T>()?;
        let Self {
            owner: Some(owner),
            range,
            ..
        } = self
        else {
            return Some(Vec::new());
        };
        if range.is_empty() {
            return Some(Vec::new());
        }
        let whole = range == (0..owner.bytes().len());
        let owner: Arc<dyn Any + Send + Sync> = owner;
        let owner: Arc<Vec<T>> = owner.downcast().ok()?;
        let elements = range.start / size_of::<T>()..range.end / size_of::<T>();
        if !whole {
            return Some(owner[elements].to_vec());
        }
        Some(Arc::try_unwrap(owner).unwrap_or_else(|shared| shared.to_vec()))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.dtype, self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_whole_payload_is_handed_out_without_a_copy() {
        let values = vec![1i64, 2, 3];
        let address = values.as_ptr();
        let vec = Payload::from_vec(values).into_vec::<i64>().unwrap();
        assert_eq!(vec.as_ptr(), address);
    }

    #[test]
    fn zeros_can_be_written_until_they_are_shared() {
        let mut payload = Payload::zeroed(DType::I32, 8).unwrap();
        payload.bytes_mut()[4..].copy_from_slice(&7i32.to_le_bytes());
        let clone = payload.clone();
        assert!(payload.bytes_mut().is_empty());
        drop(clone);
        assert_eq!(payload.into_vec::<i32>().unwrap(), [0, 7]);
        assert!(Payload::zeroed(DType::U8, u64::MAX).is_none());
        assert!(Payload::zeroed(DType::F64, 0).unwrap().is_empty());
    }

    #[test]
    fn parts_and_clones_are_copied() {
        let values = Arc::new(vec![1u8, 2, 3, 4]);
        let part = Payload::part_of(&values, 1..3);
        assert_eq!(part.len(), 2);
        assert_eq!(part.into_vec::<u8>().unwrap(), [2, 3]);
        let whole = Payload::part_of(&values, 0..4);
        assert_eq!(whole.clone().into_vec::<u8>().unwrap(), [1, 2, 3, 4]);
        assert!(whole.into_vec::<f32>().is_none());
        assert!(Payload::part_of(&values, 3..usize::MAX).is_empty());
    }
}
