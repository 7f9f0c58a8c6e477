use everburn_tests::AssertContains;
use serde_json::json;

use super::*;

fn rank(rank: usize, host: &str, address: &str) -> Value {
    json!({ "about": { "rank": rank, "host": host, "name": format!("node{host}"),
                       "address": address, "listener": format!("{address}:1"), "process": 1 },
            "reach": [], "clock": null, "pairs": [] })
}

fn pair(way: &str, by: usize, rate: f64) -> Value {
    json!({ "ranks": [0, 1], "way": way, "by": by, "bytes_per_second": rate,
            "round_trip_us": 12.5, "wrong": 0, "error": null })
}

fn two() -> Value {
    let mut found = [rank(0, "a", "10.0.0.1"), rank(1, "a", "10.0.0.1")];
    for (by, found) in found.iter_mut().enumerate() {
        found["pairs"] = json!([
            pair("shared_memory", by, 8e9 - by as f64 * 1e9),
            pair("tcp", by, 2e9)
        ]);
    }
    json!({ "rank": 0, "found": found })
}

fn problems(answer: &Value) -> Vec<Problem> {
    Report::of(answer).unwrap().problems()
}

#[test]
fn a_pair_has_a_line_for_each_way_with_the_slower_side() {
    let answer = two();
    let report = Report::of(&answer).unwrap();
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
    let mut answer = two();
    answer["found"][1]["pairs"][1]["wrong"] = json!(3);
    assert!(Report::of(&answer).unwrap().table().contains("WRONG"));
    let problems = problems(&answer);
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0]
            .what
            .starts_with("3 numbers that rank 0 and rank 1")
    );
    assert!(problems[0].what.contains("over TCP"), "{problems:?}");
}

#[test]
fn a_rank_that_is_not_reached_is_named_with_its_address() {
    let mut answer = two();
    answer["found"][0]["pairs"] = json!([]);
    answer["found"][1]["pairs"] = json!([]);
    answer["found"][1]["reach"] =
        json!([{ "from": 1, "to": 0, "address": "10.0.0.1:4", "error": "timed out" }]);
    let table = Report::of(&answer).unwrap().table();
    assert!(table.contains("not reached"), "{table}");
    let problems = problems(&answer);
    assert_eq!(
        problems[0].what,
        "rank 1 (nodea) does not reach rank 0 at 10.0.0.1:4: timed out"
    );
    assert!(problems[0].advice.contains("firewalls"));
}

#[test]
fn a_loopback_address_is_a_trap_only_between_machines() {
    let found = |other| json!({ "found": [rank(0, "a", "127.0.1.1"), rank(1, other, "10.0.0.2")] });
    assert_eq!(problems(&found("a")), []);
    let trapped = problems(&found("b"));
    assert_eq!(trapped.len(), 1);
    assert!(
        trapped[0]
            .what
            .contains("rank 0 on nodea publishes the loopback address 127.0.1.1")
    );
}

#[test]
fn clocks_are_apart_beyond_what_the_measurement_may_err() {
    let clock = |ahead: f64, error: f64| {
        clock_problem(&json!({ "rank": 1, "ahead_us": ahead, "error_us": error }))
    };
    assert_eq!(clock(9e5, 10.0), None);
    assert_eq!(clock(-1.5e6, 6e5), None);
    let apart = clock(-2.5e6, 10.0).unwrap();
    assert_eq!(apart.what, "the clock of rank 1 is 2.5 s behind rank 0's");
    assert!(clock(2.5e6, 10.0).unwrap().what.contains("ahead of"));
    assert_eq!(clock_problem(&Value::Null), None);
}

#[test]
fn what_failed_is_told_in_the_ranks_own_words() {
    let mut answer = two();
    answer["found"][0]["pairs"][0]["error"] = json!("no memory");
    let problems = problems(&answer);
    assert!(
        problems[0].what.contains("over shared memory"),
        "{problems:?}"
    );
    assert!(
        problems[0].what.ends_with("on rank 0: no memory"),
        "{problems:?}"
    );
    assert!(problems[0].advice.contains("--transport tcp"));
}
