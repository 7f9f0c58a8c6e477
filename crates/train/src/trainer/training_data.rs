//! What a run learns from, and is measured on.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;

/// The data of a run: every rank is given all of it and reads its own share.
///
/// ```
/// use everburn_train::TrainingData;
///
/// fn samples<I, B>(data: &TrainingData<I, B>) -> [usize; 2] {
///     [data.train.len(), data.test.len()]
/// }
/// ```
pub struct TrainingData<I, B> {
    /// The samples to learn from; the last of them are held out to validate on, unless there is a set for that.
    pub train: Arc<dyn Dataset<I>>,
    /// The samples to validate on; if absent, as many of those to learn from as
    /// [`TrainingConfig::validation_samples`](crate::TrainingConfig::validation_samples) says.
    pub validation: Option<Arc<dyn Dataset<I>>>,
    /// The samples that the report's accuracy is measured on, once, at the end.
    pub test: Arc<dyn Dataset<I>>,
    /// Makes a batch of several samples.
    pub batcher: Arc<dyn Batcher<I, B>>,
    /// The name that goes into the report.
    pub name: String,
    /// What tells this data from other of the same name, a hash say: ranks whose data differ are
    /// refused. May be empty.
    pub fingerprint: String,
    /// Where the data came from, for the report.
    pub origin: String,
}

impl<I, B> Clone for TrainingData<I, B> {
    fn clone(&self) -> Self {
        Self {
            train: Arc::clone(&self.train),
            validation: self.validation.clone(),
            test: Arc::clone(&self.test),
            batcher: Arc::clone(&self.batcher),
            name: self.name.clone(),
            fingerprint: self.fingerprint.clone(),
            origin: self.origin.clone(),
        }
    }
}
