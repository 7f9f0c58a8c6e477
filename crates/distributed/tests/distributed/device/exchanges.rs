//! When a sum is made, and who waits for it.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::prelude::*;
use everburn_distributed::{
    BurnExchange, Ddp, DdpConfig, DdpError, DeviceExchange, DeviceMemory, HostExchange, Lent,
    NcclExchange, PendingSum, Waits,
};
use everburn_distributed_fake::FakeMemory;
use everburn_nccl_fake::FakeCluster;

use super::ways::{Way, model, on_ranks};
use crate::models::rows;
use crate::steps::small_buckets;

/// No test waits as long as this.
const LONG: Duration = Duration::from_secs(60);

/// A kernel that runs until its sender is dropped.
fn gate(cluster: &FakeCluster, rank: usize, memory: &FakeMemory) -> Sender<()> {
    let (open, closed) = channel::<()>();
    cluster.launch(rank, memory.compute_stream(), move || {
        let _ = closed.recv_timeout(LONG);
    });
    open
}

/// Memory whose tensors are never read by the host: what it gives back is made up.
#[derive(Debug)]
struct Unread(FakeMemory);

impl DeviceMemory for Unread {
    fn lend(&self, numbers: Tensor<1>) -> Result<Lent, String> {
        self.0.lend(numbers)
    }

    fn take_back(&self, lent: Lent) -> Result<Tensor<1>, String> {
        Ok(Tensor::zeros([lent.buffer().len()], &Device::flex()))
    }

    fn synchronize(&self, device: &Device) -> Result<(), String> {
        self.0.synchronize(device)
    }
}

#[test]
fn the_host_waits_for_no_gpu() {
    let cluster = Arc::new(FakeCluster::new(2));
    cluster.on_all_ranks(|group, rank| {
        let memory = FakeMemory::new(cluster.clone(), rank);
        let open = gate(&cluster, rank, &memory);
        let unread: Arc<dyn DeviceMemory> = Arc::new(Unread(memory));
        let exchange = NcclExchange::new(group, unread, Waits::Device);
        // The GPU is still busy with what came before, and nothing of this has happened.
        let numbers = Tensor::<1>::ones([3], &Device::flex());
        let sum = exchange.begin(0, numbers).unwrap();
        assert_eq!(sum.collect().unwrap().dims(), [3]);
        exchange.check().unwrap();
        drop(open);
        exchange.settle().unwrap();
    });
}

#[test]
fn a_sum_is_made_of_what_the_gpu_has_written_and_read_when_it_is_made() {
    let cluster = Arc::new(FakeCluster::new(2));
    let sums = cluster.on_all_ranks(|group, rank| {
        let memory = FakeMemory::new(cluster.clone(), rank);
        let open = gate(&cluster, rank, &memory);
        let exchange = NcclExchange::new(group, Arc::new(memory), Waits::Device);
        let numbers = Tensor::<1>::from_floats([1.0, rank as f32], &Device::flex());
        // Written after the gate, summed after that, and read after the sum.
        let sum = exchange.begin(0, numbers).unwrap();
        drop(open);
        let sum = sum.collect().unwrap();
        sum.into_data().iter::<f32>().collect::<Vec<_>>()
    });
    assert_eq!(sums, [[2.0, 1.0], [2.0, 1.0]]);
}

/// Tells which buckets have left.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn DeviceExchange>,
    begun: Arc<Mutex<Vec<usize>>>,
}

impl DeviceExchange for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn begin(&self, bucket: usize, numbers: Tensor<1>) -> Result<Box<dyn PendingSum>, DdpError> {
        self.begun.lock().unwrap().push(bucket);
        self.inner.begin(bucket, numbers)
    }

    fn check(&self) -> Result<(), DdpError> {
        self.inner.check()
    }

    fn settle(&self) -> Result<(), DdpError> {
        self.inner.settle()
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
}

#[test]
fn buckets_leave_in_their_order_while_the_backward_pass_runs() {
    on_ranks(2, |rank| {
        let device = Device::flex().autodiff();
        let begun = Arc::new(Mutex::new(Vec::new()));
        let watched = Arc::new(Watched {
            inner: rank.exchange(Way::Nccl),
            begun: begun.clone(),
        });
        let group = rank.group.clone();
        let made = Ddp::with_exchange(model(&device), group, small_buckets(), watched);
        let (ddp, model) = made.unwrap();
        let step = |ddp: &Ddp| {
            let step = ddp.begin(3).unwrap();
            let watched = step.with_hooks(&model, 3);
            let loss = watched.loss(rows(3, &device), true).mean();
            // Until all have told how many samples they have, a bucket cannot be weighted.
            rank.group.barrier().wait().unwrap();
            drop(loss.backward());
            let during = begun.lock().unwrap().clone();
            step.finish(&model).unwrap();
            let all = std::mem::take(&mut *begun.lock().unwrap());
            (during, all)
        };
        // The first step's first bucket is that of a parameter that nobody uses.
        step(&ddp);
        let (_, all) = step(&ddp);
        let buckets = ddp.plan().buckets().len();
        assert!(buckets > 2);
        assert_eq!(all, (0..buckets).collect::<Vec<_>>());
    });
}

#[test]
fn types_are_kept_and_half_types_are_summed() {
    use burn::tensor::DType;
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let cluster = Arc::new(FakeCluster::new(2));
        cluster.on_all_ranks(|group, rank| {
            let memory = Arc::new(FakeMemory::new(cluster.clone(), rank));
            let exchange = NcclExchange::new(group, memory, Waits::Host);
            let numbers = Tensor::<1>::full([5], 1.5, &Device::flex()).cast(dtype);
            let sum = exchange.begin(0, numbers).unwrap().collect().unwrap();
            assert_eq!(sum.dtype(), dtype);
            assert_eq!(sum.into_data().iter::<f32>().collect::<Vec<_>>(), [3.0; 5]);
        });
        crate::ranks::on_ranks(2, |group| {
            let exchange = HostExchange::start(group).unwrap();
            let numbers = Tensor::<1>::full([5], 1.5, &Device::flex()).cast(dtype);
            let sum = exchange.begin(0, numbers).unwrap().collect().unwrap();
            exchange.settle().unwrap();
            assert_eq!(sum.dtype(), dtype);
            assert_eq!(sum.into_data().iter::<f32>().collect::<Vec<_>>(), [3.0; 5]);
        });
    }
}

#[test]
fn burns_own_collective_is_for_gpus() {
    let refused = BurnExchange::new(vec![Device::flex()])
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("between NVIDIA GPUs of one process"),
        "{refused}"
    );
}

#[test]
fn what_changes_gradients_in_host_memory_is_refused() {
    on_ranks(2, |rank| {
        let device = Device::flex().autodiff();
        let config = DdpConfig {
            communication: "fp16".parse().unwrap(),
            ..DdpConfig::default()
        };
        let refused = rank.ddp(Way::Nccl, model(&device), config).unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("`training.ddp.communication = fp16` changes"),
            "{refused}"
        );
        assert!(refused.contains("use `ranks.backend = host`"), "{refused}");
    });
}
