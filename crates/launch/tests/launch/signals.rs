//! Signals that reach a launcher before it has ranks, and those that stop the ranks that it has.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use everburn_collectives::elastic::MembershipCoordinator;
use everburn_collectives::rendezvous::{RendezvousError, RendezvousRequest, rendezvous};
use everburn_launch::{EarlyStop, HostedStore, Launcher, signals_to_hear};
use everburn_record::proc;
use everburn_tests::{assert_matches, on_a_free_port, skip};
use rustix::process::{Signal, getpid, kill_process};

use crate::elastic::signal;
use crate::process::{
    DEADLINE, LauncherProcess, TOKEN, connect_to, hosted_store, joined_at, number_in, numbers_in,
    wait_until,
};

/// Says to a launcher of this binary when it gets a signal.
pub const WHEN: &str = "TEST_SIGNAL_WHEN";

/// What a launcher does that is to get a signal before it starts a rank.
pub fn before_ranks_are_started(launcher: Launcher, folder: &Path) -> Launcher {
    let Ok(when) = std::env::var(WHEN) else {
        return launcher;
    };
    let said = folder.join("said");
    let say = move |signal: &str| fs::write(&said, signal).unwrap();
    let in_a_rank = when == "the rank joins";
    let listen = || match in_a_rank {
        true => EarlyStop::listen_in_a_rank(|_| 0, say).unwrap(),
        false => EarlyStop::listen(say).unwrap(),
    };
    let host_and_get_signal = |_listener, _access| {
        kill_process(getpid(), Signal::TERM).unwrap();
        Ok(Box::new(()) as HostedStore)
    };
    match when.as_str() {
        "the job is prepared" | "the rank joins" => {
            let _early = listen();
            kill_process(getpid(), Signal::INT).unwrap();
            loop {
                thread::park();
            }
        }
        "the launcher has taken over" => {
            let launcher = launcher.after(listen());
            launcher.host_store_with(host_and_get_signal)
        }
        _ => launcher.host_store_with(host_and_get_signal),
    }
}

#[test]
fn a_signal_while_the_job_is_prepared_or_a_rank_joins_ends_it_with_a_word() {
    for (when, code) in [("the job is prepared", 130), ("the rank joins", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let mut launcher = LauncherProcess::start_with_signal(folder.path(), when);
        assert_eq!(launcher.wait().code(), Some(code), "{when}");
        let said = fs::read_to_string(folder.path().join("said")).unwrap();
        assert_eq!(said, "SIGINT", "{when}");
    }
}

#[test]
fn a_signal_before_the_first_rank_is_a_request_to_stop() {
    for when in ["the launcher has taken over", "nobody else listens"] {
        let folder = tempfile::tempdir().unwrap();
        let mut launcher = LauncherProcess::start_with_signal(folder.path(), when);
        assert_eq!(launcher.wait().code(), Some(143), "{when}");
        let outcome = fs::read_to_string(folder.path().join("outcome")).unwrap();
        assert!(outcome.contains("stopped on request"), "{outcome}");
        let told = fs::read_to_string(folder.path().join("told")).unwrap();
        assert!(told.starts_with("None stopping on SIGTERM"), "{told}");
        assert!(!folder.path().join("said").exists(), "{when}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_hang_up_stops_a_job_unless_it_was_started_to_ignore_that_as_by_nohup() {
    for (ignored, stopped_by, code) in [(true, "SIGTERM", 143), (false, "SIGHUP", 129)] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let role = "stops when asked";
        let mut launcher = match ignored {
            true => LauncherProcess::start_ignoring_hang_ups(folder, 2, role),
            false if signals_to_hear(&[1]).is_empty() => {
                skip("a hang-up that stops a job", "it is ignored here");
                continue;
            }
            false => LauncherProcess::start(folder, 2, role, ""),
        };
        for rank in numbers_in(folder, "pid", 2) {
            let status = fs::read_to_string(format!("/proc/{rank}/status")).unwrap();
            let mask = proc::value_in(&status, "SigIgn").unwrap();
            let mask = u64::from_str_radix(mask, 16).unwrap();
            assert_eq!(mask & 1 == 1, ignored, "{mask:x}");
        }
        launcher.signal(Signal::HUP);
        // Of two signals that arrive at once the later one is handled first.
        if ignored {
            launcher.signal(Signal::TERM);
        }
        assert_eq!(launcher.wait().code(), Some(code));
        let told = fs::read_to_string(folder.join("told")).unwrap();
        let begin = format!("None stopping on {stopped_by}, after the current step");
        assert!(told.starts_with(&begin), "{told}");
    }
}

/// Machine 0 of two, whose ranks run and have written the file `there`.
fn machine_0(folder: &Path, ranks: usize, script: &str, there: &str) -> LauncherProcess {
    on_a_free_port(|port| {
        let mut launcher = LauncherProcess::start_machine(folder, 0, port, ranks, ("", script));
        wait_until("the ranks, or the end for a port that is taken", || {
            folder.join(there).exists() || !launcher.is_running()
        });
        launcher.is_running().then_some(launcher)
    })
}

/// A shell that writes where the store is.
const SAYS_ITS_PORT: &str = "echo $MASTER_PORT > $DIR/new; mv $DIR/new $DIR/port; exec sleep 600";

/// A rank that waits for the rest.
pub fn joining(rank: usize, port: u16) -> thread::JoinHandle<Result<(), RendezvousError>> {
    thread::spawn(move || {
        let request = RendezvousRequest {
            rank: Some(rank),
            world_size: Some(2),
            timeout: Some(DEADLINE),
            job_token: Some(TOKEN.parse().unwrap()),
            ..RendezvousRequest::default()
        };
        rendezvous(&format!("tcp://127.0.0.1:{port}"), request).map(drop)
    })
}

#[test]
fn a_rank_that_still_joins_learns_that_a_machine_without_the_store_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (_server, port) = hosted_store();
    let mut launcher = LauncherProcess::start_machine(folder, 1, port, 1, ("", SAYS_ITS_PORT));
    wait_until("the rank of machine 1", || folder.join("port").exists());
    let joins = joining(1, port);
    joined_at(port);
    launcher.signal(Signal::INT);
    let error = joins.join().unwrap().unwrap_err();
    assert_matches!(error, RendezvousError::Stopped);
    assert_eq!(launcher.wait().code(), Some(130));
}

#[test]
fn ranks_of_another_machine_that_still_join_are_told_that_the_job_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut launcher = machine_0(folder.path(), 1, SAYS_ITS_PORT, "port");
    let port = u16::try_from(number_in(folder.path(), "port")).unwrap();
    let joins = joining(1, port);
    joined_at(port);
    launcher.signal(Signal::INT);
    let error = joins.join().unwrap().unwrap_err();
    assert_matches!(error, RendezvousError::Stopped);
    assert_eq!(launcher.wait().code(), Some(130));
}

#[test]
fn a_stopped_rank_of_another_machine_ends_with_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (server, port) = hosted_store();
    let script = "echo $$ > $DIR/new; mv $DIR/new $DIR/pid; exec sleep 600";
    let mut launcher = LauncherProcess::start_machine(folder, 1, port, 1, ("", script));
    signal(number_in(folder, "pid"), Signal::STOP);
    drop(server);
    assert_eq!(launcher.wait().code(), Some(76));
    let outcome = fs::read_to_string(folder.join("outcome")).unwrap();
    let why = "so the other machines have ended the job without them";
    assert!(outcome.contains(why), "{outcome}");
}

/// It has no heartbeats yet that could be missed.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_that_is_stopped_before_it_joins_is_named_with_how_it_continues() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = "echo $$ > $DIR/new.$RANK; mv $DIR/new.$RANK $DIR/pid.$RANK; exec sleep 600";
    let mut launcher = machine_0(folder, 2, script, "pid.1");
    let stopped = number_in(folder, "pid.1");
    signal(stopped, Signal::STOP);
    let told = || fs::read_to_string(folder.join("told")).unwrap_or_default();
    wait_until("the line of the launcher", || told().ends_with('\n'));
    let line =
        "Some(1) rank 1 is stopped (SIGSTOP, a debugger), and the others wait for it: `kill -CONT";
    let line = format!("{line} {stopped}` on this machine continues it\n");
    assert_eq!(told(), line);
    launcher.signal(Signal::QUIT);
    assert_eq!(launcher.wait().code(), Some(131));
}

/// What the launchers of the job leave for each other in that store.
fn words_of_launchers(port: u16) -> MembershipCoordinator {
    MembershipCoordinator::new(Arc::new(connect_to(port).unwrap()))
}

/// A shell that obeys a request to stop, and waits for it.
const OBEYS: &str = "trap 'touch $DIR/asked; stopped; exit 0' TERM; echo $$ > $DIR/new; mv $DIR/new $DIR/pid; \
                     while :; do sleep 0.02; done";

#[test]
fn a_stopped_rank_is_continued_and_asked_to_stop_where_another_machine_was_asked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (_server, port) = hosted_store();
    let words = words_of_launchers(port);
    words.request_stop("SIGINT at machine 0").unwrap();
    let mut launcher = LauncherProcess::start_machine(folder, 1, port, 1, ("", OBEYS));
    signal(number_in(folder, "pid"), Signal::STOP);
    assert_eq!(launcher.wait().code(), Some(130));
    assert!(folder.join("asked").exists());
    let told = fs::read_to_string(folder.join("told")).unwrap();
    let line = "None stopping on SIGINT at machine 0, after the current step";
    assert!(told.starts_with(line), "{told}");
}

#[test]
fn the_other_machines_find_which_one_was_asked_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (_server, port) = hosted_store();
    let mut launcher = LauncherProcess::start_machine(folder, 1, port, 1, ("", OBEYS));
    number_in(folder, "pid");
    launcher.signal(Signal::INT);
    assert_eq!(launcher.wait().code(), Some(130));
    let asked = words_of_launchers(port).news(0).unwrap().stop_requested;
    assert_eq!(asked.as_deref(), Some("SIGINT at machine 1"));
}

#[test]
fn ranks_that_stop_for_another_machine_say_which_one_was_asked() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (_server, port) = hosted_store();
    let words = words_of_launchers(port);
    words.request_stop("SIGTERM at machine 0").unwrap();
    let mut launcher = LauncherProcess::start_machine(folder, 1, port, 1, ("", "stopped"));
    assert_eq!(launcher.wait().code(), Some(130));
    let told = fs::read_to_string(folder.join("told")).unwrap();
    assert_eq!(told, "None the job was stopped on SIGTERM at machine 0\n");
}

#[test]
fn a_rank_that_got_the_signal_itself_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"[ $RANK = 1 ] && got=SIGTERM
        echo "{\"rank\":$RANK,\"kind\":\"stopped\",\"message\":\"$got\",\"unix_time_ms\":1}" > $EVERBURN_FINISHED_FILE"#;
    let mut launcher = LauncherProcess::start(folder.path(), 2, "", script);
    assert_eq!(launcher.wait().code(), Some(130));
    let told = fs::read_to_string(folder.path().join("told")).unwrap();
    assert_eq!(told, "None the job was stopped on SIGTERM at rank 1\n");
}

/// The rank computes for longer than the second that it has, until the launcher has said that it is waited for.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_whose_last_step_takes_long_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'asked=1' TERM; echo 1 > $DIR/ready.$RANK
        while [ -z \"$asked\" ] || [ ! -e $DIR/go ]; do :; done
        echo 1 > $DIR/stepped.$RANK";
    let mut launcher = LauncherProcess::start_with_long_steps(folder.path(), 1000, script);
    number_in(folder.path(), "ready.0");
    launcher.signal(Signal::INT);
    let told = || fs::read_to_string(folder.path().join("told")).unwrap_or_default();
    wait_until("the line of the launcher", || {
        told().contains("still within a step after 1 s: rank 0; ")
    });
    fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(launcher.wait().code(), Some(130));
    assert!(folder.path().join("stepped.0").is_file(), "{}", told());
}
