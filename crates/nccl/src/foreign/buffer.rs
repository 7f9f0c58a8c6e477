//! Memory that others have made on a GPU.

#![expect(unsafe_code, reason = "memory of a GPU is known by its pointer")]

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use everburn_collectives::group::DType;

use crate::error::LibraryError;

/// Numbers in a GPU's memory, and what keeps them there.
///
/// Cloning is cheap and gives another handle on the same memory. An operation holds a clone until the
/// GPU has finished it, so what the buffer was made of is not let go too early.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::DType;
/// use everburn_nccl_fake::FakeCluster;
///
/// let cluster = FakeCluster::new(1);
/// let buffer = cluster.allocate(0, &[1f32, 2.0, 3.0, 4.0]);
/// assert_eq!((buffer.len(), buffer.dtype()), (4, DType::F32));
/// assert_eq!(cluster.read::<f32>(&buffer.slice(1..3)?), [2.0, 3.0]);
/// # Ok::<(), everburn_nccl::LibraryError>(())
/// ```
#[derive(Clone)]
pub struct DeviceBuffer {
    pointer: u64,
    len: usize,
    dtype: DType,
    owner: Arc<dyn Any + Send + Sync>,
}

impl DeviceBuffer {
    /// `len` numbers of type `dtype` at `pointer`, which stay there while `owner` lives.
    ///
    /// `owner` is often dropped by the thread that finds an operation over first, and any other that waits
    /// for an operation waits for that: its `drop` must not wait for one itself.
    ///
    /// # Errors
    /// [`LibraryError::Buffer`] where no memory can be so long, or `pointer` is null.
    ///
    /// # Safety
    /// Until `owner` is dropped, `pointer` is the address of at least `len` numbers in memory that
    /// the rank's GPU can read and write. Whatever else reads or writes them is given to
    /// the GPU before the operation, or comes after it (`Work`).
    pub unsafe fn new<T: Send + 'static>(
        pointer: u64,
        len: usize,
        dtype: DType,
        owner: T,
    ) -> Result<Self, LibraryError> {
        // The lock makes an owner that is `Send` one that may be shared; nobody ever takes it.
        Self::checked(pointer, len, dtype, Arc::new(Mutex::new(owner)))
    }

    /// Memory that no GPU has.
    #[cfg(test)]
    pub(crate) fn imagined<T: Send + 'static>(
        pointer: u64,
        len: usize,
        dtype: DType,
        owner: T,
    ) -> Result<Self, LibraryError> {
        Self::checked(pointer, len, dtype, Arc::new(Mutex::new(owner)))
    }

    fn checked(
        pointer: u64,
        len: usize,
        dtype: DType,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, LibraryError> {
        let refuse = |reason| Err(LibraryError::Buffer { reason });
        let end = u64::try_from(len)
            .ok()
            .and_then(|len| len.checked_mul(dtype.size() as u64))
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .and_then(|bytes| pointer.checked_add(bytes));
        if end.is_none() {
            return refuse(format!(
                "{dtype}[{len}] at {pointer:#x} is longer than any memory"
            ));
        }
        if pointer == 0 && len > 0 {
            return refuse(format!("{dtype}[{len}] has no address"));
        }
        Ok(Self {
            pointer,
            len,
            dtype,
            owner,
        })
    }

    /// The numbers `range` of this buffer, in the same memory.
    ///
    /// # Errors
    /// [`LibraryError::Buffer`] for a range that is not in the buffer.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, LibraryError> {
        if range.start > range.end || range.end > self.len {
            return Err(LibraryError::Buffer {
                reason: format!(
                    "{}..{} is not in {}[{}]",
                    range.start, range.end, self.dtype, self.len
                ),
            });
        }
        // It is within the buffer, whose length in bytes has been checked.
        let offset = (range.start * self.dtype.size()) as u64;
        Ok(Self {
            pointer: self.pointer + offset,
            len: range.len(),
            dtype: self.dtype,
            owner: self.owner.clone(),
        })
    }

    /// How many numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Of which type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The address on the GPU.
    #[must_use]
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// The addresses of its bytes.
    #[must_use]
    pub fn bytes(&self) -> Range<u64> {
        self.pointer..self.pointer + (self.len * self.dtype.size()) as u64
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}] at {:#x}", self.dtype, self.len, self.pointer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_buffer_that_cannot_be_is_refused() {
        let refused = |pointer, len| {
            let made = DeviceBuffer::imagined(pointer, len, DType::F32, ());
            made.unwrap_err().to_string()
        };
        assert!(refused(4096, usize::MAX / 2).contains("longer than any memory"));
        assert!(refused(u64::MAX - 4, 2).contains("longer than any memory"));
        assert!(refused(0, 1).contains("f32[1] has no address"));
        assert!(
            DeviceBuffer::imagined(0, 0, DType::F32, ())
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn the_owner_lives_as_long_as_any_handle() {
        let owner = Arc::new(());
        // SAFETY: nobody reads or writes there.
        let buffer = unsafe { DeviceBuffer::new(4096, 8, DType::U8, owner.clone()) }.unwrap();
        let part = buffer.slice(2..4).unwrap();
        drop(buffer);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(part);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    proptest! {
        #[test]
        fn a_slice_lies_within_its_buffer(len in 0usize..1000, start in 0usize..1200, end in 0usize..1200) {
            let buffer = DeviceBuffer::imagined(1 << 40, len, DType::Bf16, ()).unwrap();
            match buffer.slice(start..end) {
                Ok(part) => {
                    prop_assert_eq!(part.len(), end - start);
                    let (whole, part) = (buffer.bytes(), part.bytes());
                    prop_assert!(whole.start <= part.start && part.end <= whole.end);
                }
                Err(_) => prop_assert!(start > end || end > len),
            }
        }
    }
}
