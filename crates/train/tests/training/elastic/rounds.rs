//! Ranks that take steps by themselves, some of which are lost, or come, between two outer steps.

use std::path::Path;

use everburn_distributed::OuterCompression;
use everburn_train::{TrainingConfig, TrainingReport};

use super::{Job, failed, folder, lost_and_back};
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
