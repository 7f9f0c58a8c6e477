//! A tensor on its way to a thread that reads it.

use burn::prelude::*;
use burn::tensor::{Element, TensorData};
use everburn_collectives::group::ProcessGroup;

use crate::error::DdpError;
use crate::gradient::wait_for_data;

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
        self.data()
            .map_err(|reason| unreadable(bucket, group, reason))
    }

    fn data(self) -> Result<TensorData, String> {
        match self {
            Self::Tensor(numbers) => wait_for_data(numbers.into_data_async()),
            #[cfg(feature = "gpu")]
            Self::Gpu(buffer) => buffer.read(),
        }
    }
}

/// The numbers in `data` that were read of bucket `bucket`. A device that is lost may say so only here: `group` is given up
/// then, too.
pub(crate) fn numbers_of<'a, T: Element>(
    bucket: usize,
    data: &'a mut TensorData,
    group: &ProcessGroup,
) -> Result<&'a mut [T], DdpError> {
    data.as_mut_slice::<T>()
        .map_err(|error| unreadable(bucket, group, error.to_string()))
}

fn unreadable(bucket: usize, group: &ProcessGroup, reason: String) -> DdpError {
    let what = format!("bucket {bucket} of the gradients");
    group.abort(format!("{what} could not be read: {reason}"));
    DdpError::DeviceMemory { what, reason }
}

#[cfg(test)]
mod tests {
    use everburn_collectives::group::GroupOptions;

    use super::*;

    #[test]
    fn a_bucket_that_cannot_be_read_is_named_and_ends_the_group() {
        let group = ProcessGroup::alone(GroupOptions::default());
        let mut data = TensorData::from([1.0_f32, 2.0]);
        assert_eq!(
            numbers_of::<f32>(3, &mut data, &group).unwrap(),
            [1.0_f32, 2.0]
        );
        assert!(group.failure().is_none());
        let error = numbers_of::<f64>(3, &mut data, &group).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("bucket 3 of the gradients"), "{error}");
        let reason = group.failure().unwrap().reason;
        assert!(
            reason.contains("bucket 3 of the gradients could not be read"),
            "{reason}"
        );
    }
}
