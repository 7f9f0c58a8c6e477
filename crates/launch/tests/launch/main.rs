//! What the launcher promises, tried with real processes.

mod crowd;
mod elastic;
mod etcd;
mod machines;
mod process;
mod reports;
mod run;
mod secrets;
mod signals;
mod terminal;

use std::fs;

use everburn_collectives::store::StoreAccess;
use everburn_launch::{LaunchConfig, LaunchError, Launcher, Outcome, RankExit};
use everburn_tests::{AssertContains, assert_matches};
use process::{
    DEADLINE, LauncherProcess, TOKEN, failure_of, job, number_in, numbers_in, runs, wait_until,
};
use rustix::process::Signal;

/// The entry of this binary when a test starts it as a launcher or a rank.
#[test]
#[ignore = "the process that other tests start"]
fn act() {
    process::act();
}

#[test]
fn all_ranks_end_well_and_each_has_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let config = job(
        folder.path(),
        3,
        "echo out of $RANK; echo err of $RANK >&2; finished",
    );
    let logs: Vec<_> = (0..3).map(|rank| config.log_path(rank)).collect();
    let outcome = Launcher::new(config).run().unwrap();
    assert_matches!(outcome, Outcome::Succeeded);
    assert_eq!(outcome.exit_code(), 0);
    for (rank, log) in logs.iter().enumerate() {
        let text = fs::read_to_string(log).unwrap();
        text.assert_contains([&format!("out of {rank}\n"), &format!("err of {rank}\n")]);
    }
}

#[test]
fn a_rank_is_told_its_place_and_where_the_store_is() {
    let folder = tempfile::tempdir().unwrap();
    let config = LaunchConfig {
        threads_per_rank: Some(2),
        job_token: Some(TOKEN.parse().unwrap()),
        // Not all of it: the environment may hold secrets, and this goes to the screen.
        ..job(
            folder.path(),
            2,
            "env | grep -E '^(EVERBURN|LOCAL|MASTER|NODE|RA|TORCH|WORLD)'",
        )
    };
    let log = config.log_path(1);
    let (tell, told) = std::sync::mpsc::channel();
    let launcher = Launcher::new(config).host_store_with(move |listener, access| {
        tell.send((listener.local_addr().unwrap(), access)).unwrap();
        Ok(Box::new(listener))
    });
    launcher.run().unwrap();
    let (address, access) = told.recv_timeout(DEADLINE).unwrap();
    assert!(address.ip().is_loopback());
    assert_eq!(access, StoreAccess::Token(TOKEN.parse().unwrap()));
    let environment = fs::read_to_string(log).unwrap();
    for line in [
        "RANK=1",
        "WORLD_SIZE=2",
        "LOCAL_RANK=1",
        "LOCAL_WORLD_SIZE=2",
        "NODE_RANK=0",
        "MASTER_ADDR=127.0.0.1",
        &format!("MASTER_PORT={}", address.port()),
        "TORCHELASTIC_USE_AGENT_STORE=True",
        &format!("EVERBURN_JOB_TOKEN={TOKEN}"),
        &format!("EVERBURN_LAUNCHER_PID={}", std::process::id()),
        "RAYON_NUM_THREADS=2",
    ] {
        assert!(
            environment.lines().any(|found| found == line),
            "{line} not in\n{environment}"
        );
    }
}

#[test]
fn the_second_machine_joins_the_store_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let config = LaunchConfig {
        nodes: 2,
        node_rank: 1,
        rendezvous: Some("machine-0.invalid:29500".into()),
        job_token: Some(TOKEN.parse().unwrap()),
        ..job(
            folder.path(),
            2,
            "echo $RANK $LOCAL_RANK $MASTER_ADDR $MASTER_PORT; finished",
        )
    };
    let log = config.log_path(3);
    let launcher =
        Launcher::new(config).host_store_with(|_, _| panic!("only machine 0 hosts the store"));
    assert_eq!(launcher.run().unwrap().exit_code(), 0);
    assert_eq!(
        fs::read_to_string(log).unwrap(),
        "3 1 machine-0.invalid 29500\n"
    );
}

#[test]
fn one_failing_rank_ends_the_others_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ $RANK = 1 ]; then echo the data is gone; exit 3; fi; sleep 1000";
    let failure = failure_of(job(folder.path(), 3, script));
    assert_eq!(
        (failure.cause.rank, failure.cause.exit),
        (1, RankExit::Code(3))
    );
    assert!(
        failure.others.iter().all(|rank| rank.ended_by_launcher),
        "{failure}"
    );
    let message = failure.to_string();
    message.assert_contains([
        "rank 1 ended with exit code 3",
        "the data is gone",
        "rank-1.log",
    ]);
    assert_eq!(Outcome::Failed(failure).exit_code(), 3);
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
        if [ $RANK = 1 ]; then until [ -e $DIR/deaf ]; do sleep 0.02; done; exit 1; fi
        trap '' TERM; touch $DIR/deaf; while :; do sleep 0.02; done";
    let failure = failure_of(job(folder.path(), 2, script));
    assert_eq!(failure.cause.rank, 1);
    assert_eq!(failure.others[0].exit, RankExit::Signal(9));
}

#[test]
fn what_a_failed_rank_had_started_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    failure_of(job(
        folder.path(),
        1,
        "sleep 1000 & echo $! > $DIR/helper; exit 1",
    ));
    let helper = number_in(folder.path(), "helper");
    wait_until("the helper's end", || !runs(helper));
}

#[test]
fn lines_on_the_screen_carry_their_rank() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo hello; echo oops >&2; finished";
    assert!(
        LauncherProcess::start(folder.path(), 2, "", script)
            .wait()
            .success()
    );
    let screen = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    for rank in 0..2 {
        assert!(screen("stdout").contains(&format!("[rank {rank}] hello\n")));
        assert!(screen("stderr").contains(&format!("[rank {rank}] oops\n")));
    }
    assert!(
        LauncherProcess::start(folder.path(), 1, "", script)
            .wait()
            .success()
    );
    assert!(screen("stdout").contains("hello\n") && !screen("stdout").contains("[rank"));
}

#[test]
fn no_rank_outlives_a_launcher_that_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut launcher = LauncherProcess::start(folder.path(), 3, "runs forever", "");
    let pids = numbers_in(folder.path(), "pid", 3);
    assert!(pids.iter().all(|&pid| runs(pid)));
    launcher.signal(Signal::KILL);
    launcher.wait();
    wait_until("the ranks' end", || !pids.iter().any(|&pid| runs(pid)));
}

#[test]
fn an_interrupt_lets_every_rank_stop_cleanly() {
    for (signal, name, code) in [
        (Signal::INT, "SIGINT", 130),
        (Signal::TERM, "SIGTERM", 143),
        (Signal::USR1, "SIGUSR1", 138),
        (Signal::USR2, "SIGUSR2", 140),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut launcher = LauncherProcess::start(folder.path(), 2, "stops when asked", "");
        numbers_in(folder.path(), "pid", 2);
        launcher.signal(signal);
        assert_eq!(launcher.wait().code(), Some(code));
        let outcome = fs::read_to_string(folder.path().join("outcome")).unwrap();
        assert!(outcome.contains("stopped on request"), "{outcome}");
        let told = fs::read_to_string(folder.path().join("told")).unwrap();
        assert!(
            told.starts_with(&format!("None stopping on {name}, after the current step"))
                && told.contains("Ranks that still run after 60 s, and save nothing, are ended"),
            "{told}"
        );
    }
}

#[test]
fn ranks_that_do_not_stop_are_named_when_they_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap '' TERM; echo 1 > $DIR/ready.$RANK; while :; do sleep 0.02; done";
    let mut launcher = LauncherProcess::start_with_patience(folder.path(), 2, 1, script);
    numbers_in(folder.path(), "ready", 2);
    launcher.signal(Signal::TERM);
    assert_eq!(launcher.wait().code(), Some(143));
    let told = fs::read_to_string(folder.path().join("told")).unwrap();
    told.assert_contains(["\nNone not stopped within 0 s: ranks 0, 1; all are ended"]);
    // What has ended them is in their logs.
    for rank in 0..2 {
        let log = folder.path().join(format!("logs/rank-{rank}.log"));
        let log = fs::read_to_string(log).unwrap();
        let line = format!("--- rank {rank}: the launcher has ended this process ---\n");
        assert!(log.ends_with(&line), "{log}");
    }
}

/// The rank needs longer than the 2 s that it has. In them it writes, or says that it saves: the name of a thread is the mark.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_that_saves_is_not_ended_before_it_has_stopped() {
    for saves in [
        "head -c 4194304 /dev/zero > $DIR/checkpoint.$RANK",
        "printf everburn-saving > /proc/$$/comm",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "trap 'asked=1' TERM; echo 1 > $DIR/ready.$RANK
            while [ -z \"$asked\" ]; do sleep 0.02; done
            {saves}; sleep 3; echo 1 > $DIR/saved.$RANK"
        );
        let mut launcher = LauncherProcess::start_with_patience(folder.path(), 1, 2000, &script);
        number_in(folder.path(), "ready.0");
        launcher.signal(Signal::TERM);
        assert_eq!(launcher.wait().code(), Some(143));
        let told = fs::read_to_string(folder.path().join("told")).unwrap();
        assert!(!told.contains("not stopped within"), "{told}");
        assert!(folder.path().join("saved.0").is_file(), "{saves}");
    }
}

#[test]
fn a_second_interrupt_ends_the_ranks_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
        trap 'echo 1 > $DIR/asked.$RANK' TERM; echo 1 > $DIR/ready.$RANK
        while :; do sleep 0.02; done";
    let mut launcher = LauncherProcess::start(folder.path(), 2, "", script);
    numbers_in(folder.path(), "ready", 2);
    launcher.signal(Signal::INT);
    numbers_in(folder.path(), "asked", 2);
    // A user presses until it ends.
    wait_until("the end", || {
        launcher.signal(Signal::INT);
        !launcher.is_running()
    });
    assert_eq!(launcher.wait().code(), Some(130));
}

#[test]
fn sigquit_ends_the_ranks_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut launcher = LauncherProcess::start(folder.path(), 2, "runs forever", "");
    numbers_in(folder.path(), "pid", 2);
    launcher.signal(Signal::QUIT);
    assert_eq!(launcher.wait().code(), Some(131));
}

#[test]
fn a_rank_that_fails_while_it_stops_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
        trap 'exit $((RANK * 6))' TERM; echo 1 > $DIR/ready.$RANK; while :; do sleep 0.02; done";
    let mut launcher = LauncherProcess::start(folder.path(), 2, "", script);
    numbers_in(folder.path(), "ready", 2);
    launcher.signal(Signal::INT);
    assert_eq!(launcher.wait().code(), Some(6));
}

#[test]
fn an_unusable_log_folder_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("logs"), "a file").unwrap();
    let error = Launcher::new(job(folder.path(), 1, "touch $DIR/started"))
        .run()
        .unwrap_err();
    assert_matches!(error, LaunchError::LogDir { .. });
    assert!(!folder.path().join("started").exists());
}

#[test]
fn a_program_that_cannot_be_run_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    // Executable by its mode, but no program: only starting it shows that.
    let program = folder.path().join("broken");
    fs::write(&program, "\0\0").unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let config = LaunchConfig {
        program,
        ..job(folder.path(), 2, "")
    };
    let error = Launcher::new(config).run().unwrap_err();
    assert_matches!(error, LaunchError::Spawn { rank: 0, .. });
}
