//! The data of a task without their types.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::prelude::*;

use super::{Task, TaskData};
use crate::config::TrainingConfig;
use crate::error::TrainError;
use crate::model::erased::{AnyData, erase_data};
use crate::trainer::{Trainer, TrainingData};

/// The data of a task, without their types.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::LoadedData;
///
/// fn show(data: &LoadedData) {
///     println!("{}: {} samples", data.name, data.train_len);
/// }
/// ```
pub struct LoadedData {
    /// A line about them.
    pub description: String,
    /// The names of the classes, in the order of their numbers, where there are classes with names.
    pub class_names: Vec<String>,
    /// The name that goes into the report.
    pub name: String,
    /// How many samples there are to learn from, those that are held out for validation included.
    pub train_len: usize,
    /// How many samples the task has for validation only, if it has a set of its own for that.
    pub validation_len: Option<usize>,
    /// How many samples there are to test on.
    pub test_len: usize,
    inner: Box<dyn ErasedData>,
}

impl LoadedData {
    /// The data as a trainer takes them.
    pub fn for_training(&self) -> AnyData {
        self.inner.erased()
    }

    /// The same, on the trainer's device as a whole; `free` is how many bytes are free there, if that is known.
    ///
    /// # Errors
    /// [`TrainError::Config`] if the task's data cannot be kept there, or take too much of it;
    /// [`TrainError::Data`] if a sample cannot be read.
    pub fn on_device(&self, trainer: &Trainer, free: Option<u64>) -> Result<AnyData, TrainError> {
        self.inner.on_device(trainer, free)
    }

    /// How many of the samples to learn from `config` holds out for validation: none where there is a set for that.
    pub fn held_out(&self, config: &TrainingConfig) -> usize {
        match self.validation_len {
            Some(_) => 0,
            None => config.held_out_of(self.train_len),
        }
    }

    pub(super) fn of<T: Task>(task: Arc<T>, loaded: TaskData<T::Item, T::Batch>) -> Self {
        let TaskData {
            data,
            description,
            class_names,
        } = loaded;
        let train_len = data.train.len();
        let validation_len = data.validation.as_ref().map(|set| set.len());
        let test_len = data.test.len();
        let description = match description.is_empty() {
            true => in_words(&data),
            false => description,
        };
        Self {
            description,
            class_names,
            name: data.name.clone(),
            train_len,
            validation_len,
            test_len,
            inner: Box::new(DataOf { task, data }),
        }
    }
}

/// The line about data of which the task says no more, as of those of Everburn's own tasks.
fn in_words<I, B>(data: &TrainingData<I, B>) -> String {
    let validation = data.validation.as_ref();
    let validation =
        validation.map_or_else(String::new, |set| format!(", {} validation", set.len()));
    let origin = match data.origin.is_empty() {
        true => String::new(),
        false => format!(" ({})", data.origin),
    };
    let (name, train, test) = (&data.name, data.train.len(), data.test.len());
    format!("{name}, {train} training{validation} and {test} test samples{origin}")
}

trait ErasedData: Send + Sync {
    fn erased(&self) -> AnyData;
    fn on_device(&self, trainer: &Trainer, free: Option<u64>) -> Result<AnyData, TrainError>;
}

struct DataOf<T: Task> {
    task: Arc<T>,
    data: TrainingData<T::Item, T::Batch>,
}

impl<T: Task> ErasedData for DataOf<T> {
    fn erased(&self) -> AnyData {
        match self.task.blocks() {
            Some(_) => erase_data(&self.data),
            None => erase_data(&without_targets(&self.data)),
        }
    }

    fn on_device(&self, trainer: &Trainer, free: Option<u64>) -> Result<AnyData, TrainError> {
        let own_loss = self.task.blocks().is_none();
        match self.task.on_device() {
            Some(place) => (place.0)(trainer, self.data.clone(), free, own_loss),
            None => Err(TrainError::Config(format!(
                "the samples of {} cannot be kept on the device as a whole: train without `training.input.on_device`",
                self.data.name
            ))),
        }
    }
}

/// Data whose batches are as [`OwnLoss`] takes them.
pub(super) fn without_targets<I, B>(data: &TrainingData<I, B>) -> TrainingData<I, (B, ())>
where
    I: 'static,
    B: 'static,
{
    data.batched_by(Arc::new(WithoutTargets(Arc::clone(&data.batcher))))
}

struct WithoutTargets<I, B>(Arc<dyn Batcher<I, B>>);

impl<I, B> Batcher<I, (B, ())> for WithoutTargets<I, B> {
    fn batch(&self, items: Vec<I>, device: &Device) -> (B, ()) {
        (self.0.batch(items, device), ())
    }
}

#[cfg(test)]
mod tests {
    use burn::data::dataset::InMemDataset;

    use super::*;

    struct First;

    impl Batcher<u8, u8> for First {
        fn batch(&self, items: Vec<u8>, _device: &Device) -> u8 {
            items[0]
        }
    }

    #[test]
    fn data_without_a_line_of_their_own_are_told_by_name_size_and_origin() {
        let set = |samples: usize| InMemDataset::new(vec![0_u8; samples]);
        let data = TrainingData::new("houses", set(90), set(10), First);
        let line = "houses, 90 training and 10 test samples";
        assert_eq!(in_words(&data), line);
        let data = data.with_validation(set(7)).with_origin("houses.csv");
        let line = "houses, 90 training, 7 validation and 10 test samples (houses.csv)";
        assert_eq!(in_words(&data), line);
    }
}
