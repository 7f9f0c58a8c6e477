use everburn_tests::{AssertContains, lookup};

use super::*;
use crate::failure::{RankReport, ReportKind};

fn with(changes: &[(&str, &str)]) -> Result<RankEnvironment, RankEnvironmentError> {
    let base = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "h"),
        ("MASTER_PORT", "29500"),
        ("EVERBURN_JOB_TOKEN", "a token of the tests"),
    ];
    RankEnvironment::from_lookup(lookup(&[changes, &base].concat()))
}

fn message(changes: &[(&str, &str)]) -> String {
    with(changes).unwrap_err().to_string()
}

#[test]
fn four_variables_are_enough() {
    let rank = with(&[]).unwrap();
    assert_eq!((rank.rank, rank.world_size, rank.local_rank), (1, 2, 1));
    assert!(!rank.launcher_hosts_store);
    rank.guard_against_orphaning().unwrap();
    rank.report(ReportKind::Own, None, "goes nowhere, and that is fine");
}

#[test]
fn a_failure_is_reported_with_the_first_step_that_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank-1.error.json");
    let finished = folder.path().join("rank-1.finished.json");
    let rank = with(&[
        ("EVERBURN_ERROR_FILE", path.to_str().unwrap()),
        ("EVERBURN_FINISHED_FILE", finished.to_str().unwrap()),
    ]);
    let rank = rank.unwrap();
    for step in [0, 12, 13] {
        rank.failed_at(step);
    }
    rank.report_finished();
    assert_eq!(RankReport::read(&finished).unwrap().step, None);
    assert!(!rank.report_peer_lost(Some(0), None, None, "rank 0 is gone"));
    assert_eq!(RankReport::read(&path).unwrap().step, Some(12));
}

#[test]
fn an_error_is_left_to_a_launcher_that_shows_it_unless_a_failure_was_reported_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank-1.error.json");
    let launched = ("EVERBURN_LAUNCHER_PID", "4711");
    let file = ("EVERBURN_ERROR_FILE", path.to_str().unwrap());
    let elastic = ("EVERBURN_ELASTIC", "1:2");
    let unprinted = || RankReport::read(&path).unwrap().unprinted;
    for (variables, expected) in [
        (&[file][..], false),
        (&[file, launched], true),
        (&[file, launched, elastic], false),
    ] {
        let rank = with(variables).unwrap();
        assert_eq!(rank.report_error(Some(3), "no file"), expected);
        assert_eq!(unprinted(), expected, "{variables:?}");
        assert!(!rank.report_error(Some(3), "later"), "not the first");
        std::fs::remove_file(&path).unwrap();
    }
    let without_file = with(&[launched]).unwrap();
    assert!(!without_file.report_error(None, "nowhere"));
}

#[test]
fn a_failure_names_the_device_that_has_failed_and_another_end_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (failed, ended) = (path("failed"), path("ended"));
    let rank = with(&[
        ("EVERBURN_ERROR_FILE", failed.to_str().unwrap()),
        ("EVERBURN_FINISHED_FILE", ended.to_str().unwrap()),
    ]);
    let rank = rank.unwrap();
    let message = "panicked at a.rs:1:1:\nDevice is lost\nin `Task::loss`";
    rank.report(ReportKind::Panic, None, message);
    rank.report(ReportKind::NotNeeded, None, message);
    let failed = RankReport::read(&failed).unwrap();
    let (headline, rest) = failed.headline_and_rest().unwrap();
    let named = "panicked at a.rs:1:1: Device is lost; the device of this rank has failed: ";
    assert!(headline.starts_with(named), "{headline}");
    assert_eq!(rest, ["in `Task::loss`"]);
    assert_eq!(RankReport::read(&ended).unwrap().message, message);
}

#[test]
fn a_store_in_etcd_takes_the_place_of_host_and_port() {
    let address = "etcd://a:1,b:2/job";
    let told = [
        ("EVERBURN_STORE", address),
        ("MASTER_ADDR", ""),
        ("MASTER_PORT", ""),
    ];
    let rank = with(&told).unwrap();
    assert_eq!(rank.init_method(), address);
    assert_eq!((rank.master_addr.as_str(), rank.master_port), ("a", 1));
    let line = rank.announcement();
    assert!(
        line.ends_with("a:1 (EVERBURN_STORE), the store in etcd"),
        "{line}"
    );
    message(&[("EVERBURN_STORE", "etcd://a")]).assert_contains(["EVERBURN_STORE is `etcd://a`"]);
}

#[test]
fn what_is_wrong_is_named() {
    for missing in ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        message(&[(missing, "")]).assert_contains([missing, "is not set"]);
    }
    // Also where others are missing.
    for port in ["29500", ""] {
        let told = message(&[("RANK", "x"), ("MASTER_ADDR", ""), ("MASTER_PORT", port)]);
        let expected = "the environment variable RANK is `x`, but must be a number from 0; unset it if it is left over";
        assert_eq!(told, expected);
    }
    assert!(message(&[("WORLD_SIZE", "two")]).contains("WORLD_SIZE is `two`"));
    assert!(message(&[("RANK", "2")]).contains("below WORLD_SIZE"));
    for port in ["70000", "0"] {
        message(&[("MASTER_PORT", port)]).assert_contains(["a port from 1 to 65535"]);
    }
    let alone = [("MASTER_PORT", "0"), ("RANK", "0"), ("WORLD_SIZE", "1")];
    assert_eq!(with(&alone).unwrap().master_port, 0);
}

#[test]
fn a_local_rank_is_one_of_its_machines() {
    let told = message(&[("LOCAL_RANK", "5"), ("LOCAL_WORLD_SIZE", "2")]);
    let expected = "LOCAL_RANK is `5`, but must be below LOCAL_WORLD_SIZE, which is 2";
    assert!(told.contains(expected), "{told}");
    message(&[("LOCAL_RANK", "5")]).assert_contains(["below WORLD_SIZE, which is 2"]);
    let rank = with(&[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")]).unwrap();
    assert_eq!((rank.local_rank, rank.local_world_size), (0, 1));
}

#[test]
fn an_elastic_rank_knows_its_bounds_and_which_process_it_is() {
    let plain = with(&[]).unwrap();
    assert_eq!((plain.incarnation, plain.elastic), (1, None));
    let told = [("EVERBURN_ELASTIC", "1:2"), ("EVERBURN_INCARNATION", "3")];
    let rank = with(&told).unwrap();
    assert_eq!((rank.incarnation, rank.elastic), (3, Some((1, 2))));
    for wrong in ["0:2", "2:1", "1:3", "1", "1:2:2", "-1:2"] {
        message(&[("EVERBURN_ELASTIC", wrong)]).assert_contains([format!("`{wrong}`")]);
    }
    message(&[("EVERBURN_INCARNATION", "0")]).assert_contains(["EVERBURN_INCARNATION"]);
}

#[test]
fn ranks_that_meet_know_a_secret_or_that_there_is_none() {
    let rank = with(&[]).unwrap();
    assert!(!rank.open_store && !format!("{rank:?}").contains("of the tests"));
    let refused = |changes: &[(&str, &str)], parts: &[&str]| {
        let error = message(changes);
        error.assert_contains(parts);
        assert!(!error.contains("hunter2"), "{error}");
    };
    let without = ("EVERBURN_JOB_TOKEN", "");
    let asked_for = [
        "RANK=1 and WORLD_SIZE=2 make this process a rank (unset them if they are left over)",
        "EVERBURN_JOB_TOKEN",
        "openssl rand",
        "EVERBURN_OPEN_STORE=1",
    ];
    for host in ["h", "127.0.0.1"] {
        refused(&[without, ("MASTER_ADDR", host)], &asked_for);
    }
    refused(&[("EVERBURN_JOB_TOKEN", "hunter2")], &["7 bytes", "16"]);
    refused(
        &[("EVERBURN_OPEN_STORE", "perhaps")],
        &["EVERBURN_OPEN_STORE is `perhaps`"],
    );
    let open = with(&[without, ("EVERBURN_OPEN_STORE", "1")]).unwrap();
    assert!(open.open_store && open.job_token.is_none());
    assert!(!with(&[("EVERBURN_OPEN_STORE", "0")]).unwrap().open_store);
    let alone = [without, ("WORLD_SIZE", "1"), ("RANK", "0")];
    assert_eq!(with(&alone).unwrap().job_token, None);
}

#[test]
fn the_store_of_torchrun_is_used_only_as_an_open_one() {
    let torchrun = [
        ("TORCHELASTIC_RUN_ID", "x"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];
    let error = message(&torchrun);
    error.assert_contains(["EVERBURN_OPEN_STORE=1", "torchrun", "h:29500", "can join"]);
    let open = [torchrun[0], torchrun[1], ("EVERBURN_OPEN_STORE", "1")];
    let rank = with(&open).unwrap();
    assert!(rank.open_store && rank.job_token.is_some() && rank.launcher_hosts_store);
    // Without it rank 0 serves our store.
    let ours = [torchrun[0], ("TORCHELASTIC_USE_AGENT_STORE", "False")];
    assert!(!with(&ours).unwrap().open_store);
    // As the rendezvous reads it.
    for (value, hosts) in [("1", true), ("true", true), ("0", false)] {
        let rank = with(&[("TORCHELASTIC_USE_AGENT_STORE", value)]).unwrap();
        assert_eq!(rank.launcher_hosts_store, hosts, "{value}");
    }
    let error = message(&[("TORCHELASTIC_USE_AGENT_STORE", "yes")]);
    error.assert_contains(["TORCHELASTIC_USE_AGENT_STORE is `yes`"]);
}
