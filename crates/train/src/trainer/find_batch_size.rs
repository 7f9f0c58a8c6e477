//! The largest batch that fits into the memory of every rank, and the smallest one that is about as fast.
//!
//! On a CPU a process that takes too much memory is killed, and with it the job: a size cannot be tried to see whether
//! it fits. So sizes are doubled from the smallest one on, and each is tried only if what it needs, as far as the sizes
//! before it show, leaves a margin free on every rank. What a step needs grows linearly with its samples: two sizes give
//! the line, and the line the largest size, which one more step confirms.

use everburn_record::units::counted;
use serde::{Deserialize, Serialize};

use super::trial::Trial;
use super::{Trainer, TrainingData};
use crate::device::memory::PeakMemory;
use crate::error::TrainError;
use crate::model::draw::draw_parameters;
use crate::model::erased::{AnyData, AnyModel, Trainable, erase_data};

/// How many steps of a size are timed: the first one is slow, and the better one of two others is rarely disturbed.
const STEPS: usize = 3;

/// Which part of the free memory is left alone.
const MARGIN: f64 = 0.2;

/// A size that is less than this faster than another is not worth its memory.
const GAIN: f64 = 1.05;

/// Differences below this are noise of the allocator.
const MEASURABLE: u64 = 8 << 20;

/// A step that would take longer than this, in seconds, is not made only to confirm a size.
const LONGEST_STEP: f64 = 120.0;

/// How much memory is free for this rank, in bytes: asked anew before each size.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// let free: everburn::train::FreeMemory<'_> = &|| everburn_record::proc::available_memory();
/// assert!(free() != Some(0));
/// ```
pub type FreeMemory<'a> = &'a (dyn Fn() -> Option<u64> + Sync);

/// A size that was tried.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// let tried = everburn::train::TriedBatchSize { batch_size: 64, seconds: 0.5, peak_memory: 1 << 30 };
/// assert_eq!(tried.samples_per_second(), 128.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TriedBatchSize {
    /// Samples per step over all ranks together.
    pub batch_size: usize,
    /// How long a step took.
    pub seconds: f64,
    /// The most memory that a rank has used, in bytes.
    pub peak_memory: u64,
}

impl TriedBatchSize {
    /// Samples per second of all ranks together.
    pub fn samples_per_second(&self) -> f64 {
        self.batch_size as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// What keeps a batch from being larger.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::BatchSizeLimit;
///
/// assert_eq!(BatchSizeLimit::Samples.to_string(), "the number of training samples");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchSizeLimit {
    /// The memory of some rank.
    #[default]
    Memory,
    /// There are no more training samples.
    Samples,
}

impl std::fmt::Display for BatchSizeLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Samples => "the number of training samples",
        })
    }
}

/// What a search has found: [`Trainer::find_batch_size`]. The same on all ranks.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{BatchSizeSearch, TriedBatchSize};
///
/// let tried = |batch_size, seconds| TriedBatchSize { batch_size, seconds, peak_memory: 0 };
/// let tried = vec![tried(8, 0.1), tried(16, 0.12), tried(32, 0.235)];
/// let search = BatchSizeSearch { tried, largest: 200, ..BatchSizeSearch::default() };
/// assert_eq!(search.suggestion(), Some(16)); // 32 is 2 % faster
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BatchSizeSearch {
    /// The sizes that were timed, each twice the one before.
    pub tried: Vec<TriedBatchSize>,
    /// The largest size that fits on every rank.
    pub largest: usize,
    /// Why there is no larger one.
    pub limit: BatchSizeLimit,
    /// A step of that size was made; otherwise it would have taken too long, and the size is that of the line.
    pub confirmed: bool,
    /// The user has stopped it.
    pub interrupted: bool,
}

impl BatchSizeSearch {
    /// The smallest size whose throughput is within 5 % of the best one.
    pub fn suggestion(&self) -> Option<usize> {
        let speeds = || self.tried.iter().map(TriedBatchSize::samples_per_second);
        let best = speeds().fold(0.0, f64::max);
        let mut found = self.tried.iter().zip(speeds());
        let (tried, _) = found.find(|(_, speed)| speed * GAIN >= best)?;
        Some(tried.batch_size)
    }

    /// Whether the last two doublings have gained less than they should.
    fn levels_off(&self) -> bool {
        let (before, newest) = self.tried.split_at(self.tried.len().saturating_sub(2));
        let best = |tried: &[TriedBatchSize]| {
            tried
                .iter()
                .map(TriedBatchSize::samples_per_second)
                .fold(0.0, f64::max)
        };
        !before.is_empty() && best(newest) < GAIN * best(before)
    }

    /// The bytes per sample by the last two sizes, if they differ measurably, and so did those before: what was not
    /// given back by work before hides the growth of small sizes.
    fn bytes_per_sample(&self) -> Option<f64> {
        let [.., first, second, third] = &self.tried[..] else {
            return None;
        };
        let grown =
            |a: &TriedBatchSize, b: &TriedBatchSize| b.peak_memory.saturating_sub(a.peak_memory);
        let measurable = grown(first, second) >= MEASURABLE && grown(second, third) >= MEASURABLE;
        let samples = third.batch_size.saturating_sub(second.batch_size);
        (measurable && samples > 0).then(|| grown(second, third) as f64 / samples as f64)
    }
}

/// What a rank has of memory.
#[derive(Debug, Clone, Copy)]
struct Room {
    in_use: u64,
    free: u64,
}

impl Room {
    /// What may be used in all, with a margin.
    fn most(self) -> f64 {
        self.in_use as f64 + self.free as f64 * (1.0 - MARGIN)
    }

    /// Whether a step of `size` fits, as far as the sizes before show.
    fn holds(self, search: &BatchSizeSearch, size: usize) -> bool {
        let Some(last) = search.tried.last() else {
            return true;
        };
        let more = size.saturating_sub(last.batch_size) as f64;
        let growth = match search.bytes_per_sample() {
            Some(bytes) => bytes * more,
            // As if all that the last size used were for its samples.
            None => last.peak_memory as f64 / last.batch_size as f64 * more,
        };
        last.peak_memory as f64 + growth <= self.most()
    }

    /// The largest size by the line through the last sizes; the last one where there is none.
    fn largest(self, search: &BatchSizeSearch) -> usize {
        let Some(last) = search.tried.last() else {
            return 0;
        };
        let bytes = search.bytes_per_sample();
        let more = bytes.map_or(0.0, |bytes| (self.most() - last.peak_memory as f64) / bytes);
        // A number beyond any size stays one.
        last.batch_size.saturating_add(more.max(0.0) as usize)
    }
}

impl Trainer {
    /// Searches the largest batch that fits on every rank, and measures the throughput of sizes on the way, on all ranks
    /// together. `model` learns nothing. `free` is the memory that is free for this rank, `tell` is called for each
    /// size that was timed.
    ///
    /// ```no_run
    /// # mod everburn { pub use everburn_train as train; }
    /// use everburn::train::{AnyData, AnyModel, TrainError, Trainer};
    ///
    /// fn find(trainer: &Trainer, model: AnyModel, data: &AnyData) -> Result<Option<usize>, TrainError> {
    ///     let free = || everburn_record::proc::available_memory();
    ///     let search = trainer.find_batch_size(model, data, &free, &|_| ())?;
    ///     Ok(search.suggestion())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`TrainError`] as a training; [`TrainError::Config`] where the device does not report its memory, for local steps,
    /// and for ranks that may be lost.
    pub fn find_batch_size<M, I>(
        &self,
        model: M,
        data: &TrainingData<I, M::Batch>,
        free: FreeMemory<'_>,
        tell: &dyn Fn(&TriedBatchSize),
    ) -> Result<BatchSizeSearch, TrainError>
    where
        M: Trainable,
        I: Send + Sync + Clone + 'static,
    {
        self.check_trials()?;
        let (model, data) = (AnyModel::new(model), erase_data(data));
        draw_parameters(&model);
        let ranks = self.config.virtual_ranks.unwrap_or(self.group.world_size());
        // Every rank has as many samples in each part of a batch.
        let unit = ranks.max(1) * self.config.accumulate.max(1);
        let samples = self.data_of_trials(&data).train.len();
        let most = samples / unit * unit;
        if most == 0 {
            return Err(TrainError::Config(format!(
                "the smallest batch of {} has {unit} samples, and there {} only {}",
                counted(ranks, "rank"),
                if samples == 1 { "is" } else { "are" },
                counted(samples, "training sample")
            )));
        }
        let mut search = BatchSizeSearch::default();
        let mut size = unit;
        loop {
            let Some(tried) = self.try_size(&model, &data, size, STEPS, &mut search)? else {
                return Ok(search);
            };
            tell(&tried);
            search.tried.push(tried);
            search.largest = size;
            let next = size.saturating_mul(2).min(most);
            let enough = search.levels_off() && search.bytes_per_sample().is_some();
            if next == size || enough || !self.room_on_all(&search, next, free)? {
                break;
            }
            size = next;
        }
        self.extrapolate(&model, &data, (unit, most), free, search)
    }

    /// The largest size by the line, confirmed by a step.
    fn extrapolate(
        &self,
        model: &AnyModel,
        data: &AnyData,
        (unit, most): (usize, usize),
        free: FreeMemory<'_>,
        mut search: BatchSizeSearch,
    ) -> Result<BatchSizeSearch, TrainError> {
        let own = i64::try_from(self.room(free)?.largest(&search)).unwrap_or(i64::MAX);
        let all = self.group.all_gather(vec![own]).wait()?;
        let least = all.iter().flatten().min().copied().unwrap_or(0);
        let least = usize::try_from(least).unwrap_or(usize::MAX).min(most) / unit * unit;
        let timed = search.largest;
        search.largest = least.max(timed);
        search.limit = match search.largest == most {
            true => BatchSizeLimit::Samples,
            false => BatchSizeLimit::Memory,
        };
        search.confirmed = search.largest == timed;
        let seconds = search.tried.last().map_or(0.0, |last| last.seconds);
        let estimate = seconds * search.largest as f64 / timed.max(1) as f64;
        if !search.confirmed && estimate <= LONGEST_STEP {
            let size = search.largest;
            search.confirmed = self.try_size(model, data, size, 1, &mut search)?.is_some();
        }
        Ok(search)
    }

    /// Makes a few steps of a size; `None` if the user has stopped it.
    fn try_size(
        &self,
        model: &AnyModel,
        data: &AnyData,
        size: usize,
        steps: usize,
        search: &mut BatchSizeSearch,
    ) -> Result<Option<TriedBatchSize>, TrainError> {
        let trial = Trial {
            batch_size: size,
            rates: vec![self.config.optimizer.learning_rate; steps],
        };
        let made = self.try_steps(model, data, &trial, |_| false)?;
        if made.interrupted {
            search.interrupted = true;
            return Ok(None);
        }
        // The last batch of an epoch may be smaller.
        let whole = made.lines.iter().filter(|line| line.samples == size as u64);
        let seconds: Vec<f64> = whole.map(|line| line.cost.seconds).collect();
        let timed = if seconds.len() > 1 {
            &seconds[1..]
        } else {
            &seconds
        };
        let peaks = made.lines.iter().filter_map(|line| line.cost.peak_memory);
        let Some(peak_memory) = peaks.max() else {
            return Err(memory_unknown());
        };
        // Each rank has timed its own steps. All must come to the same decision: the slowest rank's counts.
        let own = timed.iter().copied().fold(f64::INFINITY, f64::min);
        let all = self.group.all_gather(vec![own]).wait()?;
        Ok(Some(TriedBatchSize {
            batch_size: size,
            seconds: all.iter().flatten().copied().fold(0.0, f64::max),
            peak_memory,
        }))
    }

    fn room(&self, free: FreeMemory<'_>) -> Result<Room, TrainError> {
        let in_use = PeakMemory::of(&self.device).in_use();
        let room = in_use
            .zip(free())
            .map(|(in_use, free)| Room { in_use, free });
        // A rank that does not know has none: all ranks then end together.
        let known = self
            .group
            .all_gather(vec![u8::from(room.is_some())])
            .wait()?;
        match room {
            Some(room) if known.iter().all(|known| known == &[1]) => Ok(room),
            _ => Err(memory_unknown()),
        }
    }

    /// Whether a step of `size` fits on all ranks.
    fn room_on_all(
        &self,
        search: &BatchSizeSearch,
        size: usize,
        free: FreeMemory<'_>,
    ) -> Result<bool, TrainError> {
        let own = self.room(free)?.holds(search, size);
        let all = self.group.all_gather(vec![u8::from(own)]).wait()?;
        Ok(all.iter().all(|fits| fits == &[1]))
    }
}

fn memory_unknown() -> TrainError {
    TrainError::Config(
        "the search for a batch size needs to know how much memory is free, and this device or system does not report it: \
         try sizes with `training.batch_size`"
            .to_string(),
    )
}

#[cfg(test)]
mod tests;
