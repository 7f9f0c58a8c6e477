//! Signals that reach a launcher before it has ranks.

use std::fs;
use std::path::Path;

use everburn_launch::{EarlyStop, HostedStore, Launcher};
use rustix::process::{Signal, getpid, kill_process};

use crate::process::LauncherProcess;

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
                std::thread::park();
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
