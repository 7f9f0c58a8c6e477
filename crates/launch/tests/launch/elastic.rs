//! What the launcher of an elastic job promises.

mod machines;

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use everburn_collectives::elastic::MembershipCoordinator;
use everburn_collectives::store::StoreAccess;
use everburn_launch::{ElasticLaunch, LaunchConfig, Launcher, Outcome, RankExit, RankReport};
use everburn_tests::AssertContains;
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{
    LauncherProcess, TOKEN, connect, failure_of, job, number_in, rank_job, runs, wait_until,
};

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

pub(crate) fn wait_for_round(folder: &Path, name: &str, slots: &str) {
    wait_until(&format!("{name} with {slots}"), || {
        fs::read_to_string(folder.join(name)).is_ok_and(|text| text.trim() == slots)
    });
}

/// Starts a job of three ranks, of which two are enough, and waits until all three are in a group.
fn start_three(folder: &Path) -> LauncherProcess {
    let launcher = LauncherProcess::start_elastic(folder, (2, 3), 10, "elastic", "");
    for slot in 0..3 {
        wait_for_round(folder, &format!("round.{slot}.1"), "0 1 2");
    }
    launcher
}

fn end_well(folder: &Path, launcher: &mut LauncherProcess, pids: &[u32]) {
    fs::write(folder.join("done"), "").unwrap();
    let status = launcher.wait();
    let outcome = fs::read_to_string(folder.join("outcome")).unwrap();
    assert!(status.success(), "{outcome}");
    assert!(!pids.iter().any(|&pid| runs(pid)));
}

#[test]
fn a_killed_rank_is_started_again_and_the_job_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut launcher = start_three(folder);
    // Rank 0 is one like any other: the launcher holds the store.
    signal(number_in(folder, "pid.0.1"), Signal::KILL);
    wait_for_round(folder, "round.0.2", "0 1 2");
    let pids = ["pid.0.1", "pid.0.2", "pid.1.1", "pid.2.1"].map(|name| number_in(folder, name));
    end_well(folder, &mut launcher, &pids);
    let log = fs::read_to_string(folder.join("logs/rank-0.log")).unwrap();
    assert!(log.contains("rank 0: process 2 begins here"), "{log}");
}

#[test]
fn a_stopped_rank_that_the_others_went_on_without_is_killed_and_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut launcher = start_three(folder);
    let stopped = number_in(folder, "pid.1.1");
    signal(stopped, Signal::STOP);
    fs::write(folder.join("leave"), "").unwrap();
    wait_for_round(folder, "round.1.2", "0 1 2");
    assert!(!runs(stopped));
    end_well(folder, &mut launcher, &[number_in(folder, "pid.1.2")]);
}

#[test]
fn a_stopped_rank_is_ended_though_nobody_else_has_noticed_and_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut launcher = start_three(folder);
    let stopped = number_in(folder, "pid.1.1");
    signal(stopped, Signal::STOP);
    wait_for_round(folder, "round.1.2", "0 1 2");
    assert!(!runs(stopped));
    let told = fs::read_to_string(folder.join("told")).unwrap();
    told.assert_contains(["rank 1 was stopped (SIGSTOP): the launcher has killed it"]);
    end_well(folder, &mut launcher, &[number_in(folder, "pid.1.2")]);
}

/// A job that needs both ranks, each of which is started again this often, without a pause.
fn with_restarts(max_restarts: usize, config: LaunchConfig) -> LaunchConfig {
    LaunchConfig {
        elastic: Some(ElasticLaunch {
            max_restarts,
            backoff: Duration::ZERO,
            ..ElasticLaunch::new(2, 2)
        }),
        ..config
    }
}

#[test]
fn a_rank_without_restarts_left_ends_the_job_with_its_first_error() {
    let folder = tempfile::tempdir().unwrap();
    let config = with_restarts(2, rank_job(folder.path(), 2, "rank 1 fails anew each time"));
    let aside = config.earlier_error_path(1, 2);
    let failure = failure_of(config);
    assert_eq!(failure.restarts.len(), 2, "{failure}");
    let message = failure.to_string();
    assert!(
        message.starts_with(
            "rank 1 ended with exit code 5: trouble of process 1; the job cannot continue: "
        ),
        "{message}"
    );
    message.assert_contains([
        "rank 1 ended with exit code 5: trouble of process 1; restart 1 of 2 now",
        "rank 1 (process 2) ended with exit code 5: trouble of process 2; restart 2 of 2 now",
        "at most 1 rank can be there, and the job needs 2: rank 1 is not started again; rank 1 has failed 3 times in a row \
         within ",
        " after its start",
    ]);
    assert_eq!(
        RankReport::read(&aside).unwrap().message,
        "trouble of process 2"
    );
    assert_eq!(Outcome::Failed(failure).exit_code(), 5);
}

#[test]
fn a_rank_that_cannot_be_started_again_is_tried_as_often_as_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ $RANK = 1 ]; then rm $LOG; mkdir $LOG; exit 3; fi; exec sleep 1000";
    let mut config = with_restarts(2, job(folder.path(), 2, script));
    // The next process of rank 1 has no log.
    let log = config.log_path(1);
    config.env.push(("LOG".into(), log.into()));
    let failure = failure_of(config);
    let codes = failure.restarts.iter().map(|restart| restart.ended.exit);
    assert!(codes.eq([3, 1].map(RankExit::Code)), "{failure}");
    let refused = "rank 1 (process 2) ended with exit code 1: it could not be started: the log folder cannot be used: ";
    failure.to_string().assert_contains([refused]);
}

#[test]
fn a_rank_that_refuses_its_arguments_is_not_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo x >> $DIR/starts.$RANK; [ $RANK = 1 ] && exit 2; sleep 1000";
    let failure = failure_of(LaunchConfig {
        elastic: Some(ElasticLaunch::new(2, 2)),
        ..job(folder.path(), 2, script)
    });
    assert_eq!(failure.cause.rank, 1);
    assert!(failure.restarts.is_empty(), "{failure}");
    let starts = fs::read_to_string(folder.path().join("starts.1")).unwrap();
    assert_eq!(starts, "x\n");
    assert_eq!(Outcome::Failed(failure).exit_code(), 2);
}

#[test]
fn a_job_ends_well_though_a_rank_stays_away() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = "
        if [ $RANK = 1 ]; then echo $$ > $DIR/new; mv $DIR/new $DIR/away; exit 2; fi
        until [ -e $DIR/away ]; do sleep 0.02; done
        while kill -0 $(cat $DIR/away) 2>/dev/null; do sleep 0.02; done; finished";
    let mut launcher = LauncherProcess::start_elastic(folder, (1, 2), 10, "", script);
    assert!(launcher.wait().success());
}

#[test]
fn a_failure_that_is_reported_after_the_end_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = r#"
        if [ $RANK = 1 ]; then echo $$ > $DIR/new; finished; mv $DIR/new $DIR/well; exit 0; fi
        until [ -e $DIR/well ]; do sleep 0.02; done
        while kill -0 $(cat $DIR/well) 2>/dev/null; do sleep 0.02; done
        echo '{"rank":0,"kind":"own","message":"the disk is full","unix_time_ms":1}' \
            > $EVERBURN_ERROR_FILE
        exit 1"#;
    let mut launcher = LauncherProcess::start_elastic(folder, (1, 2), 10, "", script);
    assert_eq!(launcher.wait().code(), Some(1));
    let outcome = fs::read_to_string(folder.join("outcome")).unwrap();
    assert!(outcome.contains("the disk is full"), "{outcome}");
}

#[test]
fn an_interrupt_ends_a_job_that_waits_for_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let script = "
        echo x >> $DIR/starts; echo $$ > $DIR/new; mv $DIR/new $DIR/pid.$EVERBURN_INCARNATION; exit 3";
    let mut launcher = LauncherProcess::start_elastic(folder, (1, 1), 3_600_000, "", script);
    // The first restart comes at once.
    let pid = number_in(folder, "pid.2");
    let reaped = || !Path::new(&format!("/proc/{pid}")).exists();
    wait_until("the rank to be reaped", reaped);
    launcher.signal(Signal::INT);
    assert_eq!(launcher.wait().code(), Some(130));
    let starts = fs::read_to_string(folder.join("starts")).unwrap();
    assert_eq!(starts, "x\nx\n");
}

const UNPROVED: &str = "no rank of this machine has reported that it had";

#[test]
fn a_job_has_not_finished_because_the_store_says_so() {
    let script = "
        echo $MASTER_PORT > $DIR/new.$RANK; mv $DIR/new.$RANK $DIR/port; echo $$ > $DIR/pid.$RANK
        exec sleep 1000";
    let token = StoreAccess::Token(TOKEN.parse().unwrap());
    for (access, open) in [(token, false), (StoreAccess::Open, true)] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut launcher = LauncherProcess::start_with_known_store(folder, 2, open, 1, script);
        let pids = ["pid.0", "pid.1"].map(|name| number_in(folder, name));
        let stranger = Arc::new(connect(folder, access).unwrap());
        MembershipCoordinator::new(stranger).finish().unwrap();
        assert_eq!(launcher.wait().code(), Some(137));
        let outcome = fs::read_to_string(folder.join("outcome")).unwrap();
        outcome.assert_contains([UNPROVED, "still ran", "who can reach the store"]);
        assert!(!pids.iter().any(|&pid| runs(pid)));
    }
}

#[test]
fn ranks_that_leave_because_the_store_says_that_the_job_has_finished_prove_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut launcher = LauncherProcess::start_elastic(folder, (1, 2), 10, "", "not_needed");
    assert_eq!(launcher.wait().code(), Some(1));
    let outcome = fs::read_to_string(folder.join("outcome")).unwrap();
    assert!(outcome.contains(UNPROVED), "{outcome}");
}

/// Rank 0 finishes once rank 1 has begun (one that has not is started no more), and rank 1 says so when rank 0 has been
/// reaped.
const FINISH_IN_TURN: &str = "
    if [ $RANK = 0 ]; then
        until [ -e $DIR/begun ]; do sleep 0.02; done
        finished; echo $$ > $DIR/new; mv $DIR/new $DIR/first; exit 0
    fi
    echo 1 > $DIR/begun
    until [ -e $DIR/first ]; do sleep 0.02; done
    while kill -0 $(cat $DIR/first) 2>/dev/null; do sleep 0.02; done; ";

#[test]
fn ranks_may_take_a_while_to_end_once_they_have_finished() {
    for says in ["finished", "not_needed"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let wait = "echo 1 > $DIR/said; until [ -e $DIR/release ]; do sleep 0.02; done";
        let script = format!("{FINISH_IN_TURN}{says}; {wait}");
        let mut launcher = LauncherProcess::start_elastic(folder, (1, 2), 10, "", &script);
        number_in(folder, "said");
        fs::write(folder.join("release"), "").unwrap();
        let status = launcher.wait();
        let outcome = fs::read_to_string(folder.join("outcome")).unwrap();
        assert_eq!(status.code(), Some(0), "{outcome}");
    }
}

#[test]
fn a_rank_that_does_not_end_when_the_others_have_finished_makes_the_job_fail() {
    for before in ["", "finished; "] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let script = format!("{FINISH_IN_TURN}{before}exec sleep 1000");
        let mut launcher = LauncherProcess::start_with_known_store(folder, 2, false, 1, &script);
        assert_eq!(launcher.wait().code(), Some(137));
        let outcome = fs::read_to_string(folder.join("outcome")).unwrap();
        assert!(outcome.contains("rank 1 still ran"), "{outcome}");
    }
}

#[test]
fn a_rank_that_ends_with_0_and_says_nothing_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = "[ $RANK = 1 ] && exit 0; sleep 1000";
    let failure = failure_of(with_restarts(1, job(folder.path(), 2, script)));
    assert_eq!(failure.cause.rank, 1);
    assert_eq!(failure.restarts.len(), 1, "{failure}");
    assert_eq!(Outcome::Failed(failure).exit_code(), 1);
}

#[test]
fn the_last_event_of_a_job_that_is_given_up_is_the_loss_which_is_why() {
    let folder = tempfile::tempdir().unwrap();
    let events = Rc::new(RefCell::new(Vec::new()));
    let told = events.clone();
    let script = "[ $RANK = 1 ] && exit 3; exec sleep 1000";
    let launcher = Launcher::new(with_restarts(0, job(folder.path(), 2, script)));
    let outcome = launcher.tell_with(move |event| told.borrow_mut().push(event.clone()));
    let Outcome::Failed(failure) = outcome.run().unwrap() else {
        panic!("too few ranks are left");
    };
    let lost = "rank 1 ended with exit code 3";
    let events: Vec<String> = events
        .take()
        .iter()
        .map(|it| it.text().to_owned())
        .collect();
    assert!(
        events.len() == 1 && events[0].starts_with(lost),
        "{events:?}"
    );
    let headline = failure.headline();
    let why = "; the job cannot continue: ";
    assert!(
        headline.starts_with(lost) && headline.contains(why),
        "{headline}"
    );
}

#[test]
fn a_rank_that_ends_of_the_request_to_stop_takes_no_time_from_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Rank 0 takes longer to stop than the grace after a failure and the time to kill are.
    let script = "
        echo $$ > $DIR/new.$RANK
        if [ $RANK = 1 ]; then mv $DIR/new.1 $DIR/pid.1; exec sleep 1000; fi
        trap 'asked=1' TERM
        mv $DIR/new.0 $DIR/pid.0
        until [ \"$asked\" ]; do sleep 0.02; done
        while kill -0 $(cat $DIR/pid.1) 2>/dev/null; do sleep 0.02; done
        turn=0; while [ $turn -lt 100 ]; do sleep 0.02; turn=$((turn + 1)); done
        echo x > $DIR/stopped";
    let mut launcher = LauncherProcess::start_elastic(folder, (1, 2), 10, "", script);
    number_in(folder, "pid.0");
    number_in(folder, "pid.1");
    launcher.signal(Signal::INT);
    assert_eq!(launcher.wait().code(), Some(130));
    assert!(folder.join("stopped").exists());
}
