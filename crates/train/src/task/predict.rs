//! Models that map samples to predictions.

mod finite;

use std::path::Path;

use serde::Serialize;

use super::{Task, TaskData, TaskError};

/// What a [`Task`] implements besides whose model maps samples to predictions: `predict RUN` then writes a line of
/// JSON for each. [`Task::predictor`] makes it known.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::prelude::*;
/// # use everburn_train::{Loss, TaskData};
/// use everburn::train::{Predict, Predictor, Task, TaskError};
///
/// struct Houses;
///
/// impl Task for Houses {
/// #     type Config = everburn::train::NoSettings;
/// #     type Model = Linear;
/// #     type Item = f32;
/// #     type Batch = (Tensor<2>, Tensor<2>);
/// #     fn model(&self, _: &Self::Config, device: &Device) -> Result<Linear, TaskError> {
/// #         Ok(LinearConfig::new(1, 1).init(device))
/// #     }
/// #     fn data(&self, _: &mut Self::Config) -> Result<TaskData<f32, Self::Batch>, TaskError> {
/// #         Err(TaskError::new("there are none"))
/// #     }
/// #     fn loss(&self, _: &Self::Config, model: &Linear, (areas, _): Self::Batch) -> Loss {
/// #         Loss::new(model.forward(areas).mean(), 1)
/// #     }
///     // Besides the model, the data and the loss:
///     fn predictor(&self) -> Option<Predictor<Self>> {
///         Some(Predictor::by_task())
///     }
/// }
///
/// impl Predict for Houses {
///     type Prediction = f32; // or any structure that serde writes
///
///     fn predict(
///         &self,
///         _config: &Self::Config,
///         model: &Linear,
///         (areas, _prices): (Tensor<2>, Tensor<2>),
///     ) -> Result<Vec<f32>, TaskError> {
///         Ok(model.forward(areas).into_data().iter::<f32>().collect())
///     }
/// }
/// ```
pub trait Predict: Task {
    /// What is written of a sample.
    type Prediction: Serialize;

    /// What `model` predicts for each sample of `batch`, in their order.
    ///
    /// A number that is NaN or infinite is an error that names the sample: JSON has no such numbers.
    ///
    /// # Errors
    /// If the device does not give the numbers, or the samples cannot be told anything of.
    fn predict(
        &self,
        config: &Self::Config,
        model: &Self::Model,
        batch: Self::Batch,
    ) -> Result<Vec<Self::Prediction>, TaskError>;

    /// What a sample is called: its file, or its number in a table. Where there is one, its prediction is written as
    /// `{"sample": NAME, ...}`, with `"prediction"` if it is no JSON object.
    fn sample_name(&self, item: &Self::Item) -> Option<String> {
        let _ = item;
        None
    }

    /// Data without samples, whose batcher makes batches of the samples of a file: `predict RUN --input FILE` then needs
    /// none of the task's data. `None` if the data have to be loaded for that.
    fn input_data(&self, config: &Self::Config) -> Option<TaskData<Self::Item, Self::Batch>> {
        let _ = config;
        None
    }

    /// The samples in a file that is none of the task's data, for `predict RUN --input FILE`. What a sample has to say
    /// besides, its class say, may be anything.
    ///
    /// # Errors
    /// If the task reads no such files, or not this one.
    fn read(&self, config: &Self::Config, file: &Path) -> Result<Vec<Self::Item>, TaskError> {
        let _ = config;
        Err(
            TaskError::new(format!("the task reads no samples from {}", file.display())).with_help(
                "of such a task, samples of test, train or validation are predicted; in a task of your own, implement `Predict::read`",
            ),
        )
    }

    /// What [`read`](Self::read) leaves out of a folder, in a line that is printed before the predictions.
    fn left_out(&self, folder: &Path) -> Option<String> {
        let _ = folder;
        None
    }
}

type InputData<T> =
    fn(&T, &<T as Task>::Config) -> Option<TaskData<<T as Task>::Item, <T as Task>::Batch>>;
type PredictLines<T> = fn(
    &T,
    &<T as Task>::Config,
    &<T as Task>::Model,
    <T as Task>::Batch,
) -> Result<Vec<String>, TaskError>;
type Read<T> = fn(&T, &<T as Task>::Config, &Path) -> Result<Vec<<T as Task>::Item>, TaskError>;

/// How predictions of a task's model are made.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Predict, Predictor};
///
/// fn of<T: Predict>() -> Predictor<T> {
///     Predictor::by_task()
/// }
/// ```
pub struct Predictor<T: Task> {
    pub(super) predict: PredictLines<T>,
    pub(super) read: Read<T>,
    pub(super) input_data: InputData<T>,
    pub(super) sample_name: fn(&T, &T::Item) -> Option<String>,
    pub(super) left_out: fn(&T, &Path) -> Option<String>,
}

impl<T: Predict> Predictor<T> {
    /// As the task's [`Predict`] says.
    pub fn by_task() -> Self {
        Self {
            predict: |task, config, model, batch| {
                let predictions = task.predict(config, model, batch)?.into_iter();
                predictions.enumerate().map(line).collect()
            },
            read: T::read,
            input_data: T::input_data,
            sample_name: T::sample_name,
            left_out: T::left_out,
        }
    }
}

/// The line of a prediction, of the sample of this number in its batch.
fn line((sample, prediction): (usize, impl Serialize)) -> Result<String, TaskError> {
    let line = serde_json::to_string(&prediction)?;
    let has_null = line.contains("null");
    match has_null.then(|| finite::not_finite(&prediction)).flatten() {
        Some(what) => Err(TaskError::not_finite(sample, &what)),
        None => Ok(line),
    }
}
