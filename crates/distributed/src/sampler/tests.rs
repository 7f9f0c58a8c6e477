use super::*;

fn config(num_samples: usize, batch_size: usize) -> SamplerConfig {
    SamplerConfig {
        num_samples,
        batch_size,
        shuffle: Some(3),
        tail: Tail::Keep,
    }
}

#[test]
fn every_sample_is_read_once_in_the_same_global_batch_on_any_number_of_ranks() {
    for num_samples in [0_usize, 1, 6, 7, 50, 101] {
        for batch_size in [7, 8, 20, 200] {
            let global_batches = |world_size: usize| {
                let mut global = vec![Vec::new(); num_samples.div_ceil(batch_size)];
                for rank in 0..world_size {
                    let config = config(num_samples, batch_size);
                    let sampler = DistributedSampler::new(config, rank, world_size).unwrap();
                    assert_eq!(sampler.batches(5).len(), global.len());
                    for (batch, (share, _)) in global.iter_mut().zip(sampler.batches(5)) {
                        batch.extend(share);
                    }
                }
                global
            };
            let alone = global_batches(1);
            let mut seen = alone.concat();
            seen.sort_unstable();
            assert_eq!(seen, (0..num_samples).collect::<Vec<_>>());
            for world_size in [2, 3, 4, 7] {
                assert_eq!(global_batches(world_size), alone);
            }
        }
    }
}

#[test]
fn every_sample_is_read_once_though_shares_change_from_batch_to_batch() {
    // Alike, three times as fast in turn, and almost alone.
    let speeds = [
        [1.0, 1.0, 1.0],
        [1.0, 3.0, 3.0],
        [3.0, 1.0, 3.0],
        [9e9, 9e9, 1.0],
    ];
    for virtual_ranks in [None, Some(3), Some(5)] {
        for num_samples in [0, 1, 8, 50, 101] {
            let sampler = |rank, batch: usize| {
                let units = virtual_ranks.unwrap_or(8);
                let weights = RankWeights::of_speed(units, &speeds[batch % speeds.len()]);
                let sampler = DistributedSampler::new(config(num_samples, 8), rank, 3);
                let sampler = sampler.unwrap();
                let sampler = match virtual_ranks {
                    Some(count) => sampler.over_virtual(VirtualRanks::new(count, rank, 3).unwrap()),
                    None => sampler,
                };
                sampler.balanced(weights).unwrap()
            };
            let alone = DistributedSampler::new(config(num_samples, 8), 0, 1).unwrap();
            for (batch, (expected, _)) in alone.batches(5).enumerate() {
                let of_rank = |rank| sampler(rank, batch).batches(5).nth(batch).unwrap().0;
                let read: Vec<usize> = (0..3).flat_map(of_rank).collect();
                assert_eq!(read, expected, "batch {batch}, {virtual_ranks:?} shards");
            }
        }
    }
}

#[test]
fn ranks_share_samples_in_proportion_and_virtual_ranks_whole() {
    let weights = RankWeights::of_speed(8, &[1.0, 3.0]);
    let sampler = DistributedSampler::new(config(50, 8), 1, 2).unwrap();
    let plain = sampler.clone().balanced(weights.clone()).unwrap();
    assert_eq!(
        (plain.units(), plain.local_batches()),
        (vec![6, 2], vec![6, 2])
    );
    assert_eq!(plain.largest_part(8), 6);
    let sizes = plain.batches(1).map(|(share, _)| share.len());
    assert!(
        sizes.eq([2, 2, 2, 2, 2, 2, 1]),
        "the tail is shared as well"
    );
    let ranks = VirtualRanks::new(4, 1, 2).unwrap();
    let shards = plain.over_virtual(ranks.clone());
    assert_eq!(
        (shards.units(), shards.local_batches()),
        (vec![3, 1], vec![6, 2])
    );
    let later = sampler
        .over_virtual(ranks)
        .balanced(weights.clone())
        .unwrap();
    assert_eq!(later, shards);
    assert_eq!(shards.on_rank(1, 2).unwrap().local_batches(), [4, 4]);
    let error = later.on_rank(0, 3).unwrap().balanced(weights).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the weights 6,2 are of 2 ranks, and there are 3: use a weight for each rank"
    );
}

#[test]
fn epochs_differ_and_repeat() {
    let sampler = DistributedSampler::new(config(100, 10), 0, 1).unwrap();
    assert_ne!(sampler.indices(1), sampler.indices(2));
    assert_eq!(sampler.indices(1), sampler.indices(1));
}

#[test]
fn the_shuffle_is_the_same_for_ever() {
    let sampler = DistributedSampler::new(config(10, 10), 0, 1).unwrap();
    assert_eq!(sampler.indices(1), GOLDEN_ORDER);
}

const GOLDEN_ORDER: [usize; 10] = [5, 4, 7, 2, 8, 0, 6, 3, 1, 9];

#[test]
fn dropped_tail_leaves_whole_batches_only() {
    let config = SamplerConfig {
        tail: Tail::Drop,
        ..config(10, 4)
    };
    let sampler = DistributedSampler::new(config, 0, 2).unwrap();
    assert_eq!(sampler.num_batches(), 2);
    assert_eq!(sampler.samples_per_epoch(), 8);
    assert!(
        sampler
            .batches(1)
            .all(|(share, global)| share.len() == 2 && global == 4)
    );
}

#[test]
fn a_batch_smaller_than_the_world_is_refused_with_advice() {
    let error = DistributedSampler::new(config(10, 2), 0, 4).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a global batch of 2 samples cannot be shared by 4 ranks: \
         use `training.batch_size = 4` or more, or fewer ranks"
    );
}
