//! From pixels to tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::prelude::*;
use burn::tensor::{Int, TensorData};

use crate::image_dataset::{IMAGE_HEIGHT, IMAGE_PIXELS, IMAGE_WIDTH, ImageItem};
use crate::rgb_item::RgbItem;
use crate::table::TableRow;

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
/// - images `[B, 3, height, width]`, f32; `[B, 1, height, width]` of grey ones
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
///     file: std::path::Path::new("1.png").into(), class: 1, mixed: None };
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

    /// Images `[B, C, height, width]`. Of grey images, mean and deviation are the means of those of the colors.
    fn images(&self, items: &[RgbItem], device: &Device) -> Tensor<4> {
        let count = items.len();
        let [height, width] = items.first().map_or([0, 0], |item| item.size);
        let channels = items.first().map_or(3, RgbItem::channels);
        let of_grey = |values: [f32; 3]| [values.iter().sum::<f32>() / 3.0; 3];
        let (means, deviations) = match channels {
            1 => (of_grey(self.mean), of_grey(self.std)),
            _ => (self.mean, self.std),
        };
        let plane = height * width;
        let mut pixels = Vec::with_capacity(count * channels * plane);
        for item in items {
            assert_eq!(
                (item.size, item.channels()),
                ([height, width], channels),
                "the images of a batch differ in size"
            );
            for (channel, (mean, std)) in means.iter().zip(deviations).take(channels).enumerate() {
                let plane = &item.pixels[channel * plane..][..plane];
                let values = plane.iter().map(|&pixel| f32::from(pixel) / 255.0);
                pixels.extend(values.map(|value| (value - mean) / std));
            }
        }
        Tensor::from_data(
            TensorData::new(pixels, [count, channels, height, width]),
            device,
        )
    }
}

/// A tensor `[B]` of class indices.
fn classes(
    items: &[RgbItem],
    class: impl Fn(&RgbItem) -> usize,
    device: &Device,
) -> Tensor<1, Int> {
    let classes: Vec<i64> = items.iter().map(|item| class(item) as i64).collect();
    Tensor::from_data(TensorData::new(classes, [items.len()]), device)
}

impl Batcher<RgbItem, (Tensor<4>, Tensor<1, Int>)> for RgbBatcher {
    fn batch(&self, items: Vec<RgbItem>, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let classes = classes(&items, |item| item.class, device);
        (self.images(&items, device), classes)
    }
}

/// The classes `[B]` of images; where images are mixed (mixup, cutmix), the other class of each, and its share from 0 to
/// a half: `[B]` and `[B]`.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::MixedClasses;
///
/// fn samples((classes, _mixed): &MixedClasses) -> usize {
///     classes.dims()[0]
/// }
/// ```
pub type MixedClasses = (Tensor<1, Int>, Option<(Tensor<1, Int>, Tensor<1>)>);

/// An [`RgbBatcher`] for images that may be mixed.
///
/// # Shapes
/// - images `[B, C, height, width]`, f32
/// - classes: [`MixedClasses`]
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::prelude::*;
/// use everburn::datasets::{MixBatcher, RgbBatcher, RgbItem};
///
/// let item = RgbItem { pixels: vec![255; 3 * 2 * 4].into(), size: [2, 4],
///     file: std::path::Path::new("1.png").into(), class: 1, mixed: Some((0, 0.25)) };
/// let (_images, (classes, mixed)) = MixBatcher(RgbBatcher::default()).batch(vec![item], &Device::flex());
/// assert_eq!(classes.into_scalar::<i64>(), 1);
/// assert_eq!(mixed.unwrap().1.into_scalar::<f32>(), 0.25);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixBatcher(pub RgbBatcher);

impl Batcher<RgbItem, (Tensor<4>, MixedClasses)> for MixBatcher {
    fn batch(&self, items: Vec<RgbItem>, device: &Device) -> (Tensor<4>, MixedClasses) {
        let own = classes(&items, |item| item.class, device);
        let mixed = items.iter().any(|item| item.mixed.is_some()).then(|| {
            let other = |item: &RgbItem| item.mixed.map_or(item.class, |(class, _)| class);
            let share = |item: &RgbItem| item.mixed.map_or(0.0, |(_, share)| share);
            let shares: Vec<f32> = items.iter().map(share).collect();
            let shares = TensorData::new(shares, [items.len()]);
            (
                classes(&items, other, device),
                Tensor::from_data(shares, device),
            )
        });
        (self.0.images(&items, device), (own, mixed))
    }
}

/// Makes a batch of rows of a table.
///
/// # Shapes
/// - features `[B, width]`, f32
/// - targets `[B]`, f32: standardised numbers, or numbers of classes
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::prelude::*;
/// use everburn::datasets::{TableBatcher, TableRow};
///
/// let rows = vec![TableRow { features: vec![0.5, -1.0, 0.0], target: 2.0 }; 4];
/// let (features, targets) = TableBatcher.batch(rows, &Device::flex());
/// assert_eq!((features.dims(), targets.dims()), ([4, 3], [4]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableBatcher;

impl Batcher<TableRow, (Tensor<2>, Tensor<1>)> for TableBatcher {
    fn batch(&self, rows: Vec<TableRow>, device: &Device) -> (Tensor<2>, Tensor<1>) {
        let count = rows.len();
        let width = rows.first().map_or(0, |row| row.features.len());
        let targets: Vec<f32> = rows.iter().map(|row| row.target).collect();
        let features: Vec<f32> = rows.into_iter().flat_map(|row| row.features).collect();
        let features = TensorData::new(features, [count, width]);
        let targets = TensorData::new(targets, [count]);
        (
            Tensor::from_data(features, device),
            Tensor::from_data(targets, device),
        )
    }
}
