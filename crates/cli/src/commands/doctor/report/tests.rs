use everburn_tests::AssertContains;

use super::super::rank::About;
use super::*;

fn rank(rank: usize, host: &str, address: &str) -> RankFindings {
    RankFindings {
        about: About {
            rank,
            host: host.into(),
            name: format!("node{host}"),
            address: address.into(),
            listener: format!("{address}:1"),
        },
        reach: Vec::new(),
        clock: None,
        pairs: Vec::new(),
    }
}

fn two() -> [RankFindings; 2] {
    [0, 1].map(|by| {
        let pair = |way, rate| PairReport {
            ranks: (0, 1),
            way,
            by,
            bytes_per_second: Some(rate),
            round_trip_us: Some(12.5),
            wrong: 0,
            error: None,
        };
        RankFindings {
            pairs: vec![
                pair(Way::SharedMemory, 8e9 - by as f64 * 1e9),
                pair(Way::Tcp, 2e9),
            ],
            ..rank(by, "a", "10.0.0.1")
        }
    })
}

#[test]
fn a_pair_has_a_line_for_each_way_with_the_slower_side() {
    let found = two();
    let report = Report(&found);
    assert_eq!(report.problems(), []);
    let table = report.table();
    let lines: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("0 - 1"))
        .map(|line| line.split_whitespace().skip(3).collect())
        .collect();
    assert_eq!(
        lines,
        [
            vec!["TCP", "2.00", "12.5", "ok"],
            vec!["shared", "memory", "7.00", "12.5", "ok"]
        ]
    );
    table.assert_contains(["rank 1 on nodea, binds and publishes 10.0.0.1"]);
}

#[test]
fn wrong_numbers_on_either_side_are_a_problem() {
    let mut found = two();
    found[1].pairs[1].wrong = 3;
    let report = Report(&found);
    assert!(report.table().contains("WRONG"));
    let [problem] = &report.problems()[..] else {
        panic!("one problem");
    };
    problem
        .found
        .assert_contains(["3 numbers that rank 0 and rank 1", "over TCP"]);
}

#[test]
fn a_rank_that_is_not_reached_is_named_with_its_address() {
    let mut found = two().map(|found| RankFindings {
        pairs: Vec::new(),
        ..found
    });
    found[1].reach = vec![ReachReport {
        from: 1,
        to: 0,
        address: "10.0.0.1:4".into(),
        error: Some("timed out".into()),
    }];
    let report = Report(&found);
    report.table().assert_contains(["not reached"]);
    let problems = report.problems();
    assert_eq!(
        problems[0].found,
        "rank 1 (nodea) does not reach rank 0 at 10.0.0.1:4: timed out"
    );
    assert!(problems[0].advice.contains("firewalls"));
}

#[test]
fn a_loopback_address_is_a_trap_only_between_machines() {
    let problems = |other| {
        let found = [rank(0, "a", "127.0.1.1"), rank(1, other, "10.0.0.2")];
        Report(&found).problems()
    };
    assert_eq!(problems("a"), []);
    let trapped = problems("b");
    assert_eq!(trapped.len(), 1);
    let what = "rank 0 on nodea publishes the loopback address 127.0.1.1";
    trapped[0].found.assert_contains([what]);
}

#[test]
fn clocks_are_apart_beyond_what_the_measurement_may_err() {
    let clock = |ahead_us, error_us| {
        clock_problem(&ClockReport {
            rank: 1,
            ahead_us,
            error_us,
        })
    };
    assert_eq!(clock(9e5, 10.0), None);
    assert_eq!(clock(-1.5e6, 6e5), None);
    let apart = clock(-2.5e6, 10.0).unwrap();
    assert_eq!(apart.found, "the clock of rank 1 is 2.5 s behind rank 0's");
    assert!(clock(2.5e6, 10.0).unwrap().found.contains("ahead of"));
}

#[test]
fn what_failed_is_told_in_the_ranks_own_words() {
    let mut found = two();
    found[0].pairs[0].error = Some("no memory".into());
    let problems = Report(&found).problems();
    problems[0].found.assert_contains(["over shared memory"]);
    assert!(
        problems[0].found.ends_with("on rank 0: no memory"),
        "{problems:?}"
    );
    assert!(problems[0].advice.contains("--transport tcp"));
}
