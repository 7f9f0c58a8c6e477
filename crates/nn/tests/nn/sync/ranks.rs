//! Ranks as threads, and a group over them that needs no transport.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_nn::{DeviceAllReduce, LossReduction, StatisticsGroup, SyncError};

/// Longer than any of these tests takes; only a test that fails waits for it.
const GENEROUS: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Round {
    arrived: Vec<Option<Vec<f64>>>,
    /// The sums of the round that has ended, and its number.
    sums: Vec<f64>,
    number: u64,
    all_reduces: u64,
    aborted: Option<String>,
}

struct Shared {
    round: Mutex<Round>,
    changed: Condvar,
}

/// One rank's end.
pub struct Threads {
    rank: usize,
    world_size: usize,
    reduction: LossReduction,
    shared: Arc<Shared>,
}

impl Threads {
    pub fn groups(world_size: usize, reduction: LossReduction) -> Vec<Arc<Self>> {
        let shared = Arc::new(Shared {
            round: Mutex::new(Round {
                arrived: vec![None; world_size],
                ..Round::default()
            }),
            changed: Condvar::new(),
        });
        (0..world_size)
            .map(|rank| {
                Arc::new(Self {
                    rank,
                    world_size,
                    reduction,
                    shared: Arc::clone(&shared),
                })
            })
            .collect()
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Why the group was given up.
    pub fn aborted(&self) -> Option<String> {
        self.shared.round.lock().unwrap().aborted.clone()
    }

    /// How many all-reduces there have been.
    pub fn all_reduces(&self) -> u64 {
        self.shared.round.lock().unwrap().all_reduces
    }
}

impl StatisticsGroup for Threads {
    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), SyncError> {
        let failed = |reason: &str| SyncError::Collective {
            reason: reason.to_owned(),
        };
        let mut round = self.shared.round.lock().unwrap();
        if let Some(reason) = &round.aborted {
            return Err(failed(reason));
        }
        let number = round.number;
        round.arrived[self.rank] = Some(values.to_vec());
        if round.arrived.iter().all(Option::is_some) {
            let arrived: Vec<Vec<f64>> =
                round.arrived.iter_mut().filter_map(Option::take).collect();
            if arrived.iter().any(|other| other.len() != values.len()) {
                round.aborted = Some("the lengths differ".to_owned());
            } else {
                let sum = |index| arrived.iter().map(|other: &Vec<f64>| other[index]).sum();
                round.sums = (0..values.len()).map(sum).collect();
                round.all_reduces += 1;
            }
            round.number += 1;
            self.shared.changed.notify_all();
        }
        let deadline = Instant::now() + GENEROUS;
        while round.number == number && round.aborted.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "rank {} waits in vain", self.rank);
            round = self.shared.changed.wait_timeout(round, left).unwrap().0;
        }
        if round.number == number || round.sums.len() != values.len() {
            return Err(failed(round.aborted.as_deref().unwrap_or("unknown")));
        }
        values.copy_from_slice(&round.sums);
        Ok(())
    }

    fn abort(&self, reason: &str) {
        let mut round = self.shared.round.lock().unwrap();
        round.aborted.get_or_insert_with(|| reason.to_owned());
        self.shared.changed.notify_all();
    }

    fn loss_reduction(&self) -> LossReduction {
        self.reduction
    }
}

/// Where sums over ranks are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    InHostMemory,
    OnDevice,
}

pub const SUMS: [Sums; 2] = [Sums::InHostMemory, Sums::OnDevice];

impl Sums {
    /// The group of a rank whose sums are made there.
    pub fn over(self, ranks: &Arc<Threads>) -> Arc<dyn StatisticsGroup> {
        match self {
            Self::InHostMemory => Arc::clone(ranks) as Arc<dyn StatisticsGroup>,
            Self::OnDevice => Arc::new(OnDevice(Arc::clone(ranks))),
        }
    }

    /// How many all-reduces a layer makes in a forward and a backward pass.
    pub fn all_reduces(self) -> u64 {
        match self {
            Self::InHostMemory => 2,
            Self::OnDevice => 3,
        }
    }
}

/// A rank whose sums stay on their device.
#[derive(Debug)]
struct OnDevice(Arc<Threads>);

impl StatisticsGroup for OnDevice {
    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce_sum(&self, _values: &mut [f64]) -> Result<(), SyncError> {
        unreachable!("sums stay on their device")
    }

    fn on_device(&self) -> Option<&dyn DeviceAllReduce> {
        Some(self)
    }

    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }

    fn loss_reduction(&self) -> LossReduction {
        self.0.loss_reduction()
    }
}

impl DeviceAllReduce for OnDevice {
    fn all_reduce(&self, numbers: Tensor<1>) -> Result<Tensor<1>, SyncError> {
        let (device, dtype) = (numbers.device(), numbers.dtype());
        let shape = numbers.dims();
        let mut sums = numbers.into_data().iter::<f64>().collect::<Vec<_>>();
        self.0.all_reduce_sum(&mut sums)?;
        let sums = TensorData::new(sums, shape);
        Ok(Tensor::from_data(sums, (&device, dtype)))
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Threads(rank {} of {})", self.rank, self.world_size)
    }
}

/// Runs `work` on each rank, and gives what each yields, in rank order.
pub fn on_ranks<T: Send>(
    world_size: usize,
    reduction: LossReduction,
    work: impl Fn(Arc<Threads>) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let ranks = Threads::groups(world_size, reduction)
            .into_iter()
            .map(|group| scope.spawn(move || work(group)))
            .collect::<Vec<_>>();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank panicked"))
            .collect()
    })
}
