//! On which device a batch is.

use burn::prelude::*;
use burn::tensor::Int;
use everburn_distributed::{DdpError, name_of};

use crate::model::batch_tensors::{BatchVisitor, visit_batch};
use crate::model::erased::AnyBatch;

/// Checks that a batch is on this rank's device, as far as its type is known. A batcher that takes another device than it
/// is given would have the first GPU compute for all ranks, or be refused by CubeCL in the middle of a step.
///
/// # Errors
/// [`DdpError::Elsewhere`] naming where it is.
pub(crate) fn check_batch(batch: &AnyBatch, device: &Device) -> Result<(), DdpError> {
    for (what, found) in devices_of(batch) {
        if found != *device {
            return Err(DdpError::Elsewhere {
                what: format!("a batch's {what}"),
                found: name_of(&found),
                expected: name_of(device),
            });
        }
    }
    Ok(())
}

/// The devices of the batch's tensors, each with the tensor's name.
fn devices_of(batch: &AnyBatch) -> Vec<(&'static str, Device)> {
    #[derive(Default)]
    struct Devices(Vec<(&'static str, Device)>);
    impl BatchVisitor for Devices {
        fn float<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D>) {
            self.0.push((name, tensor.device()));
        }

        fn int<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D, Int>) {
            self.0.push((name, tensor.device()));
        }
    }
    let mut devices = Devices::default();
    visit_batch(batch, &mut devices);
    devices.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_batch_is_where_it_should_be() {
        let device = Device::flex();
        let images = AnyBatch::new((
            Tensor::<4>::zeros([2, 1, 4, 4], &device),
            Tensor::<1, Int>::zeros([2], &device),
        ));
        let expected = ["input", "classes"].map(|name| (name, device.clone()));
        assert_eq!(devices_of(&images), expected);
        check_batch(&images, &device.clone().autodiff()).unwrap();
        let alone = (
            Tensor::<2>::zeros([2, 3], &device),
            Tensor::<2>::zeros([2, 1], &device),
        );
        let expected = ["input", "targets"].map(|name| (name, device.clone()));
        assert_eq!(devices_of(&AnyBatch::new((alone, ()))), expected);
        let unknown = AnyBatch::new("something else");
        assert!(devices_of(&unknown).is_empty());
        check_batch(&unknown, &device).unwrap();
    }
}
