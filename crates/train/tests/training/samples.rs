//! Data sets made of others.

use std::sync::Arc;
use std::time::Duration;

use burn::data::dataset::{Dataset, DatasetError};
use everburn_datasets::{ImageBatcher, ImageItem};
use everburn_train::TrainingData;

use crate::harness::data::Images;

/// The same with pixels from 0 to 255.
pub fn in_bytes(data: Images) -> Images {
    TrainingData {
        batcher: Arc::new(ImageBatcher::bytes()),
        ..data
    }
}

/// Samples of which each takes a while, as on a slow disk.
struct Slow {
    samples: Arc<dyn Dataset<ImageItem>>,
    each: Duration,
}

impl Dataset<ImageItem> for Slow {
    fn get(&self, index: usize) -> Result<ImageItem, DatasetError> {
        std::thread::sleep(self.each);
        self.samples.get(index)
    }

    fn len(&self) -> usize {
        self.samples.len()
    }
}

/// The same where each sample to train on takes `each`.
pub fn slow(data: Images, each: Duration) -> Images {
    let samples = data.train;
    TrainingData {
        train: Arc::new(Slow { samples, each }),
        ..data
    }
}
