//! Memory of a GPU for those who have no tensors: tests and measurements.

#![expect(unsafe_code, reason = "memory of a GPU is known by its pointer")]

use std::fmt;
use std::sync::Arc;

use everburn_collectives::group::DType;

use super::buffer::DeviceBuffer;
use super::context::Context;
use super::driver::Driver;
use crate::error::LibraryError;
use crate::vendor::Vendor;

/// A piece of a GPU's memory, of one type of number.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_nccl as nccl; }
/// use everburn::collectives::group::DType;
/// use everburn::nccl::GpuMemory;
///
/// // Without a GPU, the error says what is missing.
/// match GpuMemory::allocate(0, 4, DType::U8) {
///     Ok(memory) => {
///         memory.write(&[1, 2, 3, 4])?;
///         assert_eq!(memory.read()?, [1, 2, 3, 4]);
///     }
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), everburn_nccl::LibraryError>(())
/// ```
#[derive(Clone)]
pub struct GpuMemory {
    piece: Arc<Piece>,
    len: usize,
    dtype: DType,
}

struct Piece {
    context: Context,
    pointer: u64,
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: this is the last owner; buffers that were made of it are owners too, and operations
        // hold theirs until they are over.
        unsafe { self.context.free(self.pointer) };
    }
}

impl GpuMemory {
    /// Room for `len` numbers of type `dtype` on NVIDIA's GPU with this number.
    ///
    /// # Errors
    /// [`LibraryError::Buffer`] when nothing can be so long, and that of a GPU that is not there or has not so much memory.
    pub fn allocate(device: usize, len: usize, dtype: DType) -> Result<Self, LibraryError> {
        let bytes = len.checked_mul(dtype.size());
        let bytes = bytes.ok_or_else(|| LibraryError::Buffer {
            reason: format!("{dtype}[{len}] is longer than any memory"),
        })?;
        let context = Context::of(Driver::load(Vendor::Nvidia)?, device)?;
        let pointer = context.allocate(bytes)?;
        let piece = Arc::new(Piece { context, pointer });
        Ok(Self { piece, len, dtype })
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// Copies `bytes` there; returns when they are there.
    ///
    /// # Errors
    /// [`LibraryError::Buffer`] when they are more or fewer, [`LibraryError::Driver`] when the GPU has
    /// failed.
    pub fn write(&self, bytes: &[u8]) -> Result<(), LibraryError> {
        if bytes.len() != self.bytes() {
            return Err(LibraryError::Buffer {
                reason: format!("{} bytes are not {}[{}]", bytes.len(), self.dtype, self.len),
            });
        }
        // SAFETY: the piece has as many bytes.
        unsafe { self.piece.context.upload(self.piece.pointer, bytes) }?;
        Ok(())
    }

    /// What is there. Waits for nothing that is under way.
    ///
    /// # Errors
    /// [`LibraryError::Driver`] when the GPU has failed.
    pub fn read(&self) -> Result<Vec<u8>, LibraryError> {
        let mut bytes = vec![0; self.bytes()];
        // SAFETY: the piece has as many bytes.
        unsafe { self.piece.context.download(self.piece.pointer, &mut bytes) }?;
        Ok(bytes)
    }

    /// The same memory for operations on that GPU.
    #[must_use]
    pub fn buffer(&self) -> DeviceBuffer {
        // SAFETY: the piece is of that length, and lives as long as the clone of its owner.
        let buffer = unsafe {
            DeviceBuffer::new(self.piece.pointer, self.len, self.dtype, self.piece.clone())
        };
        buffer.expect("what the driver has allocated has an address and a length")
    }
}

impl fmt::Debug for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[{}] at {:#x}",
            self.dtype, self.len, self.piece.pointer
        )
    }
}
