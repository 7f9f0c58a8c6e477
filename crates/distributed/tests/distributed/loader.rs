//! Batches are the same whoever assembles them, and what goes wrong is told with its sample.

mod changed_samples;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::prelude::*;
use burn::tensor::Int;
use everburn_distributed::{
    BatchNumber, DistributedLoader, DistributedSampler, InputError, Prefetch, RankWeights,
    Resident, SamplerConfig, ShareOfBatch, Tail, VirtualRanks,
};

/// Numbers, of which some cannot be read.
#[derive(Default)]
struct Numbers {
    length: usize,
    unreadable: BTreeSet<usize>,
    panicking: BTreeSet<usize>,
}

impl Numbers {
    /// All can be read.
    fn all(length: usize) -> Self {
        Self {
            length,
            ..Self::default()
        }
    }
}

impl Dataset<i64> for Numbers {
    fn get(&self, index: usize) -> Result<i64, DatasetError> {
        assert!(
            !self.panicking.contains(&index),
            "file {index}.png: no such pixel"
        );
        if self.unreadable.contains(&index) {
            let error = std::io::Error::other(format!("file {index}.png is cut off"));
            return Err(DatasetError::new(error));
        }
        Ok(10 * index as i64)
    }

    fn len(&self) -> usize {
        self.length
    }
}

struct Listed;

impl Batcher<i64, Vec<i64>> for Listed {
    fn batch(&self, items: Vec<i64>, _device: &Device) -> Vec<i64> {
        assert!(!items.contains(&770), "770 is not to be batched");
        items
    }
}

fn sampler(num_samples: usize, rank: usize, world_size: usize) -> DistributedSampler {
    let config = SamplerConfig {
        num_samples,
        batch_size: 8,
        shuffle: Some(3),
        tail: Tail::Keep,
    };
    DistributedSampler::new(config, rank, world_size).unwrap()
}

fn of_rank(
    numbers: &Arc<Numbers>,
    rank: usize,
    world_size: usize,
) -> DistributedLoader<i64, Vec<i64>> {
    let sampler = sampler(numbers.length, rank, world_size);
    DistributedLoader::new(numbers.clone(), Arc::new(Listed), sampler, Device::flex())
}

fn loader(numbers: Numbers, workers: usize) -> DistributedLoader<i64, Vec<i64>> {
    of_rank(&Arc::new(numbers), 0, 1).prefetching(ahead(workers, 2))
}

fn ahead(workers: usize, depth: usize) -> Prefetch {
    Prefetch {
        workers,
        depth,
        ..Prefetch::default()
    }
}

fn parts(share: ShareOfBatch<Vec<i64>>) -> (Vec<(usize, Vec<i64>)>, [usize; 3]) {
    let counts = [share.rounds, share.samples, share.global_samples];
    let parts = share.micro_batches.into_iter();
    (parts.map(|part| (part.index, part.batch)).collect(), counts)
}

#[test]
fn threads_change_nothing_but_the_time() {
    for (rank, world_size, virtual_ranks, micro_batches) in
        [(0, 1, None, 1), (1, 3, None, 2), (2, 3, Some(5), 1)]
    {
        let numbers = Arc::new(Numbers::all(53));
        let mut sampler = sampler(53, rank, world_size);
        if let Some(count) = virtual_ranks {
            sampler = sampler.over_virtual(VirtualRanks::new(count, rank, world_size).unwrap());
        }
        let loader = DistributedLoader::new(numbers, Arc::new(Listed), sampler, Device::flex())
            .in_micro_batches(micro_batches);
        let read = |loader: &DistributedLoader<i64, Vec<i64>>, behind: usize| {
            let shares = loader.epoch(4).behind(behind);
            assert_eq!(shares.len(), 7 - behind);
            shares
                .map(|share| parts(share.unwrap()))
                .collect::<Vec<_>>()
        };
        let alone = read(&loader, 0);
        assert_eq!(alone.len(), 7);
        for (workers, depth) in [(1, 1), (1, 4), (2, 2), (4, 3), (3, 100)] {
            let ahead = loader.clone().prefetching(ahead(workers, depth));
            assert_eq!(read(&ahead, 0), alone, "{workers} workers, {depth} batches");
            assert_eq!(read(&ahead, 5), alone[5..], "resumed");
        }
    }
}

#[test]
fn an_epoch_continues_with_other_shares_and_each_sample_is_read_once() {
    // After how many batches ranks of which speed share the rest of the epoch, of 7 batches.
    let changes = [
        (0, [1.0, 1.0, 1.0]),
        (2, [1.0, 4.0, 2.0]),
        (5, [9e9, 9e9, 1.0]),
    ];
    for workers in [0, 2] {
        let mut read = Vec::new();
        for rank in 0..3 {
            let loader = of_rank(&Arc::new(Numbers::all(53)), rank, 3)
                .in_micro_batches(2)
                .prefetching(ahead(workers, 3));
            for (number, (done, seconds)) in changes.into_iter().enumerate() {
                let weights = RankWeights::of_speed(8, &seconds);
                let loader = loader.clone().balanced(weights.clone()).unwrap();
                let until = changes.get(number + 1).map_or(7, |(done, _)| *done);
                // What was read ahead of a change is read again by whichever rank has it then.
                let shares = loader.epoch(4).behind(done).take(until - done);
                for (batch, share) in (done..until).zip(shares) {
                    let share = share.unwrap();
                    let counts = weights.counts(share.global_samples);
                    assert_eq!(share.samples, counts[rank], "rank {rank}, batch {batch}");
                    assert_eq!(share.rounds, 2, "some rank has two samples or more");
                    let parts = share.micro_batches.into_iter();
                    read.extend(parts.flat_map(|part| part.batch));
                }
            }
        }
        read.sort_unstable();
        let all = (0..53).map(|number| 10 * number);
        assert_eq!(read, all.collect::<Vec<_>>(), "{workers} workers");
    }
}

#[test]
fn what_cannot_be_read_is_named_with_its_sample_and_the_others_still_come() {
    for workers in [0, 1, 3] {
        let numbers = Numbers {
            length: 72,
            unreadable: BTreeSet::from([33]),
            panicking: BTreeSet::from([52]),
        };
        let loader = loader(numbers, workers);
        let (mut errors, mut good) = (Vec::new(), 0);
        for share in loader.epoch(2) {
            match share {
                Ok(_) => good += 1,
                Err(error) => errors.push(error),
            }
        }
        assert_eq!(good + errors.len(), 9);
        let text: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let named = |start: &str, reason: &str| {
            let found = text
                .iter()
                .any(|t| t.starts_with(start) && t.ends_with(reason));
            assert!(found, "{start} {reason} in {text:?}");
        };
        named("sample 33 (batch ", "of epoch 2): file 33.png is cut off");
        named(
            "sample 52 (batch ",
            "made the data set panic: file 52.png: no such pixel",
        );
        assert_eq!(errors.len(), 2);
    }
}

#[test]
fn a_batcher_that_panics_is_told_with_the_batch() {
    for workers in [0, 2] {
        let numbers = Numbers::all(80);
        let loader = loader(numbers, workers);
        let error = loader.epoch(1).find_map(Result::err).unwrap();
        let InputError::Batch {
            batch,
            samples,
            reason,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(batch.epoch, 1);
        assert!(samples.contains(&77), "{samples:?}");
        assert_eq!(reason, "770 is not to be batched");
    }
}

#[test]
fn no_thread_is_left_behind_whenever_the_epoch_is_left() {
    for taken in [0, 1, 4, 10] {
        let numbers = Arc::new(Numbers::all(80));
        let loader = of_rank(&numbers, 0, 1).prefetching(ahead(3, 3));
        let mut shares = loader.epoch(1);
        assert_eq!(shares.by_ref().take(taken).count(), taken);
        drop(shares);
        drop(loader);
        // Each thread has what it reads from.
        assert_eq!(Arc::strong_count(&numbers), 1, "after {taken} batches");
    }
}

/// Waits for good, as a file system may.
struct Stuck {
    gate: Arc<(std::sync::Mutex<bool>, std::sync::Condvar)>,
}

impl Dataset<i64> for Stuck {
    fn get(&self, _index: usize) -> Result<i64, DatasetError> {
        let (open, opened) = &*self.gate;
        let open = opened
            .wait_while(open.lock().unwrap(), |open| !*open)
            .unwrap();
        assert!(*open);
        Ok(0)
    }

    fn len(&self) -> usize {
        8
    }
}

#[test]
fn a_batch_that_does_not_come_is_an_error_that_names_rank_and_batch() {
    let gate = Arc::<(std::sync::Mutex<bool>, std::sync::Condvar)>::default();
    let stuck = Stuck { gate: gate.clone() };
    let prefetch = Prefetch {
        timeout: Duration::from_millis(30),
        ..ahead(1, 1)
    };
    let loader = DistributedLoader::new(
        Arc::new(stuck),
        Arc::new(Listed),
        sampler(8, 1, 2),
        Device::flex(),
    )
    .prefetching(prefetch);
    let error = loader.epoch(3).next().unwrap().unwrap_err();
    let expected = BatchNumber { epoch: 3, batch: 1 };
    assert!(
        matches!(error, InputError::TooLate { rank: 1, batch, workers: 1, .. } if batch == expected),
        "{error}"
    );
    assert!(error.to_string().contains("check the disk"), "{error}");
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
}

/// A row of two numbers and its label.
struct Pairs;

impl Batcher<i64, (Tensor<2>, Tensor<1, Int>)> for Pairs {
    fn batch(&self, items: Vec<i64>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let rows: Vec<f32> = items.iter().flat_map(|i| [*i as f32 / 7.0, 1.0]).collect();
        let rows = TensorData::new(rows, [items.len(), 2]);
        (
            Tensor::from_data(rows, device),
            Tensor::from_ints(&items[..], device),
        )
    }
}

#[test]
fn batches_picked_on_the_device_have_the_bits_of_those_assembled() {
    let plain = Device::flex();
    let device = plain.clone().autodiff();
    // More than are placed at once.
    let train: Arc<dyn Dataset<i64>> = Arc::new(InMemDataset::new((0..9_000).collect()));
    let test: Arc<dyn Dataset<i64>> = Arc::new(InMemDataset::new((9_000..9_100).collect()));
    let sets = [train.clone(), test.clone()];
    let (resident, on_device) = Resident::place(&sets, &Pairs, &device).unwrap();
    assert_eq!(
        resident.bytes(),
        Resident::bytes_of(&sets, &Pairs, &device).unwrap()
    );
    assert!(resident.bytes() >= 9_100 * 12);
    let resident = Arc::new(resident);
    for (index, set) in sets.iter().enumerate() {
        let sampler = sampler(set.len(), 1, 2);
        let device = if index == 0 { &device } else { &plain };
        let assembled = DistributedLoader::new(
            set.clone(),
            Arc::new(Pairs),
            sampler.clone(),
            device.clone(),
        );
        let set = Arc::new(on_device[index]);
        let picked = DistributedLoader::new(set, resident.clone(), sampler, device.clone());
        for (one, other) in assembled.epoch(5).zip(picked.epoch(5)) {
            let (one, other) = (one.unwrap(), other.unwrap());
            assert_eq!(one.samples, other.samples);
            for (one, other) in one.micro_batches.into_iter().zip(other.micro_batches) {
                assert_eq!(
                    one.batch.0.device().is_autodiff(),
                    other.batch.0.device().is_autodiff()
                );
                assert_eq!(one.batch.0.into_data(), other.batch.0.into_data());
                assert_eq!(one.batch.1.into_data(), other.batch.1.into_data());
            }
        }
    }
}

#[test]
fn a_set_that_cannot_be_placed_says_why() {
    let numbers = Numbers {
        length: 10,
        unreadable: BTreeSet::from([7]),
        ..Numbers::default()
    };
    let sets: [Arc<dyn Dataset<i64>>; 1] = [Arc::new(numbers)];
    let error = Resident::place(&sets, &Pairs, &Device::flex())
        .err()
        .unwrap();
    assert_eq!(error.to_string(), "file 7.png is cut off");
    let nothing: [Arc<dyn Dataset<i64>>; 1] = [Arc::new(Numbers::default())];
    let error = Resident::place(&nothing, &Pairs, &Device::flex())
        .err()
        .unwrap();
    assert!(error.to_string().contains("no sample"), "{error}");
}
