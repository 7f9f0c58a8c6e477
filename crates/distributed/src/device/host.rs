//! Buckets that are added up in host memory, where devices cannot do it themselves: several ranks share a
//! GPU, or there is no NCCL.
//!
//! A thread reads each bucket from its device, adds it up over a process group, and puts the sum back, while
//! the backward pass continues. On CUDA, CubeCL reads into memory that is pinned, in which the sum is then
//! made, so that the way back is a copy by the GPU's own hands too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use burn::prelude::*;
use burn::tensor::{DType, TensorData, bf16, f16};
use everburn_collectives::group::ProcessGroup;
use everburn_collectives::sync::lock;
use everburn_collectives::worker::{Answer, Worker};

use super::communicator::{DeviceCommunicator, PendingTensor};
use super::rounded::{HostSum, Rounding};
use super::staging::{Staged, numbers_of, stage};
use crate::communication_hook::{CommunicationHookConfig, sum_over_ranks};
use crate::error::DdpError;
use crate::worker_timeout::{AT_THE_END, WorkerTimeout, end};

/// Adds buckets up through host memory.
///
/// See [`DeviceCommunicator`] for an example.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{DeviceCommunicator, HostCommunicator};
///
/// let communicator = HostCommunicator::start(ProcessGroup::alone(GroupOptions::default()))?;
/// assert_eq!(communicator.name(), "host");
/// communicator.settle()?;
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug)]
pub struct HostCommunicator {
    group: ProcessGroup,
    worker: Worker<ProcessGroup>,
    failed: Failed,
    rounding: Option<Arc<Rounding>>,
    /// How many bytes collectives were handed.
    bytes: Arc<AtomicU64>,
}

/// Why the first bucket that could not be added up was not.
type Failed = Arc<Mutex<Option<DdpError>>>;

impl HostCommunicator {
    /// Starts a thread over `group`, which nobody else may use.
    ///
    /// # Errors
    /// [`DdpError::Reducer`] if there can be no thread.
    pub fn start(group: ProcessGroup) -> Result<Self, DdpError> {
        Self::with_hook(group, CommunicationHookConfig::None)
    }

    /// The same, with buckets of `f32` that go the way as `hook` has it: [`CommunicationHookConfig::Fp16`] and
    /// [`CommunicationHookConfig::Bf16`] are rounded by their devices before they are read.
    ///
    /// ```
    /// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
    /// use burn::prelude::*;
    /// use everburn::collectives::group::{GroupOptions, ProcessGroup};
    /// use everburn::distributed::{CommunicationHookConfig, DeviceCommunicator, HostCommunicator};
    ///
    /// let alone = ProcessGroup::alone(GroupOptions::default());
    /// let communicator = HostCommunicator::with_hook(alone, CommunicationHookConfig::Bf16)?;
    /// let bucket = Tensor::<1>::from_floats([1.001, 2.0], &Device::flex());
    /// let sum = communicator.begin(0, bucket)?.collect()?;
    /// assert_eq!(sum.into_data().to_vec::<f32>().unwrap(), [1.0, 2.0]);
    /// assert_eq!(communicator.take_bytes(), Some(4));
    /// # Ok::<(), everburn_distributed::DdpError>(())
    /// ```
    ///
    /// # Errors
    /// [`DdpError::Config`] for another hook, which works in host memory; [`DdpError::Reducer`] if there can be no thread.
    pub fn with_hook(group: ProcessGroup, hook: CommunicationHookConfig) -> Result<Self, DdpError> {
        let rounding = Rounding::of(hook).map(Arc::new);
        if rounding.is_none() && hook != CommunicationHookConfig::None {
            return Err(DdpError::Config(format!(
                "the communication hook {hook} is for gradients in host memory, not for buckets on devices: use \
                 fp16 or bf16"
            )));
        }
        let failed = Failed::default();
        let (giving_up, told) = (group.clone(), failed.clone());
        let panicked = move |message: &str| {
            let message = format!("its thread panicked: {message}");
            giving_up.abort(format!("rank {}: {message}", giving_up.rank()));
            lock(&told).get_or_insert(DdpError::Reducer(message));
        };
        let worker = Worker::start("everburn-staging", group.in_background(), panicked)
            .map_err(|error| DdpError::Reducer(format!("it could not be started: {error}")))?;
        Ok(Self {
            group,
            worker,
            failed,
            rounding,
            bytes: Arc::default(),
        })
    }
}

impl DeviceCommunicator for HostCommunicator {
    fn name(&self) -> &'static str {
        self.rounding
            .as_ref()
            .map_or("host", |rounding| rounding.name())
    }

    fn begin(&self, bucket: usize, numbers: Tensor<1>) -> Result<Box<dyn PendingTensor>, DdpError> {
        // Hooks are for f32.
        let rounding = self.rounding.clone();
        let rounding = rounding.filter(|_| numbers.dtype() == DType::F32);
        let rounded = rounding.as_ref();
        let rounded = rounded.map(|rounding| rounding.begin(bucket, &numbers));
        let numbers = stage(numbers);
        let failed = self.failed.clone();
        // The step may be given up, and nobody wait; the other ranks count on the sum all the same.
        let sum = self.worker.ask(move |group: &mut ProcessGroup| {
            group.set_label(u32::try_from(bucket).ok());
            let sum = match rounded {
                Some(rounded) => rounded.sum(bucket, numbers, group),
                None => sum(bucket, numbers, group),
            };
            if let Err(error) = &sum {
                lock(&failed).get_or_insert(error.clone());
            }
            sum
        });
        Ok(Box::new(Pending {
            sum,
            bucket,
            rounding,
            bytes: self.bytes.clone(),
            timeout: WorkerTimeout::in_step(&self.group),
        }))
    }

    fn take_bytes(&self) -> Option<u64> {
        Some(self.bytes.swap(0, Ordering::Relaxed))
    }

    fn check(&self) -> Result<(), DdpError> {
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }

    fn settle(&self) -> Result<(), DdpError> {
        let timeout = WorkerTimeout::in_step(&self.group);
        self.worker.settle(timeout.duration()).map_err(|left| {
            let what = format!("the last {left} buckets of gradients");
            DdpError::Reducer(timeout.is_over(&what))
        })?;
        self.check()
    }

    fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }
}

impl Drop for HostCommunicator {
    fn drop(&mut self) {
        let reason = "the thread that adds gradients up in host memory does not end";
        end(&mut self.worker, AT_THE_END, &self.group, reason);
    }
}

struct Pending {
    sum: Answer<Result<HostSum, DdpError>>,
    bucket: usize,
    rounding: Option<Arc<Rounding>>,
    bytes: Arc<AtomicU64>,
    timeout: WorkerTimeout,
}

impl PendingTensor for Pending {
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
        let this = *self;
        let timeout = this.timeout;
        let sum = this.sum.wait_within(timeout.duration()).map_err(|lost| {
            let what = format!("the sum of bucket {} of the gradients", this.bucket);
            DdpError::Reducer(timeout.lost(lost, &what))
        })??;
        this.bytes.fetch_add(sum.bytes, Ordering::Relaxed);
        Ok(match this.rounding {
            Some(rounding) => rounding.finish(this.bucket, sum),
            None => sum.numbers,
        })
    }
}

/// The sum of a bucket over all ranks of `group`, as it is.
fn sum(bucket: usize, numbers: Staged, group: &ProcessGroup) -> Result<HostSum, DdpError> {
    let device = numbers.device();
    let mut data = numbers.read(bucket, group)?;
    let bytes = add_up(bucket, &mut data, group)?;
    let dtype = data.dtype();
    Ok(HostSum {
        numbers: Tensor::from_data(data, (&device, dtype)),
        bytes,
        exponent: 0,
        next_exponent: None,
    })
}

/// Replaces the numbers of bucket `bucket` by their sum over all ranks and returns their size in bytes.
fn add_up(bucket: usize, data: &mut TensorData, group: &ProcessGroup) -> Result<u64, DdpError> {
    Ok(match data.dtype() {
        DType::F64 => sum_over_ranks(group, numbers_of::<f64>(bucket, data, group)?)?,
        DType::F16 => sum_over_ranks(group, numbers_of::<f16>(bucket, data, group)?)?,
        DType::BF16 => sum_over_ranks(group, numbers_of::<bf16>(bucket, data, group)?)?,
        _ => sum_over_ranks(group, numbers_of::<f32>(bucket, data, group)?)?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use everburn_collectives::group::GroupOptions;

    use super::*;

    /// Longer than anything here takes.
    const GENEROUS: Duration = Duration::from_secs(60);

    fn refused(communicator: &HostCommunicator) -> String {
        let numbers = Tensor::<1>::from_floats([1.0], &Device::flex());
        let sum = communicator.begin(0, numbers).unwrap();
        let Err(error) = sum.collect() else {
            panic!("there is no thread that could add anything up");
        };
        // Nothing is under way.
        communicator.worker.settle(GENEROUS).unwrap();
        error.to_string()
    }

    fn alone() -> HostCommunicator {
        let group = ProcessGroup::alone(GroupOptions::default());
        HostCommunicator::start(group).unwrap()
    }

    #[test]
    fn what_a_thread_that_is_gone_was_to_add_up_fails_at_once() {
        let mut communicator = alone();
        assert!(communicator.worker.end_within(GENEROUS));
        let error = refused(&communicator);
        assert!(error.contains("its thread has ended"), "{error}");
        communicator.check().unwrap();
    }

    #[test]
    fn a_panic_fails_all_sums_and_gives_the_group_up() {
        let communicator = alone();
        communicator
            .worker
            .submit(|_| panic!("as told"), |_: Result<(), _>| ());
        let error = refused(&communicator);
        assert!(error.contains("its thread panicked: as told"), "{error}");
        let failure = communicator.group.failure().unwrap();
        assert!(failure.reason.contains("rank 0: its thread panicked"));
        assert!(communicator.settle().is_err());
    }
}
