//! From pixels to tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::prelude::*;
use burn::tensor::{Int, TensorData};

use crate::image_dataset::{IMAGE_HEIGHT, IMAGE_PIXELS, IMAGE_WIDTH, ImageItem};
use crate::image_folder::RgbItem;

/// Makes a batch of images and labels: each pixel becomes `(pixel * scale - mean) / std`.
///
/// # Shapes
/// - images `[B, 1, 28, 28]`, f32
/// - labels `[B]`, class indices
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::prelude::*;
/// use everburn::datasets::{ImageBatcher, ImageItem};
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

    /// Pixels as `0.0..=255.0`, as they are in the file.
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

/// Makes a batch of color images and their classes: each pixel becomes `(pixel / 255 - mean) / std` of its channel.
///
/// # Shapes
/// - images `[B, 3, height, width]`, f32
/// - classes `[B]`, class indices
///
/// # Panics
/// Panics if the images of a batch differ in size; those of an [`ImageFolder`](crate::ImageFolder) do not.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::prelude::*;
/// use everburn::datasets::{RgbBatcher, RgbItem};
///
/// let item = RgbItem { pixels: vec![255; 3 * 2 * 4].into(), size: [2, 4],
///     file: std::path::Path::new("1.png").into(), class: 1 };
/// let (images, classes) = RgbBatcher::default().batch(vec![item.clone(), item], &Device::flex());
/// assert_eq!((images.dims(), classes.dims()), ([2, 3, 2, 4], [2]));
/// assert_eq!(images.max().into_scalar::<f32>(), 1.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RgbBatcher {
    /// The mean of red, green and blue, from 0 to 1.
    pub mean: [f32; 3],
    /// Their standard deviations.
    pub std: [f32; 3],
}

impl Default for RgbBatcher {
    /// Pixels from -1 to 1.
    fn default() -> Self {
        Self {
            mean: [0.5; 3],
            std: [0.5; 3],
        }
    }
}

impl RgbBatcher {
    /// The statistics of ImageNet, which models from torchvision expect.
    pub fn imagenet() -> Self {
        Self {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
        }
    }
}

impl Batcher<RgbItem, (Tensor<4>, Tensor<1, Int>)> for RgbBatcher {
    fn batch(&self, items: Vec<RgbItem>, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let count = items.len();
        let [height, width] = items.first().map_or([0, 0], |item| item.size);
        let plane = height * width;
        let mut pixels = Vec::with_capacity(count * 3 * plane);
        let mut classes = Vec::with_capacity(count);
        for item in &items {
            assert_eq!(
                item.size,
                [height, width],
                "the images of a batch differ in size"
            );
            for (channel, (mean, std)) in self.mean.iter().zip(self.std).enumerate() {
                let plane = &item.pixels[channel * plane..][..plane];
                let values = plane.iter().map(|&pixel| f32::from(pixel) / 255.0);
                pixels.extend(values.map(|value| (value - mean) / std));
            }
            classes.push(item.class as i64);
        }
        let images = TensorData::new(pixels, [count, 3, height, width]);
        let classes = TensorData::new(classes, [count]);
        (
            Tensor::from_data(images, device),
            Tensor::from_data(classes, device),
        )
    }
}
