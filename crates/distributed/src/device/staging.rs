//! A tensor on its way to a thread that reads it.

use burn::prelude::*;
use burn::tensor::{TensorData, try_read_sync};
use everburn_collectives::group::ProcessGroup;

use crate::error::DdpError;

/// A tensor that another thread can read: what it waits for has been given to its device.
#[cfg_attr(
    feature = "gpu",
    allow(
        clippy::large_enum_variant,
        reason = "one is made per flat buffer, and moved once"
    )
)]
pub(crate) enum Staged {
    Tensor(Tensor<1>),
    #[cfg(feature = "gpu")]
    Gpu(super::gpu::StagedBuffer),
}

/// Makes a tensor ready to be read by another thread; does not wait for its device.
pub(crate) fn stage(numbers: Tensor<1>) -> Staged {
    #[cfg(feature = "gpu")]
    if let Some(buffer) = super::gpu::StagedBuffer::of(numbers.clone()) {
        return Staged::Gpu(buffer);
    }
    Staged::Tensor(numbers)
}

impl Staged {
    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Tensor(numbers) => numbers.device(),
            #[cfg(feature = "gpu")]
            Self::Gpu(buffer) => buffer.device(),
        }
    }

    /// The numbers of bucket `bucket`; waits for the device. The other ranks of `group` wait for them: it is given up
    /// where they cannot be read.
    pub(crate) fn read(self, bucket: usize, group: &ProcessGroup) -> Result<TensorData, DdpError> {
        self.data().map_err(|reason| {
            group.abort(format!("a bucket could not be read: {reason}"));
            let what = format!("bucket {bucket} of the gradients");
            DdpError::DeviceMemory { what, reason }
        })
    }

    fn data(self) -> Result<TensorData, String> {
        match self {
            Self::Tensor(numbers) => match try_read_sync(numbers.into_data_async()) {
                Some(Ok(data)) => Ok(data),
                Some(Err(error)) => Err(error.to_string()),
                None => Err("this platform cannot wait for a device".to_string()),
            },
            #[cfg(feature = "gpu")]
            Self::Gpu(buffer) => buffer.read(),
        }
    }
}
