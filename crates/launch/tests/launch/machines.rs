//! Several machines, of which ranks or launchers are late, lost or stopped.

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use everburn_collectives::rendezvous::RendezvousError;
use everburn_collectives::store::Store as _;
use everburn_launch::{ElasticLaunch, LaunchConfig, Launcher};
use everburn_tests::{AssertContains, assert_matches, on_a_free_port};
use rustix::process::Signal;

use crate::elastic::{signal, wait_for_round};
use crate::process::{
    LauncherProcess, TOKEN, connect_to, hosted_store, joined_at, number_in, wait_until,
};
use crate::signals::joining;

/// What ranks do that meet; of four, rank 3 is late.
const MEET: (&str, &str) = ("joins, and rank 3 does not", "");

fn outcome(folder: &Path) -> String {
    fs::read_to_string(folder.join("outcome")).unwrap_or_default()
}

/// Whether the launcher of machine 0 has its store; otherwise another process has its port.
fn has_its_port(machine_0: &mut LauncherProcess, port: u16) -> bool {
    wait_until("the store, or the end for a port that is taken", || {
        !machine_0.is_running() || TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    machine_0.is_running()
}

#[test]
fn a_rank_of_another_machine_that_is_late_is_named_on_every_machine() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let folder = |machine: usize| folders[machine].path();
    let codes = on_a_free_port(|port| {
        let start =
            |machine| LauncherProcess::start_machine(folder(machine), machine, port, 2, MEET);
        let mut first = start(0);
        has_its_port(&mut first, port).then(|| [first, start(1)].map(|mut it| it.wait().code()))
    });
    for machine in [0, 1] {
        let outcome = outcome(folder(machine));
        assert_eq!(codes[machine], Some(1), "{outcome}");
        let missing = "only 3 of 4 ranks joined within ";
        assert_eq!(outcome.matches(missing).count(), 1, "{outcome}");
        outcome.assert_contains(["missing: rank 3 of machine 1;"]);
        // No rank prints what the launcher says, and a log has it all the same.
        let printed = fs::read_to_string(folder(machine).join("stderr")).unwrap();
        assert!(!printed.contains(missing), "{printed}");
        let ranks = 2 * machine..2 * machine + 2;
        let logs = ranks.map(|rank| folder(machine).join(format!("logs/rank-{rank}.log")));
        let logs: String = logs.map(|log| fs::read_to_string(log).unwrap()).collect();
        logs.assert_contains([format!("error: {missing}")]);
    }
}

#[test]
fn machine_0_that_is_killed_while_ranks_meet_is_named_with_its_address() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let folder = |machine: usize| folders[machine].path();
    let code = on_a_free_port(|port| {
        let sleeps = ("", "exec sleep 600");
        let mut first = LauncherProcess::start_machine(folder(0), 0, port, 1, sleeps);
        has_its_port(&mut first, port).then(|| {
            let mut second = LauncherProcess::start_machine(folder(1), 1, port, 1, MEET);
            joined_at(port);
            first.signal(Signal::KILL);
            second.wait().code()
        })
    });
    let outcome = outcome(folder(1));
    assert_eq!(code, Some(69), "{outcome}");
    outcome.assert_contains([
        "rank 1 cannot join: the store at 127.0.0.1:",
        "machine 0 (127.0.0.1), whose launcher hosts the store of the job, is lost: rank 1 ended ",
        "look at the output of the launcher of machine 0 (127.0.0.1) first",
    ]);
}

/// The error of a rank that waits at a store, once `give_up` has been called with the port of the store.
fn told_to_a_rank_that_waits(give_up: impl FnOnce(u16)) -> String {
    let (_server, port) = hosted_store();
    let joins = joining(1, port);
    joined_at(port);
    give_up(port);
    let error = joins.join().unwrap().unwrap_err();
    assert_matches!(error, RendezvousError::GivenUp { machine: 1, .. });
    error.to_string()
}

#[test]
fn ranks_that_wait_learn_why_the_launcher_of_another_machine_starts_none() {
    let told = told_to_a_rank_that_waits(|port| {
        let config = LaunchConfig {
            nodes: 2,
            node_rank: 1,
            rendezvous: Some(format!("127.0.0.1:{port}")),
            job_token: Some(TOKEN.parse().unwrap()),
            ..LaunchConfig::new("program", 1, "logs")
        };
        // These are not said: machine 0 has the store, and an elastic job continues.
        let elastic = Some(ElasticLaunch::new(1, 2));
        for other in [
            LaunchConfig {
                node_rank: 0,
                ..config.clone()
            },
            LaunchConfig {
                elastic,
                ..config.clone()
            },
        ] {
            Launcher::give_up(&other, "another reason");
        }
        Launcher::give_up(&config, "there is no run");
    });
    let expected = "machine 1 has ended before all ranks had joined: there is no run";
    assert_eq!(told, expected);
}

#[test]
fn ranks_that_wait_learn_which_rank_of_another_machine_has_failed_before_it_joined() {
    let folder = tempfile::tempdir().unwrap();
    let told = told_to_a_rank_that_waits(|port| {
        let fails = ("", "exit 7");
        let mut launcher = LauncherProcess::start_machine(folder.path(), 1, port, 1, fails);
        assert_eq!(launcher.wait().code(), Some(7));
    });
    told.assert_contains(["machine 1 has ended ", ": rank 1 ended with exit code 7"]);
}

#[test]
fn stopped_ranks_of_machine_0_end_once_another_machine_has_given_them_up() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = "echo $$ > $DIR/new; mv $DIR/new $DIR/pid; exec sleep 600";
    let code = on_a_free_port(|port| {
        let mut launcher = LauncherProcess::start_machine(folder, 0, port, 1, ("", script));
        has_its_port(&mut launcher, port).then(|| {
            signal(number_in(folder, "pid"), Signal::STOP);
            connect_to(port)
                .unwrap()
                .set("watch/hang/0/1", b"{}")
                .unwrap();
            launcher.wait().code()
        })
    });
    let outcome = outcome(folder);
    assert_eq!(code, Some(76), "{outcome}");
    let why = "so the other machines have ended the job without them";
    assert!(outcome.contains(why), "{outcome}");
}

#[test]
fn the_launcher_of_an_elastic_job_names_another_machine_that_is_lost_and_its_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut first = on_a_free_port(|port| {
        let start = |machine| LauncherProcess::start_elastic_machine(folder, machine, port, 1);
        let mut first = start(0);
        let second = has_its_port(&mut first, port).then(|| start(1))?;
        wait_for_round(folder, "round.0.1", "0 1");
        wait_for_round(folder, "round.1.1", "0 1");
        second.signal(Signal::KILL);
        drop(second);
        Some(first)
    });
    fs::write(folder.join("leave"), "").unwrap();
    wait_for_round(folder, "round.0.1", "0");
    let line =
        "None machine 1 is lost: rank 1 was its last in the job, which continues with rank 0; ";
    wait_until("the line of the launcher", || {
        let told = fs::read_to_string(folder.join("told")).unwrap_or_default();
        told.contains(line)
    });
    fs::write(folder.join("done"), "").unwrap();
    assert!(first.wait().success());
}

#[test]
fn a_machine_that_was_killed_while_ranks_meet_takes_its_place_again() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let folder = |machine: usize| folders[machine].path();
    let again = on_a_free_port(|port| {
        let sleeps = ("", "exec sleep 600");
        let mut first = LauncherProcess::start_machine(folder(0), 0, port, 1, sleeps);
        has_its_port(&mut first, port).then(|| {
            let start = |at| LauncherProcess::start_machine(folder(at), 1, port, 1, MEET);
            let mut killed = start(1);
            let store = joined_at(port);
            killed.signal(Signal::KILL);
            killed.wait();
            let mut again = start(2);
            wait_until("the rank to join again", || {
                store.add("everburn/join/0/joined", 0).unwrap() == 2 || !again.is_running()
            });
            let verdict = store.check(&["everburn/join/0/verdict"]).unwrap();
            (again.is_running(), verdict)
        })
    });
    assert_eq!(again, (true, false), "{}", outcome(folder(2)));
}

#[test]
fn machines_with_two_ranges_of_elastic_are_both_named_on_both() {
    for fewest in [[1, 2], [2, 1]] {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let folder = |machine: usize| folders[machine].path();
        let codes = on_a_free_port(|port| {
            let start = |machine: usize| {
                let fewest = fewest[machine];
                LauncherProcess::start_elastic_machine(folder(machine), machine, port, fewest)
            };
            let mut first = start(0);
            has_its_port(&mut first, port).then(|| [first, start(1)].map(|mut it| it.wait().code()))
        });
        for machine in [0, 1] {
            let outcome = outcome(folder(machine));
            assert_eq!(codes[machine], Some(2), "{outcome}");
            for (other, fewest) in fewest.iter().enumerate() {
                let of = format!("machine {other} ");
                let range = format!("with `LaunchConfig::elastic = {fewest}:2`");
                outcome.assert_contains([&of, &range]);
            }
        }
    }
}
