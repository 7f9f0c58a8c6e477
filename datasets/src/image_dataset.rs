//! Labelled images in memory.

use std::sync::Arc;

use burn_dataset::Dataset;
use sha2::{Digest, Sha256};

use crate::DatasetError;

/// Rows of an image.
pub const IMAGE_HEIGHT: usize = 28;

/// Columns of an image.
pub const IMAGE_WIDTH: usize = 28;

/// Pixels of an image, one byte each.
pub const IMAGE_PIXELS: usize = IMAGE_HEIGHT * IMAGE_WIDTH;

/// Labelled grey images, `[n, 28, 28]` as one contiguous block. Cloning shares the block.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{IMAGE_PIXELS, ImageDataset};
///
/// let set = ImageDataset::new(vec![0; 2 * IMAGE_PIXELS], vec![3, 7], 10)?;
/// assert_eq!(set.len(), 2);
/// assert_eq!(set.label(1), 7);
/// assert_eq!(set.image(1).len(), IMAGE_PIXELS);
/// assert_eq!(set.first(1).labels(), [3]);
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Clone)]
pub struct ImageDataset {
    block: Arc<Block>,
    // At most the block's number of images: `first` shares the block and lowers this.
    len: usize,
}

struct Block {
    images: Vec<u8>, // [n, 28, 28]
    labels: Vec<u8>, // [n]
    classes: usize,
}

/// One image and its label, as [`burn_dataset::Dataset`] hands them to a batcher.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use burn_dataset::Dataset;
/// use everburn::datasets::{ImageItem, SyntheticDigits, Split};
///
/// let set = SyntheticDigits::new(0).generate(Split::Train, 10)?;
/// let item: ImageItem = set.get(4).unwrap();
/// assert_eq!(item.pixels, *set.image(4));
/// assert_eq!(item.label, set.label(4));
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageItem {
    /// The image row by row, `[28, 28]`; 0 is background, 255 is full ink.
    pub pixels: [u8; IMAGE_PIXELS],
    /// The class, below [`ImageDataset::classes`].
    pub label: u8,
}

impl ImageDataset {
    /// Takes `images` (`[n, 28, 28]`) and `labels` (`[n]`).
    ///
    /// # Errors
    ///
    /// [`DatasetError::Request`] if the lengths do not belong together or a label is not below
    /// `classes`.
    pub fn new(images: Vec<u8>, labels: Vec<u8>, classes: usize) -> Result<Self, DatasetError> {
        if images.len() != labels.len() * IMAGE_PIXELS {
            return Err(DatasetError::Request(format!(
                "images and labels do not belong together: {} labels need {} bytes of images of 28x28, got {}",
                labels.len(),
                labels.len() * IMAGE_PIXELS,
                images.len()
            )));
        }
        if let Some(index) = labels
            .iter()
            .position(|&label| usize::from(label) >= classes)
        {
            return Err(DatasetError::Request(format!(
                "images and labels do not belong together: label {index} is {}, but there are {classes} classes",
                labels[index]
            )));
        }
        let len = labels.len();
        let block = Block {
            images,
            labels,
            classes,
        };
        Ok(Self {
            block: Arc::new(block),
            len,
        })
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of classes; labels are below it.
    pub fn classes(&self) -> usize {
        self.block.classes
    }

    /// Image `index`, `[28, 28]` row by row.
    ///
    /// # Panics
    ///
    /// If `index >= len()`, as a slice would.
    pub fn image(&self, index: usize) -> &[u8; IMAGE_PIXELS] {
        let (images, _) = self.images().as_chunks::<IMAGE_PIXELS>();
        &images[index]
    }

    /// Label of image `index`.
    ///
    /// # Panics
    ///
    /// If `index >= len()`, as a slice would.
    pub fn label(&self, index: usize) -> u8 {
        self.labels()[index]
    }

    /// SHA-256 of all labels and images, in hexadecimal: equal exactly for equal data.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.labels());
        hash.update(self.images());
        format!("{:x}", hash.finalize())
    }

    /// All images, `[n, 28, 28]`.
    pub fn images(&self) -> &[u8] {
        &self.block.images[..self.len * IMAGE_PIXELS]
    }

    /// All labels, `[n]`.
    pub fn labels(&self) -> &[u8] {
        &self.block.labels[..self.len]
    }

    /// The first `count` images (all of them if there are fewer), without a copy.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        Self {
            block: Arc::clone(&self.block),
            len: self.len.min(count),
        }
    }
}

debug_by!(ImageDataset, it => len: it.len, classes: it.classes());

impl Dataset<ImageItem> for ImageDataset {
    fn get(&self, index: usize) -> Result<ImageItem, burn_dataset::DatasetError> {
        Ok(ImageItem {
            pixels: *self.image(index),
            label: self.label(index),
        })
    }

    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn lengths_that_do_not_belong_together_are_refused() {
        let error = ImageDataset::new(vec![0; 785], vec![1], 10)
            .unwrap_err()
            .to_string();
        error.assert_contains(["1 labels need 784 bytes", "got 785"]);
    }

    #[test]
    fn a_label_that_is_no_class_is_refused() {
        let error = ImageDataset::new(vec![0; 784], vec![10], 10)
            .unwrap_err()
            .to_string();
        error.assert_contains(["label 0 is 10, but there are 10 classes"]);
    }

    #[test]
    fn first_shares_the_block_and_never_grows() {
        let set = ImageDataset::new(vec![0; 3 * 784], vec![0, 1, 2], 10).unwrap();
        let two = set.first(2);
        assert!(std::ptr::eq(set.images().as_ptr(), two.images().as_ptr()));
        assert_eq!((two.len(), two.first(9).len()), (2, 2));
        assert_eq!(Dataset::<ImageItem>::iter(&two).count(), 2);
    }
}
