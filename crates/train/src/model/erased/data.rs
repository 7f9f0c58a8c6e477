//! Samples and batches without their types.

use std::any::Any;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::prelude::*;
use everburn_distributed::{DistributedLoader, Weigh};

use super::WRONG_TYPE;
use crate::trainer::TrainingData;

/// A sample of any data set.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::AnyItem;
///
/// fn copy(item: &AnyItem) -> AnyItem {
///     item.clone() // shares the sample
/// }
/// ```
#[derive(Clone)]
pub struct AnyItem(Arc<dyn Any + Send + Sync>);

impl AnyItem {
    pub(crate) fn new<I: Send + Sync + 'static>(item: I) -> Self {
        Self(Arc::new(item))
    }

    /// The sample itself, or a copy where others have it, too.
    fn take<I: Send + Sync + Clone + 'static>(self) -> I {
        Arc::unwrap_or_clone(self.0.downcast().expect(WRONG_TYPE))
    }

    /// A look at the sample, if it is an `I`.
    pub(crate) fn open<I: 'static>(&self) -> Option<&I> {
        self.0.downcast_ref()
    }
}

/// A batch of any batcher.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::AnyBatch;
///
/// fn count(batches: &[AnyBatch]) -> usize {
///     batches.len()
/// }
/// ```
pub struct AnyBatch(Box<dyn Any + Send>);

impl AnyBatch {
    pub(crate) fn new<B: Send + 'static>(batch: B) -> Self {
        Self(Box::new(batch))
    }

    pub(crate) fn open<B: 'static>(self) -> B {
        *self.0.downcast().expect(WRONG_TYPE)
    }

    pub(crate) fn inner(&self) -> &dyn Any {
        &*self.0
    }
}

/// Data without their types.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::AnyData;
///
/// fn samples(data: &AnyData) -> usize {
///     data.train.len()
/// }
/// ```
pub type AnyData = TrainingData<AnyItem, AnyBatch>;

pub(crate) type AnyLoader = DistributedLoader<AnyItem, AnyBatch>;

pub(crate) fn erase_data<I, B>(data: &TrainingData<I, B>) -> AnyData
where
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    if let Some(erased) = (data as &dyn Any).downcast_ref::<AnyData>() {
        return erased.clone();
    }
    TrainingData {
        train: Arc::new(AnyDataset(data.train.clone())),
        validation: data
            .validation
            .clone()
            .map(|set| -> Arc<dyn Dataset<AnyItem>> { Arc::new(AnyDataset(set)) }),
        test: Arc::new(AnyDataset(data.test.clone())),
        batcher: Arc::new(AnyBatcher(data.batcher.clone())),
        augment: data
            .augment
            .clone()
            .map(|augment| augment.map(AnyItem::take, AnyItem::new)),
        weigh: data.weigh.clone().map(|weigh| -> Weigh<AnyItem> {
            Arc::new(move |item: &AnyItem| weigh(item.open().expect(WRONG_TYPE)))
        }),
        name: data.name.clone(),
        fingerprint: data.fingerprint.clone(),
        origin: data.origin.clone(),
    }
}

struct AnyDataset<I>(Arc<dyn Dataset<I>>);

impl<I: Send + Sync + 'static> Dataset<AnyItem> for AnyDataset<I> {
    fn get(&self, index: usize) -> Result<AnyItem, DatasetError> {
        Ok(AnyItem::new(self.0.get(index)?))
    }

    fn get_many(&self, indexes: Vec<usize>) -> Result<Vec<AnyItem>, DatasetError> {
        let items = self.0.get_many(indexes)?;
        Ok(items.into_iter().map(AnyItem::new).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

struct AnyBatcher<I, B>(Arc<dyn Batcher<I, B>>);

impl<I, B> Batcher<AnyItem, AnyBatch> for AnyBatcher<I, B>
where
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    fn batch(&self, items: Vec<AnyItem>, device: &Device) -> AnyBatch {
        AnyBatch::new(
            self.0
                .batch(items.into_iter().map(AnyItem::take).collect(), device),
        )
    }
}
