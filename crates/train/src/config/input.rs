//! How samples come to the device.

use std::sync::Arc;
use std::time::Duration;

use burn::data::dataset::Dataset;
use burn::prelude::Device;
use clap::Args;
use everburn_distributed::{Prefetch, Resident, Row, Rows, is_gpu};
use everburn_record::units;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::trainer::{Trainer, TrainingData};

/// How samples come to the device.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::InputConfig;
///
/// let config: InputConfig = toml::from_str("workers = 2\nprefetch = 4").unwrap();
/// assert!(!config.on_device);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Input")]
#[serde(deny_unknown_fields, default)]
pub struct InputConfig {
    /// Loader threads per rank; 0: the rank loads its batches itself [default: 1 for a GPU and for the included models of color images, else 0].
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// The number of batches to prefetch, with --workers [default: 2].
    #[arg(long, value_name = "N")]
    pub prefetch: usize,
    /// Keep the whole data set on the device and pick each batch there.
    #[arg(long = "data-on-device")]
    pub on_device: bool,
}

impl Default for InputConfig {
    fn default() -> Self {
        Self {
            workers: None,
            prefetch: 2,
            on_device: false,
        }
    }
}

impl InputConfig {
    pub(crate) fn validate(&self) -> Result<(), TrainError> {
        if self.prefetch == 0 {
            return Err(TrainError::Config(
                "`training.input.prefetch` must be at least 1; `training.input.workers = 0` assembles batches when they are needed"
                    .to_string(),
            ));
        }
        Ok(())
    }

    /// How batches are assembled on a rank with `device`, which waits for one for `timeout` at most.
    pub(crate) fn prefetch(&self, device: &Device, timeout: Duration) -> Prefetch {
        let automatic = usize::from(is_gpu(device));
        Prefetch {
            // What is on the device is picked there: threads would only get in each other's way.
            workers: match self.on_device {
                true => 0,
                false => self.workers.unwrap_or(automatic),
            },
            depth: self.prefetch,
            timeout,
        }
    }
}

impl Trainer {
    /// The same data on this trainer's device as a whole: what the batcher makes of all samples, of which each
    /// batch is then picked there. It must take no more than half of `free` bytes, where that is known: the rest
    /// is for the model.
    ///
    /// # Errors
    /// [`TrainError::Config`] if they take more, [`TrainError::Data`] if a sample cannot be read.
    pub fn on_device<I, B: Rows>(
        &self,
        data: TrainingData<I, B>,
        free: Option<u64>,
    ) -> Result<TrainingData<Row, B>, TrainError> {
        let TrainingData {
            train,
            validation,
            test,
            batcher,
            augment,
            weigh,
            name,
            fingerprint,
            origin,
        } = data;
        if augment.is_some() {
            return Err(TrainError::Config(format!(
                "`training.input.on_device`: the samples of {name} are augmented, so they differ in each epoch; train without it, or without augmentation"
            )));
        }
        if weigh.is_some() {
            return Err(TrainError::Config(format!(
                "`training.input.on_device`: the samples of {name} have different lengths, and rows on a device have one; train \
                 without it"
            )));
        }
        let checkpointing = self.config.activation_checkpointing;
        let device = checkpointing.autodiff(self.device.clone());
        let wrong = |error: burn::data::dataset::DatasetError| TrainError::Data(error.to_string());
        let mut sets = vec![train, test];
        sets.extend(validation);
        let bytes = Resident::bytes_of(&sets, &*batcher, &device).map_err(wrong)?;
        if let Some(free) = free.filter(|free| bytes > free / 2) {
            return Err(TrainError::Config(format!(
                "`training.input.on_device`: {name} takes {} on the device, of which {} are free, and half of \
                 those are left to the model; train without it, or with fewer `data.train_samples`",
                units::bytes(bytes),
                units::bytes(free)
            )));
        }
        let place = |sets: &[_]| match sets {
            [train, test, validation] => {
                let sets = [train, test, validation].map(Arc::clone);
                let (resident, [train, test, validation]) =
                    Resident::place(&sets, &*batcher, &device)?;
                Ok((resident, [train, test], Some(validation)))
            }
            sets => {
                let sets = [0, 1].map(|set: usize| Arc::clone(&sets[set]));
                let (resident, sets) = Resident::place(&sets, &*batcher, &device)?;
                Ok((resident, sets, None))
            }
        };
        let (resident, [train, test], validation) = place(&sets).map_err(wrong)?;
        Ok(TrainingData {
            train: Arc::new(train),
            validation: validation.map(|set| Arc::new(set) as Arc<dyn Dataset<Row>>),
            test: Arc::new(test),
            batcher: Arc::new(resident),
            augment: None,
            weigh: None,
            name,
            fingerprint,
            origin,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_for_devices_that_compute_by_themselves() {
        let timeout = Duration::from_secs(1);
        let workers = |config: InputConfig| config.prefetch(&Device::flex(), timeout).workers;
        assert_eq!(workers(InputConfig::default()), 0);
        let two = InputConfig {
            workers: Some(2),
            ..InputConfig::default()
        };
        assert_eq!(workers(two.clone()), 2);
        let on_device = InputConfig {
            on_device: true,
            ..two
        };
        assert_eq!(workers(on_device), 0);
    }

    #[test]
    fn a_queue_without_room_is_refused() {
        let config = InputConfig {
            prefetch: 0,
            ..InputConfig::default()
        };
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("`training.input.prefetch`"), "{error}");
    }
}
