//! Data that are on the device as a whole.

use everburn_distributed::Rows;

use super::Task;
use super::data::without_targets;
use crate::error::TrainError;
use crate::model::erased::{AnyData, erase_data};
use crate::trainer::{Trainer, TrainingData};

type PutOnDevice<T> = fn(
    &Trainer,
    TrainingData<<T as Task>::Item, <T as Task>::Batch>,
    Option<u64>,
    bool,
) -> Result<AnyData, TrainError>;

/// How a task's data are kept on the device as a whole.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{OnDevice, Task};
///
/// fn supports<T: Task>(task: &T) -> bool {
///     let place: Option<OnDevice<T>> = task.on_device();
///     place.is_some()
/// }
/// ```
pub struct OnDevice<T: Task>(pub(super) PutOnDevice<T>);

impl<T: Task<Batch: Rows>> OnDevice<T> {
    /// One batch of all samples, of which rows are picked ([`Trainer::on_device`]).
    pub fn by_rows() -> Self {
        Self(|trainer, data, free, own_loss| {
            let placed = trainer.on_device(data, free)?;
            Ok(match own_loss {
                true => erase_data(&without_targets(&placed)),
                false => erase_data(&placed),
            })
        })
    }
}
