//! Buckets that are added up in host memory, where devices cannot do it themselves: several ranks share a
//! GPU, or there is no NCCL.
//!
//! A thread reads each bucket from its device, adds it up over a process group, and puts the sum back, while
//! the backward pass goes on. On CUDA, CubeCL reads into memory that is pinned, in which the sum is then
//! made, so that the way back is a copy by the GPU's own hands too.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};

use burn::prelude::*;
use burn::tensor::{DType, TensorData, bf16, f16};
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};

use super::exchange::{DeviceExchange, PendingSum};
use super::staging::{Staged, stage};
use crate::error::DdpError;
use crate::patience::{OwnThread, Patience, caught};
use crate::reducer::lock;

/// Adds buckets up through host memory.
///
/// See [`DeviceExchange`] for an example.
#[derive(Debug)]
pub struct HostExchange {
    group: ProcessGroup,
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<OwnThread>>,
    failed: Arc<Mutex<Option<DdpError>>>,
    /// How many sums are under way, and that one has ended.
    under_way: Arc<UnderWay>,
}

#[derive(Debug, Default)]
struct UnderWay {
    count: Mutex<usize>,
    fewer: std::sync::Condvar,
}

/// A sum that is under way until this is dropped, by a panic too.
struct Under<'a>(&'a UnderWay);

impl Drop for Under<'_> {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
        self.0.fewer.notify_all();
    }
}

struct Job {
    bucket: usize,
    numbers: Staged,
    answer: Sender<Result<Tensor<1>, DdpError>>,
}

impl HostExchange {
    /// Starts a thread over `group`, which nobody else may use.
    ///
    /// # Errors
    /// [`DdpError::Reducer`] if there can be no thread.
    pub fn start(group: ProcessGroup) -> Result<Self, DdpError> {
        let (jobs, inbox) = mpsc::channel();
        let failed = Arc::new(Mutex::new(None));
        let under_way = Arc::new(UnderWay::default());
        let worker = Worker {
            group: group.in_background(),
            failed: failed.clone(),
            under_way: under_way.clone(),
        };
        let thread = OwnThread::start("everburn-staging", move || worker.run(&inbox))
            .map_err(|error| DdpError::Reducer(format!("it could not be started: {error}")))?;
        Ok(Self {
            group,
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
            failed,
            under_way,
        })
    }
}

impl DeviceExchange for HostExchange {
    fn name(&self) -> &'static str {
        "host"
    }

    fn begin(
        &self,
        bucket: usize,
        numbers: Tensor<1>,
        _step: u64,
    ) -> Result<Box<dyn PendingSum>, DdpError> {
        let (answer, sum) = mpsc::channel();
        let job = Job {
            bucket,
            numbers: stage(numbers),
            answer,
        };
        *lock(&self.under_way.count) += 1;
        let jobs = lock(&self.jobs);
        let sent = jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        drop(jobs);
        if !sent {
            // `sum` is left without a sender, which `collect` finds, and `settle` waits for nothing.
            drop(Under(&self.under_way));
        }
        Ok(Box::new(HostSum {
            sum,
            bucket,
            patience: Patience::in_step(&self.group),
        }))
    }

    fn check(&self) -> Result<(), DdpError> {
        lock(&self.failed).clone().map_or(Ok(()), Err)
    }

    fn settle(&self) -> Result<(), DdpError> {
        let mut count = lock(&self.under_way.count);
        while *count > 0 {
            let patience = Patience::in_step(&self.group);
            let (locked, late) = self
                .under_way
                .fewer
                .wait_timeout(count, patience.duration())
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            count = locked;
            if late.timed_out() {
                let left = *count;
                let what = format!("the last {left} buckets of gradients");
                return Err(DdpError::Reducer(patience.is_over(&what)));
            }
        }
        drop(count);
        self.check()
    }

    fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }
}

impl Drop for HostExchange {
    fn drop(&mut self) {
        drop(lock(&self.jobs).take());
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let reason = "the thread that adds gradients up in host memory does not end";
            thread.end(&self.group, reason);
        }
    }
}

struct HostSum {
    sum: Receiver<Result<Tensor<1>, DdpError>>,
    bucket: usize,
    patience: Patience,
}

impl PendingSum for HostSum {
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
        match self.sum.recv_timeout(self.patience.duration()) {
            Ok(sum) => sum,
            Err(RecvTimeoutError::Timeout) => {
                let what = format!("the sum of bucket {} of the gradients", self.bucket);
                Err(DdpError::Reducer(self.patience.is_over(&what)))
            }
            Err(RecvTimeoutError::Disconnected) => Err(DdpError::Reducer(
                "it has ended, as it does after a panic; see the log".to_string(),
            )),
        }
    }
}

struct Worker {
    group: ProcessGroup,
    failed: Arc<Mutex<Option<DdpError>>>,
    under_way: Arc<UnderWay>,
}

impl Worker {
    fn run(self, inbox: &Receiver<Job>) {
        while let Ok(job) = inbox.recv() {
            let _under_way = Under(&self.under_way);
            let Job {
                bucket,
                numbers,
                answer,
            } = job;
            let sum = caught(&self.group, || {
                self.group.set_label(u32::try_from(bucket).ok());
                self.sum(bucket, numbers)
            });
            let sum = sum.unwrap_or_else(|message| Err(DdpError::Reducer(message)));
            if let Err(error) = &sum {
                lock(&self.failed).get_or_insert(error.clone());
            }
            // The step may have been given up; the other ranks count on the exchange all the same.
            drop(answer.send(sum));
        }
    }

    fn sum(&self, bucket: usize, numbers: Staged) -> Result<Tensor<1>, DdpError> {
        let failed = |reason| DdpError::DeviceMemory { bucket, reason };
        let device = numbers.device();
        let mut data = match numbers.read() {
            Ok(data) => data,
            Err(reason) => {
                // The others wait for this bucket.
                self.group
                    .abort(format!("a bucket could not be read: {reason}"));
                return Err(failed(reason));
            }
        };
        add_up(&mut data, &self.group)?;
        let dtype = data.dtype();
        Ok(Tensor::from_data(data, (&device, dtype)))
    }
}

/// Replaces the numbers by their sum over all ranks.
fn add_up(data: &mut TensorData, group: &ProcessGroup) -> Result<(), CollectiveError> {
    macro_rules! of {
        ($type:ty) => {{
            let numbers = data.as_mut_slice::<$type>();
            let numbers = numbers.expect("a tensor's numbers are of its type");
            group.all_reduce_in_place(numbers, ReduceOp::Sum)
        }};
    }
    match data.dtype() {
        DType::F64 => of!(f64),
        DType::F16 => of!(f16),
        DType::BF16 => of!(bf16),
        _ => of!(f32),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use everburn_collectives::group::GroupOptions;

    use super::*;

    #[test]
    fn what_a_thread_that_is_gone_was_to_add_up_fails_at_once() {
        let options = GroupOptions {
            timeout: Some(Duration::from_millis(1)),
            ..GroupOptions::default()
        };
        let (jobs, inbox) = mpsc::channel();
        drop(inbox);
        let exchange = HostExchange {
            group: ProcessGroup::alone(options),
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(None),
            failed: Arc::default(),
            under_way: Arc::default(),
        };
        let numbers = Tensor::<1>::from_floats([1.0], &Device::flex());
        let sum = exchange.begin(0, numbers, 0).unwrap();
        let Err(error) = sum.collect() else {
            panic!("there is no thread that could add anything up");
        };
        assert!(error.to_string().contains("it has ended"), "{error}");
        // Nothing is under way.
        exchange.settle().unwrap();
    }

    #[test]
    fn a_sum_that_panics_is_no_longer_under_way() {
        let under_way = Arc::new(UnderWay::default());
        *lock(&under_way.count) = 1;
        let panics = under_way.clone();
        let thread = OwnThread::start("panics", move || {
            let _under_way = Under(&panics);
            panic!("as it was told to");
        });
        assert!(thread.unwrap().join_within(Duration::from_secs(60)));
        assert_eq!(*lock(&under_way.count), 0);
    }
}
