//! Elastic jobs of two machines.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use everburn_collectives::elastic::MembershipCoordinator;
use everburn_collectives::store::{Store, TcpStore, TcpStoreServer};
use everburn_launch::{ElasticLaunch, LaunchConfig, LaunchError, Launcher};
use everburn_tests::{AssertContains, assert_matches, on_a_free_port};
use rustix::process::Signal;

use super::UNPROVED;
use crate::process::{
    DEADLINE, LauncherProcess, TOKEN, connect_to, hosted_store, job, number_in, wait_until,
};

/// Machine 0 of two, whose rank stays away, and the other machine's connection to its store, once that knows of
/// the rank's end.
fn machine_0_without_ranks(folder: &Path) -> (LauncherProcess, Arc<TcpStore>) {
    let script = "until [ -e $DIR/connected ]; do sleep 0.02; done; exit 2";
    let (launcher, store) = on_a_free_port(|port| {
        let mut launcher = LauncherProcess::start_one_of_two_machines(folder, 0, port, 10, script);
        let mut store = None;
        wait_until("the store, or the end for a port that is taken", || {
            store = connect_to(port).ok();
            store.is_some() || !launcher.is_running()
        });
        Some((launcher, store?))
    });
    fs::write(folder.join("connected"), "").unwrap();
    store
        .wait_within(&["everburn/elastic/slot/0/ended"], DEADLINE)
        .unwrap();
    (launcher, Arc::new(store))
}

/// Machine 1 of two, whose rank has ended twice and is to be started again later, and the store that the test hosts.
fn machine_1_that_waits(folder: &Path) -> (LauncherProcess, TcpStoreServer, Arc<TcpStore>) {
    let (server, port) = hosted_store();
    let launcher = LauncherProcess::start_one_of_two_machines(folder, 1, port, 3_600_000, "exit 3");
    let store = connect_to(port).unwrap();
    wait_until("the end of its second process", || {
        let ended = store.get("everburn/elastic/slot/1/ended");
        ended.is_ok_and(|process| process == b"2")
    });
    (launcher, server, Arc::new(store))
}

#[test]
fn a_machine_without_living_ranks_has_not_succeeded_when_the_store_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (mut launcher, server, store) = machine_1_that_waits(folder.path());
    drop((store, server));
    assert_eq!(launcher.wait().code(), Some(69));
    let outcome = fs::read_to_string(folder.path().join("outcome")).unwrap();
    outcome.assert_contains([
        "rank 1 ended with exit code 3",
        "machine 0 (127.0.0.1), whose launcher hosts the store of the job, is lost",
        "the job cannot continue: no rank is started again: the store at ",
    ]);
}

#[test]
fn a_machine_without_living_ranks_stops_when_another_one_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let (mut launcher, _server, store) = machine_1_that_waits(folder.path());
    let coordinator = MembershipCoordinator::new(store);
    coordinator.request_stop("SIGINT at machine 0").unwrap();
    assert_eq!(launcher.wait().code(), Some(130));
}

#[test]
fn a_machine_that_is_asked_to_stop_tells_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let (mut launcher, store) = machine_0_without_ranks(folder.path());
    launcher.signal(Signal::INT);
    let key = "everburn/elastic/stop_requested";
    store.wait_within(&[key], DEADLINE).unwrap();
    assert_eq!(store.get(key).unwrap(), b"SIGINT at machine 0");
    drop(store);
    launcher.wait();
}

#[test]
fn a_rank_that_was_refused_is_named_on_the_other_machines() {
    let folder = tempfile::tempdir().unwrap();
    let (mut launcher, store) = machine_0_without_ranks(folder.path());
    let key = "everburn/elastic/refused";
    store.wait_within(&[key], DEADLINE).unwrap();
    let own = "machine 0: rank 0 ended with exit code 2";
    assert_eq!(store.get(key).unwrap(), own.as_bytes());
    let other = "machine 1: rank 1 ended with exit code 2: another seed";
    let coordinator = MembershipCoordinator::new(store.clone());
    coordinator.note_refusal(other).unwrap();
    let told = || fs::read_to_string(folder.path().join("told")).unwrap_or_default();
    let line = format!(
        "None {other}; the job continues without it until it is started with the same settings\n"
    );
    wait_until("the line of the launcher", || told().ends_with(&line));
    assert!(!told().contains(own), "{}", told());
    launcher.signal(Signal::INT);
    drop((store, coordinator));
    launcher.wait();
}

#[test]
fn the_store_serves_other_machines_though_no_rank_is_left_on_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (mut launcher, store) = machine_0_without_ranks(folder.path());
    // The others' machines have succeeded; this one has no report of it.
    MembershipCoordinator::new(store).finish().unwrap();
    assert_eq!(launcher.wait().code(), Some(2));
    let outcome = fs::read_to_string(folder.path().join("outcome")).unwrap();
    assert!(outcome.contains(UNPROVED), "{outcome}");
}

#[test]
fn a_second_launcher_of_a_machine_is_refused_until_the_first_is_dead() {
    let (_server, port) = hosted_store();
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [first, second, third] = folders.each_ref().map(tempfile::TempDir::path);
    let script = "echo $$ > $DIR/new; mv $DIR/new $DIR/pid; exec sleep 1000";
    let start = |folder| LauncherProcess::start_one_of_two_machines(folder, 1, port, 10, script);
    let mut launcher = start(first);
    number_in(first, "pid");
    let refused = Launcher::new(LaunchConfig {
        nodes: 2,
        node_rank: 1,
        rendezvous: Some(format!("127.0.0.1:{port}")),
        job_token: Some(TOKEN.parse().unwrap()),
        elastic: Some(ElasticLaunch::new(1, 2)),
        ..job(second, 1, script)
    });
    let error = refused.run().unwrap_err();
    assert_matches!(error, LaunchError::NodeRankTaken { node_rank: 1, .. });
    let (error, named) = (
        error.to_string(),
        format!("(process {} on ", launcher.0.id()),
    );
    error.assert_contains([&named, "LaunchConfig::node_rank"]);
    assert!(!second.join("pid").exists() && launcher.is_running());
    launcher.signal(Signal::KILL);
    let mut again = start(third);
    number_in(third, "pid");
    assert!(again.is_running());
}

#[test]
fn the_store_ends_when_the_other_machines_have_gone_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let (mut launcher, store) = machine_0_without_ranks(folder.path());
    drop(store);
    assert_eq!(launcher.wait().code(), Some(2));
}
