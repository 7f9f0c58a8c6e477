//! Data sets that are on the device as a whole.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::prelude::*;
use burn::tensor::Int;
use burn::tensor::kind::Autodiff;
use everburn_collectives::worker::message_of;

/// How many samples are assembled at a time while a set is placed: enough for a copy to the device to be
/// worth its start, few enough that the host does not hold the set twice.
const PLACED_AT_ONCE: usize = 4096;

/// Batches whose first dimension counts samples, so that samples can be picked and batches be joined.
///
/// Implemented for tensors, for pairs of what implements it, and for what may be absent.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::*;
/// use burn::tensor::Int;
/// use everburn::distributed::Rows;
///
/// let device = Device::flex();
/// let labels = Tensor::<1, Int>::from_ints([7, 8, 9], &device);
/// let picked = labels.pick(&Tensor::from_ints([2, 0, 2], &device));
/// assert_eq!(picked.into_data().iter::<i64>().collect::<Vec<_>>(), [9, 7, 9]);
/// ```
pub trait Rows: Clone + Send + Sync + 'static {
    /// The samples with these numbers, in this order.
    #[must_use]
    fn pick(&self, samples: &Tensor<1, Int>) -> Self;

    /// All samples of `parts`, of which there is at least one, in order.
    fn join(parts: Vec<Self>) -> Self;

    /// How many samples there are.
    fn samples(&self) -> usize;

    /// How much memory they take on the device, in bytes.
    fn bytes(&self) -> u64;

    /// The same on a device that knows of gradients or does not, as `device` does.
    #[must_use]
    fn for_device(self, device: &Device) -> Self;
}

impl<const D: usize, K: Autodiff + 'static> Rows for Tensor<D, K>
where
    Self: Clone + Send + Sync,
{
    fn pick(&self, samples: &Tensor<1, Int>) -> Self {
        self.clone().select(0, samples.clone())
    }

    fn join(mut parts: Vec<Self>) -> Self {
        match parts.len() {
            1 => parts.remove(0),
            _ => Self::cat(parts, 0),
        }
    }

    fn samples(&self) -> usize {
        self.dims()[0]
    }

    fn bytes(&self) -> u64 {
        (self.shape().num_elements() * self.dtype().size()) as u64
    }

    fn for_device(self, device: &Device) -> Self {
        match device.is_autodiff() {
            true => self,
            false => self.without_autodiff(),
        }
    }
}

impl<A: Rows, B: Rows> Rows for (A, B) {
    fn pick(&self, samples: &Tensor<1, Int>) -> Self {
        (self.0.pick(samples), self.1.pick(samples))
    }

    fn join(parts: Vec<Self>) -> Self {
        let (first, second) = parts.into_iter().unzip();
        (A::join(first), B::join(second))
    }

    fn samples(&self) -> usize {
        self.0.samples()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes() + self.1.bytes()
    }

    fn for_device(self, device: &Device) -> Self {
        (self.0.for_device(device), self.1.for_device(device))
    }
}

impl<A: Rows> Rows for Option<A> {
    fn pick(&self, samples: &Tensor<1, Int>) -> Self {
        self.as_ref().map(|rows| rows.pick(samples))
    }

    /// Absent, if it is of a part.
    fn join(parts: Vec<Self>) -> Self {
        let parts = parts.into_iter().collect::<Option<Vec<_>>>();
        parts.map(A::join)
    }

    fn samples(&self) -> usize {
        self.as_ref().map_or(0, Rows::samples)
    }

    fn bytes(&self) -> u64 {
        self.as_ref().map_or(0, Rows::bytes)
    }

    fn for_device(self, device: &Device) -> Self {
        self.map(|rows| rows.for_device(device))
    }
}

/// A sample that is on the device: its number among all that are.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::{data::dataloader::batcher::Batcher, prelude::*};
/// use everburn::distributed::{Resident, Row, Rows};
///
/// /// The batch of these samples, picked on the device.
/// fn batch<B: Rows>(resident: &Resident<B>, rows: Vec<Row>, device: &Device) -> B {
///     resident.batch(rows, device)
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row(usize);

/// Data sets as one batch of all their samples, on a device: what a batcher has once made of them. A batch is
/// then picked there, and has the bits that the batcher would give it; nothing but the numbers of its samples
/// is copied.
///
/// It is the batcher of the [`ResidentSet`]s that it was made with.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use std::sync::Arc;
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::data::dataset::{Dataset, InMemDataset};
/// use burn::prelude::*;
/// use burn::tensor::Int;
/// use everburn::distributed::Resident;
///
/// struct Double;
/// impl Batcher<i64, Tensor<1, Int>> for Double {
///     fn batch(&self, items: Vec<i64>, device: &Device) -> Tensor<1, Int> {
///         Tensor::from_ints(&items[..], device) * 2
///     }
/// }
///
/// let device = Device::flex();
/// let train: Arc<dyn Dataset<i64>> = Arc::new(InMemDataset::new(vec![1, 2, 3]));
/// let test = Arc::new(InMemDataset::new(vec![4]));
/// let (resident, [train, test]) = Resident::place(&[train, test], &Double, &device).unwrap();
/// let rows = vec![train.get(2).unwrap(), test.get(0).unwrap()];
/// let batch = resident.batch(rows, &device);
/// assert_eq!(batch.into_data().iter::<i64>().collect::<Vec<_>>(), [6, 8]);
/// ```
pub struct Resident<B> {
    rows: B,
    device: Device,
}

impl<B: Rows> Resident<B> {
    /// Makes one batch of all samples of `sets`, on `device`, and for each of them the set of its rows.
    ///
    /// A moment it takes twice the memory, while what was made is joined.
    ///
    /// # Errors
    /// [`DatasetError`] of the first sample that cannot be read, or what a panic said.
    pub fn place<I, const N: usize>(
        sets: &[Arc<dyn Dataset<I>>; N],
        batcher: &dyn Batcher<I, B>,
        device: &Device,
    ) -> Result<(Self, [ResidentSet; N]), DatasetError> {
        let mut parts = Vec::new();
        let mut first = 0;
        let resident_sets = sets.each_ref().map(|set| {
            let resident = ResidentSet {
                first,
                length: set.len(),
            };
            first += set.len();
            resident
        });
        for set in sets {
            for start in (0..set.len()).step_by(PLACED_AT_ONCE) {
                let samples = (start..set.len().min(start + PLACED_AT_ONCE)).collect();
                parts.push(batch_of(&**set, samples, batcher, device)?);
            }
        }
        if parts.is_empty() {
            let error = std::io::Error::other("there is no sample to place on the device");
            return Err(DatasetError::new(error));
        }
        let resident = Self {
            rows: B::join(parts),
            device: device.clone(),
        };
        Ok((resident, resident_sets))
    }

    /// How much memory the samples of `sets` will take on `device`, in bytes: as many times that of the
    /// first as there are.
    ///
    /// # Errors
    /// [`DatasetError`] if that sample cannot be read.
    pub fn bytes_of<I>(
        sets: &[Arc<dyn Dataset<I>>],
        batcher: &dyn Batcher<I, B>,
        device: &Device,
    ) -> Result<u64, DatasetError> {
        let Some(set) = sets.iter().find(|set| !set.is_empty()) else {
            return Ok(0);
        };
        let one = batch_of(&**set, vec![0], batcher, device)?.bytes();
        let samples: usize = sets.iter().map(Dataset::len).sum();
        Ok(one.saturating_mul(samples as u64))
    }

    /// How much memory the samples take on the device, in bytes.
    pub fn bytes(&self) -> u64 {
        self.rows.bytes()
    }
}

fn batch_of<I, B>(
    set: &dyn Dataset<I>,
    samples: Vec<usize>,
    batcher: &dyn Batcher<I, B>,
    device: &Device,
) -> Result<B, DatasetError> {
    let made = catch_unwind(AssertUnwindSafe(|| {
        let items = set.get_many(samples)?;
        Ok(batcher.batch(items, device))
    }));
    made.unwrap_or_else(|panic| {
        Err(DatasetError::new(std::io::Error::other(message_of(
            &*panic,
        ))))
    })
}

impl<B: Rows> Batcher<Row, B> for Resident<B> {
    /// # Panics
    /// If the rows are on another device than `device`.
    fn batch(&self, rows: Vec<Row>, device: &Device) -> B {
        assert_eq!(
            *device, self.device,
            "the data were placed on another device than batches are asked for"
        );
        let numbers: Vec<i64> = rows.iter().map(|row| row.0 as i64).collect();
        let count = numbers.len();
        // Numbers of samples have no gradient.
        let numbers = TensorData::new(numbers, [count]);
        let numbers = Tensor::from_data(numbers, &self.device);
        self.rows.pick(&numbers).for_device(device)
    }
}

/// One of the data sets that a [`Resident`] was made of: yields the numbers of its rows.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::data::dataset::Dataset;
/// use everburn::distributed::{ResidentSet, Row};
///
/// /// The rows of all samples of the set.
/// fn rows(set: &ResidentSet) -> Vec<Row> {
///     (0..set.len()).map(|sample| set.get(sample).unwrap()).collect()
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentSet {
    first: usize,
    length: usize,
}

impl Dataset<Row> for ResidentSet {
    fn get(&self, index: usize) -> Result<Row, DatasetError> {
        assert!(index < self.length, "sample {index} of {}", self.length);
        Ok(Row(self.first + index))
    }

    fn len(&self) -> usize {
        self.length
    }
}
