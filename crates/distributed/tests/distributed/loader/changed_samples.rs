//! Samples that are changed, and mixed with partners.

use everburn_distributed::Augment;
use rand_chacha::rand_core::Rng;

use super::*;

#[test]
fn samples_are_changed_anew_in_each_epoch_and_alike_on_any_number_of_ranks() {
    let numbers = Arc::new(Numbers::all(53));
    // All samples of an epoch, in the order in which the ranks together read them.
    let epoch = |epoch: usize, world_size: usize, workers: usize, behind: usize| {
        let of_rank = |rank| {
            let loader = of_rank(&numbers, rank, world_size)
                .in_micro_batches(2)
                .prefetching(ahead(workers, 2))
                .augmenting(
                    7,
                    Augment::new(|number, rng| number * 1000 + i64::from(rng.next_u32() % 1000)),
                );
            let shares = loader.epoch(epoch).behind(behind);
            let batches = shares.map(|share| share.unwrap().micro_batches);
            batches
                .map(|parts| {
                    parts
                        .into_iter()
                        .flat_map(|part| part.batch)
                        .collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
        };
        let ranks: Vec<_> = (0..world_size).map(of_rank).collect();
        let batches = 0..ranks[0].len();
        let samples =
            batches.flat_map(|batch| ranks.iter().flat_map(move |rank| rank[batch].clone()));
        samples.collect::<Vec<i64>>()
    };
    let first = epoch(1, 1, 0, 0);
    assert_eq!(first.len(), 53);
    for world_size in [1, 2, 3, 5] {
        assert_eq!(epoch(1, world_size, 0, 0), first, "{world_size} ranks");
        assert_eq!(
            epoch(1, world_size, 3, 0),
            first,
            "{world_size} ranks, threads"
        );
        assert_eq!(
            epoch(1, world_size, 0, 4),
            first[32..],
            "{world_size} ranks, resumed"
        );
    }
    let noise =
        |samples: &[i64]| -> BTreeSet<i64> { samples.iter().map(|sample| sample % 1000).collect() };
    assert!(
        noise(&first).len() > 40,
        "each sample has its own random numbers"
    );
    let second: BTreeSet<i64> = epoch(2, 1, 0, 0).into_iter().collect();
    let same = first
        .iter()
        .filter(|sample| second.contains(sample))
        .count();
    assert!(same < 3, "{same} samples are as in the first epoch");
}

#[test]
fn samples_are_mixed_with_the_same_partners_on_any_number_of_ranks() {
    let numbers = Arc::new(Numbers::all(53));
    let epoch = |epoch: usize, world_size: usize, workers: usize| {
        let mut samples = Vec::new();
        for rank in 0..world_size {
            let change = Augment::new(|number, rng| {
                number + 1_000_000 * (1 + i64::from(rng.next_u32() % 100))
            });
            let loader = of_rank(&numbers, rank, world_size)
                .prefetching(ahead(workers, 2))
                .augmenting(
                    7,
                    change.mixed_by(|own, partner, _rng| own * 1_000_000_000 + partner),
                );
            let parts = loader
                .epoch(epoch)
                .flat_map(|share| share.unwrap().micro_batches);
            samples.extend(parts.flat_map(|part| part.batch));
        }
        samples.sort_unstable();
        samples
    };
    let first = epoch(1, 1, 0);
    assert_eq!(first.len(), 53);
    for (world_size, workers) in [(2, 0), (3, 2), (5, 0)] {
        assert_eq!(epoch(1, world_size, workers), first, "{world_size} ranks");
    }
    // A partner has been changed as it is itself in this epoch.
    let own: BTreeSet<i64> = first.iter().map(|sample| sample / 1_000_000_000).collect();
    let partners: BTreeSet<i64> = first.iter().map(|sample| sample % 1_000_000_000).collect();
    assert!(
        partners.len() > 20 && partners.is_subset(&own),
        "{partners:?}"
    );
    assert_ne!(epoch(2, 1, 0), first);
}

#[test]
fn a_partner_that_cannot_be_read_is_named() {
    let numbers = Numbers {
        length: 72,
        unreadable: BTreeSet::from([33]),
        ..Numbers::default()
    };
    let mix = Augment::new(|number, _rng| number).mixed_by(|own: i64, _partner, _rng| own);
    let loader = loader(numbers, 0).augmenting(7, mix);
    let errors = (1..4).flat_map(|epoch| {
        loader
            .epoch(epoch)
            .filter_map(Result::err)
            .collect::<Vec<_>>()
    });
    let errors: Vec<_> = errors.map(|error| error.to_string()).collect();
    assert!(
        errors.len() > 3,
        "once by itself, and as a partner: {errors:?}"
    );
    assert!(
        errors
            .iter()
            .all(|error| error.starts_with("sample 33 (batch ")),
        "{errors:?}"
    );
}
