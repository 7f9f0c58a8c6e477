//! Ranks that take steps by themselves, some of which are lost, or come, between two outer steps.

use std::path::Path;

use everburn_distributed::OuterCompression;
use everburn_train::{TrainingConfig, TrainingReport};

use super::{Job, LONG, failed, folder, images, lost_and_back, sound};
use crate::harness::config::changed;
use crate::harness::run::step_lines;

/// Rounds of two steps and of one: an epoch has three.
fn config(compression: OuterCompression) -> TrainingConfig {
    changed(super::config(), |config| {
        config.sync = "every=2".parse().unwrap();
        config.outer.compression = compression;
        config.virtual_ranks = None;
        config.hash_every = None;
    })
}

/// Checks that each of all nine steps was told of once; how many samples they had.
fn samples_of_all_steps(folder: &Path) -> u64 {
    let steps = step_lines(folder);
    let numbers = steps.iter().map(|line| line.step).collect::<Vec<_>>();
    assert_eq!(numbers, (1..=9).collect::<Vec<_>>());
    steps.iter().map(|line| line.samples).sum()
}

fn alike(reports: &[&TrainingReport], world_size: usize) {
    for report in reports {
        assert_eq!(report.world_size, world_size);
        assert_eq!(report.steps, 9);
        assert_eq!(report.test_loss, reports[0].test_loss);
        assert_eq!(report.best_epoch, reports[0].best_epoch);
    }
}

#[test]
fn the_others_end_the_round_in_which_a_rank_is_lost() {
    // In its first step, in its second, as rank 0, and in another epoch.
    let cases = [
        (2, 1, OuterCompression::None),
        (1, 9, OuterCompression::Int8),
        (0, 9, OuterCompression::None),
        (0, 20, OuterCompression::Int8),
    ];
    let whole = cases.map(|(failing, at, compression)| (failing, at, config(compression)));
    // With fragments in flight.
    let in_turn = [(2, 1), (1, 9), (0, 9), (0, 20), (1, 12), (2, 16)].map(|(failing, at)| {
        let mut config = config(OuterCompression::Int4);
        config.outer.fragments = Some(2);
        config.compare_every = 100;
        (failing, at, config)
    });
    for (failing, fails_at, config) in whole.into_iter().chain(in_turn) {
        let folder = folder();
        let job = Job::new(&folder, (2, 3), config);
        let results = job.three_ranks(failing, fails_at);
        assert!(failed(&results[failing]).contains("the disk is broken"));
        let survivors = results.iter().filter_map(|result| result.as_ref().ok());
        let survivors = survivors.collect::<Vec<_>>();
        assert_eq!(survivors.len(), 2);
        alike(&survivors, 2);
        let samples = samples_of_all_steps(folder.path());
        // Its shares of the round in which it was lost, and what one survivor was after another.
        assert!(
            (98..=126).contains(&samples),
            "without {failing}: {samples}"
        );
    }
}

#[test]
fn a_rank_that_comes_back_joins_at_the_next_outer_step() {
    let folder = folder();
    let reports = lost_and_back(2, config(OuterCompression::Int8), &folder);
    alike(&reports.each_ref(), 3);
    samples_of_all_steps(folder.path());
}

#[test]
fn ranks_that_have_ended_their_round_after_a_loss_make_steps_until_the_lost_one_is_back() {
    // Epochs of five steps, in each of which a rank reads three or four samples.
    let config = changed(config(OuterCompression::None), |config| {
        config.batch_size = 10;
    });
    let folder = folder();
    let job = Job::new(&folder, (2, 3), config);
    let reports = std::thread::scope(|scope| {
        let job = &job;
        let others = [0, 1].map(|slot| {
            let store = job.store.clone();
            let waits = move |read: usize| match read {
                1 => store.set(&format!("test/begun/{slot}"), b"1").unwrap(),
                // In the third step, after a round of two.
                9 => {
                    store.set(&format!("test/late/{slot}"), b"1").unwrap();
                    let joined = "everburn/elastic/2/joined/2";
                    store.wait_within(&[joined], LONG).unwrap();
                }
                _ => {}
            };
            scope.spawn(move || job.rank(slot, &images(usize::MAX, waits)).unwrap())
        });
        let lost = scope.spawn(move || {
            let store = job.store.clone();
            let waits = move |_: usize| {
                let begun = ["test/begun/0", "test/begun/1"];
                store.wait_within(&begun, LONG).unwrap();
            };
            assert!(failed(&job.rank(2, &images(1, waits))).contains("the disk is broken"));
            let late = ["test/late/0", "test/late/1"];
            job.store.wait_within(&late, LONG).unwrap();
            job.rank(2, &sound()).unwrap()
        });
        let [first, second] = others.map(|rank| rank.join().unwrap());
        [first, second, lost.join().unwrap()]
    });
    for report in &reports {
        assert_eq!((report.world_size, report.steps), (3, 15));
        assert_eq!(report.test_loss, reports[0].test_loss);
    }
    let numbers = step_lines(folder.path())
        .iter()
        .map(|line| line.step)
        .collect::<Vec<_>>();
    assert_eq!(numbers, (1..=15).collect::<Vec<_>>());
    // They have met once for the loss and the return.
    assert!(!job.store.check(&["everburn/elastic/3/closed"]).unwrap());
}
