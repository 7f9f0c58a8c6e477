//! Ranks share samples by their speed, and one of them is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use everburn_train::TrainingConfig;

use super::{Job, SLOW, config, failed, folder, hashes, images, undisturbed_by};

#[test]
fn ranks_that_are_left_measure_anew_and_the_bits_stay_the_same() {
    let config = TrainingConfig {
        epochs: 20,
        virtual_ranks: Some(6),
        balance: "auto".parse().unwrap(),
        ..config()
    };
    let (expected, _) = undisturbed_by(config.clone());
    let folder = folder();
    let job = Job::new(&folder, (2, 3), config);
    // With 6 shards on 3 ranks, and then 3, 2 and 1 of them, it is at this reading in step 23.
    let (lost, fails_at) = (1, 140);
    let reads: [Arc<AtomicUsize>; 3] = Default::default();
    let results = std::thread::scope(|scope| {
        let ranks = [0, 1, 2].map(|slot| {
            let (job, reads) = (&job, Arc::clone(&reads[slot]));
            let fails_at = if slot == lost { fails_at } else { usize::MAX };
            scope.spawn(move || {
                let count = move |read| reads.store(read, Ordering::Relaxed);
                job.rank(slot, &images(fails_at, count))
            })
        });
        ranks.map(|rank| rank.join().unwrap())
    });
    assert!(failed(&results[lost]).contains("the disk is broken"));
    for slot in [0, SLOW] {
        assert_eq!(results[slot].as_ref().unwrap().world_size, 2);
    }
    assert_eq!(hashes(folder.path()), expected);
    // The two that are left begin with 3 shards each. It would be half as many again if that stayed; from epoch 13 on
    // one of them has 5.
    let [fast, _, slow] = reads.map(|reads| reads.load(Ordering::Relaxed));
    assert!(fast > 2 * slow, "{fast} samples and {slow}");
}
