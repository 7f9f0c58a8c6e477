//! From pixels to tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::prelude::*;
use burn::tensor::{Int, TensorData};

use crate::image_dataset::{IMAGE_HEIGHT, IMAGE_PIXELS, IMAGE_WIDTH, ImageItem};

/// Makes a batch of images and labels: each pixel becomes `(pixel * scale - mean) / std`.
///
/// # Shapes
/// - images `[B, 1, 28, 28]`, f32
/// - labels `[B]`, class indices
///
/// ```
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::prelude::*;
/// use everburn_datasets::{ImageBatcher, ImageItem};
///
/// let items = vec![ImageItem { pixels: [255; 784], label: 7 }];
/// let (images, labels) = ImageBatcher::unit().batch(items, &Device::flex());
/// assert_eq!(images.dims(), [1, 1, 28, 28]);
/// assert_eq!(images.max().into_scalar::<f32>(), 1.0);
/// assert_eq!(labels.into_scalar::<i64>(), 7);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageBatcher {
    /// What a pixel is multiplied by first.
    pub scale: f32,
    /// What is subtracted then.
    pub mean: f32,
    /// What is divided by last.
    pub std: f32,
}

impl ImageBatcher {
    /// Pixels as `0.0..=1.0`.
    pub fn unit() -> Self {
        Self {
            scale: 1.0 / 255.0,
            mean: 0.0,
            std: 1.0,
        }
    }

    /// Pixels as `0.0..=255.0`, as they lie in the file.
    pub fn bytes() -> Self {
        Self {
            scale: 1.0,
            ..Self::unit()
        }
    }

    /// Pixels with MNIST's mean moved to zero and its standard deviation to one.
    pub fn standardised() -> Self {
        Self {
            mean: crate::MNIST_MEAN,
            std: crate::MNIST_STD,
            ..Self::unit()
        }
    }
}

impl Batcher<ImageItem, (Tensor<4>, Tensor<1, Int>)> for ImageBatcher {
    fn batch(&self, items: Vec<ImageItem>, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let count = items.len();
        let mut pixels = Vec::with_capacity(count * IMAGE_PIXELS);
        let mut labels = Vec::with_capacity(count);
        for item in &items {
            let values = item
                .pixels
                .iter()
                .map(|&pixel| f32::from(pixel) * self.scale);
            pixels.extend(values.map(|value| (value - self.mean) / self.std));
            labels.push(i64::from(item.label));
        }
        let images = TensorData::new(pixels, [count, 1, IMAGE_HEIGHT, IMAGE_WIDTH]);
        let labels = TensorData::new(labels, [count]);
        (
            Tensor::from_data(images, device),
            Tensor::from_data(labels, device),
        )
    }
}
