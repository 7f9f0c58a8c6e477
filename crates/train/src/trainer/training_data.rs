//! What a run learns from, and is measured on.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use everburn_distributed::{Augment, SampleRng, Weigh};

use crate::data_fingerprint::DataFingerprint;

/// The data of a run: every rank is given all of it and reads its own share.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::data::dataset::InMemDataset;
/// use burn::prelude::*;
/// use everburn::train::TrainingData;
///
/// struct Rows;
/// impl Batcher<[f32; 2], Tensor<2>> for Rows {
///     fn batch(&self, rows: Vec<[f32; 2]>, device: &Device) -> Tensor<2> {
///         Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), 2]), device)
///     }
/// }
///
/// let train = InMemDataset::new(vec![[0.0, 1.0]; 90]);
/// let test = InMemDataset::new(vec![[0.0, 1.0]; 10]);
/// let data = TrainingData::new("points", train, test, Rows)
///     .with_origin("made up")
///     .augmented_by(|[x, y], _rng| [-x, y]);
/// assert_eq!((data.train.len(), data.test.len()), (90, 10));
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
    /// A random change of the samples to learn from, and of no others, anew in each epoch.
    pub augment: Option<Augment<I>>,
    /// How much the loss of a sample to learn from counts beside that of others: all alike, if absent.
    pub weigh: Option<Weigh<I>>,
    /// The name that goes into the report.
    pub name: String,
    /// Texts that differ for other data of the same name, such as hashes.
    pub fingerprint: DataFingerprint,
    /// Where the data came from, for the report.
    pub origin: String,
}

impl<I, B> TrainingData<I, B> {
    /// Data with this name in the report. The **last** samples of `train` (a tenth, unless `--validation-samples` says
    /// otherwise) are held out to validate on: a set in the order of its classes, whose last samples are all of one, must be
    /// shuffled before, by a fixed seed, or have its own samples to validate on
    /// ([`with_validation`](Self::with_validation)). A training warns of such a set where its batches have classes
    /// ([`LabeledBatch`](crate::LabeledBatch)).
    pub fn new(
        name: impl Into<String>,
        train: impl Dataset<I> + 'static,
        test: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, B> + 'static,
    ) -> Self {
        Self {
            train: Arc::new(train),
            validation: None,
            test: Arc::new(test),
            batcher: Arc::new(batcher),
            augment: None,
            weigh: None,
            name: name.into(),
            fingerprint: DataFingerprint::default(),
            origin: String::new(),
        }
    }

    /// The same with samples of their own to validate on.
    #[must_use]
    pub fn with_validation(self, validation: impl Dataset<I> + 'static) -> Self {
        Self {
            validation: Some(Arc::new(validation)),
            ..self
        }
    }

    /// The same with a text that differs for other data of the same name, such as a hash.
    #[must_use]
    pub fn with_fingerprint(self, fingerprint: impl Into<String>) -> Self {
        Self {
            fingerprint: DataFingerprint {
                all: fingerprint.into(),
                ..DataFingerprint::default()
            },
            ..self
        }
    }

    /// The same with where the data came from.
    #[must_use]
    pub fn with_origin(self, origin: impl Into<String>) -> Self {
        Self {
            origin: origin.into(),
            ..self
        }
    }

    /// The same with a random change of the samples to learn from, anew in each epoch. The random numbers depend on the
    /// seed of the run, the epoch and the sample: any number of ranks sees the same.
    #[must_use]
    pub fn augmented_by(
        self,
        augment: impl Fn(I, &mut SampleRng) -> I + Send + Sync + 'static,
    ) -> Self {
        Self {
            augment: Some(Augment::new(augment)),
            ..self
        }
    }

    /// The same with a mixture of each sample to learn from with another one, such as mixup, after the change of
    /// [`augmented_by`](Self::augmented_by). The other sample is drawn by the same random numbers: any number of ranks sees
    /// the same.
    #[must_use]
    pub fn mixed_by(self, mix: impl Fn(I, I, &mut SampleRng) -> I + Send + Sync + 'static) -> Self
    where
        I: 'static,
    {
        let augment = self
            .augment
            .unwrap_or_else(|| Augment::new(|sample, _rng| sample));
        Self {
            augment: Some(augment.mixed_by(mix)),
            ..self
        }
    }

    /// The same with samples of which each is of its own number of predictions, at least 1, by which the gradients of
    /// micro-batches and ranks are weighted: see [`Weigh`].
    #[must_use]
    pub fn weighted_by(self, weigh: impl Fn(&I) -> usize + Send + Sync + 'static) -> Self {
        Self {
            weigh: Some(Arc::new(weigh)),
            ..self
        }
    }

    /// The same samples in batches of another batcher.
    pub(crate) fn batched_by<C>(&self, batcher: Arc<dyn Batcher<I, C>>) -> TrainingData<I, C> {
        TrainingData {
            train: Arc::clone(&self.train),
            validation: self.validation.clone(),
            test: Arc::clone(&self.test),
            batcher,
            augment: self.augment.clone(),
            weigh: self.weigh.clone(),
            name: self.name.clone(),
            fingerprint: self.fingerprint.clone(),
            origin: self.origin.clone(),
        }
    }
}

impl<I, B> Clone for TrainingData<I, B> {
    fn clone(&self) -> Self {
        self.batched_by(Arc::clone(&self.batcher))
    }
}
