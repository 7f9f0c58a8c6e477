//! Jobs of up to 1,024 simulated ranks, whose faults must be resolved within the bounds.

use std::time::Duration;

use everburn_collectives::heartbeat::HeartbeatOptions;
use everburn_simulate::{Planted, Report, Settings, run};

/// Fails with the table and the command that repeats it.
fn within_bounds(settings: Settings) -> Report {
    let command = format!(
        "cargo xtask soak --simulate {} --faults {} --seed {}",
        settings.ranks, settings.faults, settings.seed
    );
    let faults = settings.faults;
    let report = run(settings);
    let broken = report.broken();
    assert!(broken.is_empty(), "{broken:#?}\n{report}\n{command}");
    assert_eq!(report.faults.len(), faults, "{report}");
    report
}

#[test]
fn faults_of_256_ranks_are_resolved_in_time() {
    within_bounds(Settings {
        faults: 8,
        ..Settings::new(256, 1)
    });
}

/// With 25 faults: two tests at once make 50.
fn a_thousand_ranks(seed: u64) {
    within_bounds(Settings {
        faults: 25,
        ..Settings::new(1024, seed)
    });
}

#[test]
#[ignore = "a minute: a step of `cargo xtask check`"]
fn faults_of_1024_ranks_are_resolved_in_time() {
    a_thousand_ranks(1);
}

#[test]
#[ignore = "a minute: a step of `cargo xtask check`"]
fn other_faults_of_1024_ranks_are_resolved_in_time() {
    a_thousand_ranks(2);
}

/// Seeds by which errors were found stay in the list: 1 had launchers and beats that asked the store too often.
#[test]
fn faults_of_64_ranks_are_resolved_in_time_by_any_seed() {
    faults_of_64_ranks(1..=2);
}

#[test]
#[ignore = "a minute: a step of `cargo xtask check --long`"]
fn long_faults_of_64_ranks_are_resolved_in_time_by_other_seeds() {
    faults_of_64_ranks(3..=20);
}

fn faults_of_64_ranks(seeds: std::ops::RangeInclusive<u64>) {
    for seed in seeds {
        let settings = Settings {
            faults: 12,
            ..Settings::new(64, seed)
        };
        within_bounds(settings);
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let of = |seed| {
        run(Settings {
            faults: 6,
            ..Settings::new(24, seed)
        })
    };
    let first = of(3);
    assert_eq!(first, of(3));
    assert_ne!(first.trace, of(4).trace);
}

#[test]
fn a_rank_that_never_joins_again_is_expelled_and_its_group_is_reported_as_wrong() {
    let report = run(Settings {
        faults: 4,
        planted: Some(Planted::OneNeverJoinsAgain),
        ..Settings::new(24, 1)
    });
    let broken = report.broken();
    assert!(
        broken.iter().any(|it| it.contains("without [1]")),
        "{broken:?}\n{report}"
    );
}

#[test]
fn a_machine_that_is_cut_off_is_not_found_without_heartbeats_and_the_simulation_says_so() {
    let report = run(Settings {
        faults: 30,
        planted: Some(Planted::BeatsAreNotFollowed),
        ..Settings::new(40, 1)
    });
    let broken = report.broken().join("\n");
    assert!(broken.contains("cut off"), "{broken}\n{report}");
}

#[test]
fn beats_that_come_too_often_are_a_storm() {
    let beats = HeartbeatOptions {
        interval: Duration::from_millis(100),
        timeout: Some(Duration::from_millis(1500)),
        ..HeartbeatOptions::default()
    };
    let report = run(Settings {
        faults: 0,
        beats,
        ..Settings::new(40, 1)
    });
    let broken = report.broken().join("\n");
    assert!(
        broken.contains("messages per rank and second"),
        "{broken}\n{report}"
    );
}
