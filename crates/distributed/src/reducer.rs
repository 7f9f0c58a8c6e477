//! The threads that reduce gradients while the backward pass continues.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_collectives::worker::{Worker, WorkerError};

use crate::bucket::Bucket;
use crate::communication_hook::{CommunicationHook, GradientBucket};
use crate::error::DdpError;
use crate::host::HostBuffer;
use crate::sharding::TrackedMemory;
use crate::sharding::layout::ShardedBucket;
use crate::synchronization::UpperSums;
use crate::virtual_ranks::VirtualRanks;
use crate::worker_timeout::{WorkerTimeout, end};

/// How many threads take turns with the buckets: while one of them waits for the last bytes of its
/// bucket, the other's keep the links busy.
pub(crate) const WORKERS: usize = 2;

/// A rank's share of a step's samples, once all ranks have said how many they have.
pub(crate) type Share = Arc<OnceLock<f64>>;

/// A job of the reducer. All ranks submit the same jobs in the same order.
pub(crate) enum Job {
    /// How many samples this rank has in the step: the first job of each step.
    Samples(usize, Share),
    /// A bucket of this rank's mean gradients.
    Bucket(Load),
    /// The same, reduce-scattered.
    Scatter(ScatterLoad),
    /// Which parameters this rank used: where buckets are on a device, and do not tell.
    Used(Vec<bool>),
    /// Rank 0's order of parameters; empty if it has none to offer.
    Order(Vec<i32>),
}

impl Job {
    /// What a report on a hang calls it by: the number of a bucket.
    fn label(&self) -> Option<u32> {
        match self {
            Self::Bucket(load) => u32::try_from(load.index).ok(),
            Self::Scatter(load) => u32::try_from(load.index).ok(),
            Self::Samples(..) | Self::Used(_) | Self::Order(_) => None,
        }
    }
}

/// A bucket on its way.
pub(crate) struct Load {
    pub(crate) index: usize,
    pub(crate) bucket: Bucket,
    pub(crate) buffer: HostBuffer,
    /// The ranks tell each other which parameters they used.
    pub(crate) with_flags: bool,
    /// The norm is wanted.
    pub(crate) with_squares: bool,
    /// The gradients have been multiplied by this rank's share already.
    pub(crate) is_scaled: bool,
    /// What is added up is that of logical shards; the sums above the buffer's.
    pub(crate) of_virtual: Option<(VirtualRanks, UpperSums)>,
}

/// A bucket to reduce-scatter.
#[derive(Debug)]
pub(crate) struct ScatterLoad {
    pub(crate) index: usize,
    pub(crate) layout: ShardedBucket,
    pub(crate) buffer: HostBuffer,
    /// The memory, until it has been added up.
    pub(crate) memory: TrackedMemory,
}

/// What came of a job.
pub(crate) enum Outcome {
    /// How many samples all ranks have.
    Samples(u64),
    /// The mean gradients over the samples of all ranks.
    Bucket {
        index: usize,
        buffer: HostBuffer,
        /// The sum of squares of each parameter, if it was asked for.
        squares: Vec<f64>,
    },
    /// This rank's segment of a bucket.
    Segment { index: usize, buffer: HostBuffer },
    /// Which parameters some rank used.
    Used(Vec<bool>),
    /// Rank 0's order.
    Order(Vec<i32>),
}

/// An outcome and what it cost.
pub(crate) struct Report {
    pub(crate) outcome: Result<Outcome, DdpError>,
    /// The number of the thread that worked it off, and when it began.
    pub(crate) worker: u32,
    pub(crate) began: Instant,
    /// How long the collectives took on this thread.
    pub(crate) busy: Duration,
    /// How many bytes this rank handed to collectives.
    pub(crate) bytes: u64,
}

/// Threads that work off jobs in the order in which they are submitted, each over a process group of
/// its own. Buckets are dealt to them in turn, by their numbers: the same on all ranks.
pub(crate) struct Reducer {
    hands: Vec<Hand>,
}

/// A thread, seen from outside.
struct Hand {
    number: u32,
    group: ProcessGroup,
    worker: Worker<ReducerState>,
}

impl std::fmt::Debug for Reducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.hands.iter().map(|hand| &hand.group))
            .finish()
    }
}

impl Reducer {
    /// Starts a thread for each of `groups`, which nobody else may use. A hook remembers what it has
    /// seen, so there is one thread at most with one.
    pub(crate) fn start(
        groups: Vec<ProcessGroup>,
        mut hook: Option<Box<dyn CommunicationHook>>,
    ) -> Result<Self, DdpError> {
        let hands = groups.into_iter().enumerate().map(|(number, group)| {
            let state = ReducerState {
                // The backward pass computes on the same cores.
                group: group.in_background(),
                hook: hook.take(),
                share: 0.0,
            };
            let giving_up = group.clone();
            let panicked = move |message: &str| {
                let rank = giving_up.rank();
                giving_up.abort(format!(
                    "the gradient reducer of rank {rank}: its thread panicked: {message}"
                ));
            };
            let worker = Worker::start(format!("everburn-reducer-{number}"), state, panicked)
                .map_err(|error| DdpError::Reducer(format!("it could not be started: {error}")))?;
            Ok(Hand {
                number: number as u32,
                group,
                worker,
            })
        });
        let hands = hands.collect::<Result<_, DdpError>>()?;
        Ok(Self { hands })
    }

    /// Queues a job; how many reports will come of it, also where its thread panics.
    pub(crate) fn submit(&self, job: Job, report_to: &Sender<Report>) -> usize {
        let hand = match &job {
            Job::Samples(samples, share) => {
                for hand in &self.hands {
                    hand.submit(Job::Samples(*samples, share.clone()), report_to);
                }
                return self.hands.len();
            }
            Job::Bucket(load) => load.index % self.hands.len(),
            Job::Scatter(load) => load.index % self.hands.len(),
            Job::Used(_) | Job::Order(_) => 0,
        };
        self.hands[hand].submit(job, report_to);
        1
    }

    /// The next report; waits as long as jobs are finished within the group's timeout.
    pub(crate) fn next_report(&self, reports: &Receiver<Report>) -> Result<Report, DdpError> {
        let timeout = WorkerTimeout::in_step(&self.hands[0].group);
        reports
            .recv_timeout(timeout.duration())
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => {
                    self.abort("the gradient exchange came to no end");
                    DdpError::Reducer(timeout.is_over("the next bucket of gradients"))
                }
                RecvTimeoutError::Disconnected => DdpError::Reducer(WorkerError::Ended.to_string()),
            })
    }

    /// Tells the other ranks that this one does not continue with the step.
    pub(crate) fn abort(&self, reason: &str) {
        for hand in &self.hands {
            hand.group.abort(reason);
        }
    }
}

impl Hand {
    fn submit(&self, job: Job, report_to: &Sender<Report>) {
        let (report_to, number) = (report_to.clone(), self.number);
        let work = move |state: &mut ReducerState| {
            let began = Instant::now();
            state.group.set_label(job.label());
            let (outcome, bytes) = match state.work(job) {
                Ok((outcome, bytes)) => (Ok(outcome), bytes),
                Err(error) => (Err(error.into()), 0),
            };
            (outcome, began, began.elapsed(), bytes)
        };
        self.worker.submit(work, move |done| {
            let (outcome, began, busy, bytes) = done.unwrap_or_else(|lost| {
                let lost = DdpError::Reducer(lost.to_string());
                (Err(lost), Instant::now(), Duration::ZERO, 0)
            });
            // The step may have been given up; the other ranks count on the job all the same.
            drop(report_to.send(Report {
                outcome,
                worker: number,
                began,
                busy,
                bytes,
            }));
        });
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        for hand in &mut self.hands {
            // What is queued belongs to steps that other ranks count on.
            let limit = WorkerTimeout::with(&hand.group).duration();
            let reason = "the thread that exchanges gradients does not end";
            end(&mut hand.worker, limit, &hand.group, reason);
        }
    }
}

/// What a thread of the reducer works with.
struct ReducerState {
    group: ProcessGroup,
    /// `None` sends gradients as they are.
    hook: Option<Box<dyn CommunicationHook>>,
    /// This rank's share of the step's samples.
    share: f64,
}

impl ReducerState {
    fn work(&mut self, job: Job) -> Result<(Outcome, u64), CollectiveError> {
        match job {
            Job::Samples(samples, share) => {
                let mut total = [samples as u64 as i64];
                self.group.all_reduce_in_place(&mut total, ReduceOp::Sum)?;
                let total = total[0] as u64;
                self.share = samples as f64 / total.max(1) as f64;
                let _ = share.set(self.share); // the other threads find the same
                Ok((Outcome::Samples(total), 8))
            }
            Job::Bucket(load) => self.reduce(load),
            Job::Scatter(load) => self.scatter(load),
            Job::Used(used) => {
                let mut flags: Vec<u8> = used.into_iter().map(u8::from).collect();
                self.group.all_reduce_in_place(&mut flags, ReduceOp::Max)?;
                let used = flags.into_iter().map(|flag| flag > 0).collect();
                Ok((Outcome::Used(used), 0))
            }
            Job::Order(order) => {
                // Rank 0 alone may have had samples, so the lengths may differ.
                let mut orders = self.group.all_gather_varied(order).wait()?;
                Ok((Outcome::Order(orders.swap_remove(0)), 0))
            }
        }
    }

    fn scatter(&self, mut load: ScatterLoad) -> Result<(Outcome, u64), CollectiveError> {
        // Before the sum, as above; flags are counted, not weighted.
        for rank in 0..load.layout.shards.world_size {
            let gradients = load.layout.gradients_of(rank);
            load.buffer.scale(gradients, self.share);
        }
        let (buffer, bytes) = load.buffer.reduce_scatter(&self.group)?;
        drop(load.memory);
        let index = load.index;
        Ok((Outcome::Segment { index, buffer }, bytes))
    }

    fn reduce(&mut self, load: Load) -> Result<(Outcome, u64), CollectiveError> {
        let Load {
            index,
            bucket,
            mut buffer,
            with_flags,
            with_squares,
            is_scaled,
            of_virtual,
        } = load;
        let (length, all) = (bucket.len(), bucket.length_with_flags());
        // Before the sum, so that half-precision gradients cannot overflow in it. A rank that has
        // all the samples multiplies by exactly one.
        if !is_scaled {
            buffer.scale(0..length, self.share);
        }
        let end = if with_flags { all } else { length };
        let bytes = match (of_virtual, &mut self.hook, buffer.as_f32()) {
            (Some((ranks, upper)), ..) => {
                buffer.all_reduce_virtual(&upper, 0..end, &self.group, &ranks)?
            }
            (None, Some(hook), Some(values)) => {
                let gradients = GradientBucket {
                    index,
                    slots: bucket.slots(),
                    values: &mut values[..length],
                };
                let bytes = hook.reduce(gradients, &self.group)?;
                bytes + buffer.all_reduce(length..end, &self.group)?
            }
            _ => buffer.all_reduce(0..end, &self.group)?,
        };
        let squares = if with_squares {
            let slots = 0..bucket.slots().len();
            slots
                .map(|slot| buffer.sum_of_squares(bucket.range(slot)))
                .collect()
        } else {
            Vec::new()
        };
        let outcome = Outcome::Bucket {
            index,
            buffer,
            squares,
        };
        Ok((outcome, bytes))
    }
}
