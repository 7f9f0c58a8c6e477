//! When a sum is made, and who waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::prelude::*;
use everburn_distributed::{
    Ddp, DdpConfig, DdpError, DeviceCollective, DeviceCommunicator, DeviceMemory, HostCommunicator,
    Lent, NcclCommunicator, NcclWait, PendingTensor,
};
use everburn_distributed_fake::FakeMemory;
use everburn_nccl_fake::{FakeCluster, Fault};

use super::ways::{Way, model, on_ranks};
use crate::models::{rows, values};
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
    cluster.on_all_ranks(|nccl, rank| {
        let memory = FakeMemory::new(cluster.clone(), rank);
        let open = gate(&cluster, rank, &memory);
        let unread: Arc<dyn DeviceMemory> = Arc::new(Unread(memory));
        let communicator = NcclCommunicator::new(nccl, unread, NcclWait::Device);
        // The GPU is still busy with what came before, and nothing of this has happened.
        let numbers = Tensor::<1>::ones([3], &Device::flex());
        let sum = communicator.begin(0, numbers).unwrap();
        assert_eq!(sum.collect().unwrap().dims(), [3]);
        communicator.check().unwrap();
        drop(open);
        communicator.settle().unwrap();
    });
}

#[test]
fn where_the_host_waits_for_buckets_it_does_not_for_what_modules_exchange() {
    let cluster = Arc::new(FakeCluster::new(2));
    cluster.on_all_ranks(|nccl, rank| {
        let memory = FakeMemory::new(cluster.clone(), rank);
        let open = gate(&cluster, rank, &memory);
        let is_open = Arc::new(AtomicBool::new(false));
        let after_gate = is_open.clone();
        cluster.launch(rank, memory.compute_stream(), move || {
            after_gate.store(true, Ordering::Release);
        });
        let unread: Arc<dyn DeviceMemory> = Arc::new(Unread(memory));
        let communicator = NcclCommunicator::new(nccl, unread, NcclWait::Host);
        let ones = || Tensor::<1>::ones([2], &Device::flex());
        for collective in [DeviceCollective::AllReduce, DeviceCollective::AllGather] {
            let begun = communicator.begin_collective(collective, ones()).unwrap();
            begun.collect().unwrap();
        }
        let bucket = communicator.begin(0, ones()).unwrap();
        let has_waited = is_open.load(Ordering::Acquire);
        assert!(!has_waited, "the host has waited for the GPU");
        drop(open);
        bucket.collect().unwrap();
        assert!(is_open.load(Ordering::Acquire), "the host has not waited");
    });
}

#[test]
fn a_sum_is_made_of_what_the_gpu_has_written_and_read_when_it_is_made() {
    let cluster = Arc::new(FakeCluster::new(2));
    let sums = cluster.on_all_ranks(|nccl, rank| {
        let memory = FakeMemory::new(cluster.clone(), rank);
        let open = gate(&cluster, rank, &memory);
        let communicator = NcclCommunicator::new(nccl, Arc::new(memory), NcclWait::Device);
        let numbers = Tensor::<1>::from_floats([1.0, rank as f32], &Device::flex());
        // Written after the gate, summed after that, and read after the sum.
        let sum = communicator.begin(0, numbers).unwrap();
        drop(open);
        values(sum.collect().unwrap())
    });
    assert_eq!(sums, [[2.0, 1.0], [2.0, 1.0]]);
}

/// Tells which buckets have left.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn DeviceCommunicator>,
    begun: Arc<Mutex<Vec<usize>>>,
}

impl DeviceCommunicator for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn begin(&self, bucket: usize, numbers: Tensor<1>) -> Result<Box<dyn PendingTensor>, DdpError> {
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
fn buckets_leave_in_their_order() {
    on_ranks(2, |rank| {
        let device = Device::flex().autodiff();
        let begun = Arc::new(Mutex::new(Vec::new()));
        let watched = Arc::new(Watched {
            inner: rank.communicator(Way::Nccl),
            begun: begun.clone(),
        });
        let group = rank.group.clone();
        let made = Ddp::with_communicator(model(&device), group, small_buckets(), watched);
        let (ddp, model) = made.unwrap();
        // The first step's first bucket is that of a parameter that nobody uses.
        for _ in 0..2 {
            begun.lock().unwrap().clear();
            let step = ddp.begin(3).unwrap();
            let watched = step.with_hooks(&model, 3);
            drop(watched.loss(rows(3, &device), true).mean().backward());
            step.finish(&model).unwrap();
        }
        let buckets = ddp.plan().buckets().len();
        assert!(buckets > 2);
        assert_eq!(*begun.lock().unwrap(), (0..buckets).collect::<Vec<_>>());
    });
}

#[test]
fn types_are_kept_and_half_types_are_summed() {
    use burn::tensor::DType;
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let cluster = Arc::new(FakeCluster::new(2));
        cluster.on_all_ranks(|nccl, rank| {
            let memory = Arc::new(FakeMemory::new(cluster.clone(), rank));
            let communicator = NcclCommunicator::new(nccl, memory, NcclWait::Host);
            let numbers = Tensor::<1>::full([5], 1.5, &Device::flex()).cast(dtype);
            let sum = communicator.begin(0, numbers).unwrap().collect().unwrap();
            assert_eq!(sum.dtype(), dtype);
            assert_eq!(values(sum), [3.0; 5]);
        });
    }
}

#[test]
fn what_changes_gradients_in_host_memory_is_refused() {
    on_ranks(2, |rank| {
        let config = DdpConfig {
            communication: "fp16".parse().unwrap(),
            ..DdpConfig::default()
        };
        let refused = rank.ddp(Way::Nccl, config).unwrap_err().to_string();
        assert!(
            refused.contains("`training.ddp.communication = fp16` changes"),
            "{refused}"
        );
        assert!(refused.contains("use `ranks.backend = host`"), "{refused}");
    });
}

#[test]
fn ranks_exchange_other_tensors_than_buckets_by_nccl() {
    for (old_driver, waits) in [
        (false, NcclWait::Device),
        (false, NcclWait::Host),
        (true, NcclWait::Device),
    ] {
        let cluster = Arc::new(FakeCluster::new(3));
        cluster.on_all_ranks(|nccl, rank| {
            if old_driver {
                cluster.inject(rank, Fault::OldDriver);
            }
            let memory = Arc::new(FakeMemory::new(cluster.clone(), rank));
            let communicator = NcclCommunicator::new(nccl, memory, waits);
            assert!(communicator.has_collectives());
            let collective = |collective, own: &[f32]| {
                let own = Tensor::<1>::from_floats(own, &Device::flex());
                let begun = communicator.begin_collective(collective, own).unwrap();
                values(begun.collect().unwrap())
            };
            let own = rank as f32;
            let all = collective(DeviceCollective::AllGather, &[own, 10.0]);
            assert_eq!(all, [0.0, 10.0, 1.0, 10.0, 2.0, 10.0]);
            let scatter = DeviceCollective::ReduceScatter { bucket: 0 };
            let part = collective(scatter, &[own, 1.0, 2.0, 3.0, 4.0, 5.0]);
            let expected = [[3.0, 3.0], [6.0, 9.0], [12.0, 15.0]];
            assert_eq!(part, expected[rank]);
            let sum = collective(DeviceCollective::AllReduce, &[own, 1.0]);
            assert_eq!(sum, [3.0, 3.0]);
            assert!(collective(DeviceCollective::AllGather, &[]).is_empty());
            let calls = cluster.take_calls(rank);
            let expected = [
                "all_gather(f32[2])",
                "reduce_scatter(f32[6], sum)",
                "all_reduce(f32[2], sum)",
            ];
            assert_eq!(calls, expected);
            communicator.settle().unwrap();
        });
    }
}

#[test]
fn buckets_begin_when_they_are_collected_where_modules_exchange_within_passes() {
    let cluster = Arc::new(FakeCluster::new(2));
    cluster.on_all_ranks(|nccl, rank| {
        let memory = Arc::new(FakeMemory::new(cluster.clone(), rank));
        let communicator = NcclCommunicator::new(nccl, memory, NcclWait::Device);
        communicator.sum_after_passes();
        let ones = |length: usize| Tensor::<1>::ones([length], &Device::flex());
        let bucket = communicator.begin(0, ones(3)).unwrap();
        let scatter = DeviceCollective::ReduceScatter { bucket: 1 };
        let part = communicator.begin_collective(scatter, ones(4)).unwrap();
        // That of a module is not put off, nor is that of a parameter.
        for collective in [DeviceCollective::AllReduce, DeviceCollective::AllGather] {
            let within = communicator.begin_collective(collective, ones(2)).unwrap();
            within.collect().unwrap();
        }
        let within = ["all_reduce(f32[2], sum)", "all_gather(f32[2])"];
        assert_eq!(cluster.take_calls(rank), within);
        assert_eq!(values(bucket.collect().unwrap()), [2.0; 3]);
        assert_eq!(values(part.collect().unwrap()), [2.0; 2]);
        let after = ["all_reduce(f32[3], sum)", "reduce_scatter(f32[4], sum)"];
        assert_eq!(cluster.take_calls(rank), after);
    });
}

#[test]
fn a_communicator_through_host_memory_is_for_buckets_alone() {
    crate::ranks::on_ranks(1, |group| {
        let communicator = HostCommunicator::start(group).unwrap();
        assert!(!communicator.has_collectives());
        let own = Tensor::<1>::ones([2], &Device::flex());
        let refused = communicator.begin_collective(DeviceCollective::AllGather, own);
        let Err(refused) = refused else {
            panic!("it has no such collective");
        };
        let refused = refused.to_string();
        assert!(refused.contains("has no all_gather"), "{refused}");
    });
}
