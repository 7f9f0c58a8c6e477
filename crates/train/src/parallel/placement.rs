//! On which device a batch is.

use std::any::Any;

use burn::prelude::*;
use burn::tensor::Int;
use everburn_distributed::{DdpError, name_of};

use crate::model::erased::AnyBatch;
use crate::model::supervised::{LabeledBatch, MaskedTextBatch, TextBatch};

/// Checks that a batch is on this rank's device, as far as its type is known: images or rows with classes,
/// and texts. A batcher that takes another device than it is given would have the first GPU compute for
/// all ranks, or be refused by CubeCL in the middle of a step.
///
/// # Errors
/// [`DdpError::Elsewhere`] naming where it is.
pub(crate) fn check_batch(batch: &AnyBatch, device: &Device) -> Result<(), DdpError> {
    for (what, found) in devices_of(batch.inner()).into_iter().flatten() {
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

fn devices_of(batch: &dyn Any) -> Option<[(&'static str, Device); 2]> {
    fn labeled<const D: usize>(batch: &dyn Any) -> Option<[(&'static str, Device); 2]> {
        let (inputs, classes) = batch.downcast_ref::<LabeledBatch<D>>()?;
        Some([("input", inputs.device()), ("classes", classes.device())])
    }
    fn text(batch: &dyn Any) -> Option<[(&'static str, Device); 2]> {
        let (tokens, next): &(Tensor<2, Int>, Tensor<2, Int>) =
            batch.downcast_ref::<TextBatch>()?;
        Some([("tokens", tokens.device()), ("targets", next.device())])
    }
    fn masked(batch: &dyn Any) -> Option<[(&'static str, Device); 2]> {
        let (tokens, (next, _)) = batch.downcast_ref::<MaskedTextBatch>()?;
        Some([("tokens", tokens.device()), ("targets", next.device())])
    }
    text(batch)
        .or_else(|| masked(batch))
        .or_else(|| labeled::<2>(batch))
        .or_else(|| labeled::<4>(batch))
        .or_else(|| labeled::<3>(batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_batch_is_where_it_should_be() {
        let device = Device::flex();
        let images = (
            Tensor::<4>::zeros([2, 1, 4, 4], &device),
            Tensor::<1, Int>::zeros([2], &device),
        );
        let [(_, inputs), (_, classes)] = devices_of(&images).unwrap();
        assert_eq!([&inputs, &classes], [&device, &device]);
        check_batch(&AnyBatch::new(images), &device.clone().autodiff()).unwrap();
        assert_eq!(devices_of(&"something else"), None);
        check_batch(&AnyBatch::new("something else"), &device).unwrap();
    }
}
