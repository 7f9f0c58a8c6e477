//! NCCL on real GPUs. `cargo xtask test` runs these tests where there is a GPU and NCCL, and says why not
//! where there is none. Ranks are threads here, each with a GPU of its own.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use everburn_collectives::group::{CollectiveError, DType, GroupOptions, ProcessGroup, ReduceOp};
use everburn_nccl::{DeviceBuffer, GpuMemory, GpuSensor, Library, NcclBackend, Work, gpus};
use everburn_nccl_fake::Number;
use everburn_tests::in_parallel;
use half::{bf16, f16};

const GENEROUS: Duration = Duration::from_secs(60);

/// How many ranks take part: as many as there are GPUs, four at most.
fn ranks() -> usize {
    gpus()
        .unwrap_or_else(|error| panic!("{error}"))
        .gpus
        .len()
        .min(4)
}

fn bytes<T: Number>(numbers: &[T]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.bytes()).collect()
}

fn memory<T: Number>(device: usize, numbers: &[T]) -> GpuMemory {
    let memory = GpuMemory::allocate(device, numbers.len(), T::DTYPE).unwrap();
    memory.write(&bytes(numbers)).unwrap();
    memory
}

fn wide<T: Number>(memory: &GpuMemory) -> Vec<f64> {
    let bytes = memory.read().unwrap();
    bytes
        .chunks(T::DTYPE.size())
        .map(|number| T::from_bytes(number).wide())
        .collect()
}

/// Connects as many ranks, and calls `body` for each on a thread of its own.
fn on_ranks<R: Send>(
    size: usize,
    timeout: Duration,
    body: impl Fn(Arc<NcclBackend>, usize) -> R + Sync,
) -> Vec<R> {
    let library = Arc::new(Library::load().unwrap_or_else(|error| panic!("{error}")));
    let options = GroupOptions {
        timeout: Some(timeout),
        ..GroupOptions::default()
    };
    in_parallel(ProcessGroup::over_threads(size, options), |group| {
        let rank = group.rank();
        let connected = NcclBackend::connect(library.on_gpu(rank), &group);
        drop(group);
        body(connected.unwrap_or_else(|error| panic!("{error}")), rank)
    })
}

fn every_operation<T: Number>(nccl: &Arc<NcclBackend>, rank: usize, size: usize) {
    let len = 1000;
    let own = |rank: usize| -> Vec<T> {
        (0..len)
            .map(|index| T::narrow(((rank + index) % 5) as f64))
            .collect()
    };
    let sum: Vec<f64> = (0..len)
        .map(|index| (0..size).map(|rank| ((rank + index) % 5) as f64).sum())
        .collect();

    let reduced = memory(rank, &own(rank));
    let work = nccl.all_reduce(&reduced.buffer(), ReduceOp::Sum).unwrap();
    if nccl.orders_device() {
        work.hold_device().unwrap();
    }
    work.wait().unwrap();
    assert_eq!(wide::<T>(&reduced), sum, "all_reduce of {}", T::DTYPE);

    let (part, whole) = (
        memory(rank, &own(rank)),
        memory(rank, &vec![T::narrow(0.0); len * size]),
    );
    nccl.all_gather(&part.buffer(), &whole.buffer())
        .unwrap()
        .wait()
        .unwrap();
    let all: Vec<T> = (0..size).flat_map(own).collect();
    assert_eq!(
        wide::<T>(&whole),
        wide::<T>(&memory(rank, &all)),
        "all_gather of {}",
        T::DTYPE
    );

    let scattered = memory(rank, &vec![T::narrow(0.0); len]);
    let scatter = |whole: &DeviceBuffer| {
        nccl.reduce_scatter(whole, &scattered.buffer(), ReduceOp::Max)
            .unwrap()
            .wait()
    };
    scatter(&whole.buffer()).unwrap();
    // All ranks gave the same.
    assert_eq!(
        wide::<T>(&scattered),
        wide::<T>(&memory(rank, &own(rank))),
        "reduce_scatter"
    );
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn every_operation_and_type_has_its_result() {
    let size = ranks();
    let left = on_ranks(size, GENEROUS, |nccl, rank| {
        every_operation::<f32>(&nccl, rank, size);
        every_operation::<f16>(&nccl, rank, size);
        every_operation::<bf16>(&nccl, rank, size);
        every_operation::<f64>(&nccl, rank, size);
        every_operation::<i32>(&nccl, rank, size);
        every_operation::<i64>(&nccl, rank, size);
        every_operation::<u8>(&nccl, rank, size);
        nccl.check()
    });
    left.into_iter()
        .for_each(|left: Result<(), CollectiveError>| left.unwrap());
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn buckets_that_are_under_way_at_once_are_summed() {
    let size = ranks();
    on_ranks(size, GENEROUS, |nccl, rank| {
        let buckets: Vec<GpuMemory> = (1..30).map(|len| memory(rank, &vec![1f32; len])).collect();
        for bucket in &buckets {
            let _ = nccl.all_reduce(&bucket.buffer(), ReduceOp::Sum).unwrap();
        }
        nccl.synchronize().unwrap();
        for bucket in &buckets {
            assert!(wide::<f32>(bucket).iter().all(|sum| *sum == size as f64));
        }
    });
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn an_aborted_backend_says_so_and_the_next_one_works() {
    let size = ranks();
    let summed = Barrier::new(size);
    on_ranks(size, GENEROUS, |nccl, rank| {
        let numbers = memory(rank, &[1f32; 8]);
        nccl.all_reduce(&numbers.buffer(), ReduceOp::Sum)
            .unwrap()
            .wait()
            .unwrap();
        // Another that still waits would hear of the abort.
        summed.wait();
        nccl.process_group().abort("enough");
        let told = nccl
            .all_reduce(&numbers.buffer(), ReduceOp::Sum)
            .unwrap_err();
        assert!(
            matches!(told.root_cause(), CollectiveError::Aborted { .. }),
            "{told}"
        );
    });
    on_ranks(size, GENEROUS, |nccl, rank| {
        every_operation::<f32>(&nccl, rank, size);
    });
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn what_is_there_is_said_in_one_line() {
    let found = gpus().unwrap();
    let line = found.to_string();
    assert!(line.contains("CUDA") && line.contains("NCCL"), "{line}");
    assert!(
        found.gpus.iter().all(|gpu| gpu.memory_bytes > 1 << 30),
        "{found:?}"
    );
    let memory = GpuMemory::allocate(0, 3, DType::U8).unwrap();
    memory.write(&[1, 2, 3]).unwrap();
    assert_eq!(memory.read().unwrap(), [1, 2, 3]);
}

#[test]
#[ignore = "needs a GPU and NCCL: cargo xtask test runs it where there are"]
fn a_gpu_tells_of_its_memory() {
    let reading = GpuSensor::of(0).expect("NVML comes with the driver").read();
    assert!(reading.memory_bytes > Some(0), "{reading:?}");
    assert!(reading.used_bytes <= reading.memory_bytes, "{reading:?}");
}

/// `cargo xtask test` lists these as skipped where there is one GPU.
mod two_gpus {
    use super::*;

    #[test]
    #[ignore = "needs two GPUs and NCCL: cargo xtask test runs it where there are"]
    fn a_rank_that_does_not_come_is_named_and_the_gpus_are_free_again() {
        let size = ranks();
        let last = size - 1;
        let there = Barrier::new(size);
        let told = on_ranks(size, Duration::from_secs(5), |nccl, rank| {
            let numbers = memory(rank, &[1f32; 8]);
            let sum = || nccl.all_reduce(&numbers.buffer(), ReduceOp::Sum);
            sum().unwrap().wait().unwrap();
            let told = (rank != last).then(|| sum().and_then(Work::wait).unwrap_err());
            there.wait();
            told
        });
        assert_eq!(told.iter().flatten().count(), last);
        for told in told.into_iter().flatten() {
            assert!(
                told.to_string().contains(&format!("for rank {last}")),
                "{told}"
            );
        }
        // What the abort has left: a GPU that computes.
        on_ranks(size, GENEROUS, |nccl, rank| {
            every_operation::<f32>(&nccl, rank, size);
        });
    }
}
