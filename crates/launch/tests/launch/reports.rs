//! What ranks say of their own ends, and what the launcher makes of it.

use std::fs;

use everburn_launch::{
    ElasticLaunch, LaunchConfig, Launcher, Outcome, RankReport, ReportKind, write_report,
};
use everburn_tests::{AssertContains, assert_matches};

use crate::process::{DEADLINE, failure_of, job, rank_job};

#[test]
fn a_rank_that_ends_with_0_and_does_not_say_that_it_has_finished_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let script = "[ $RANK = 1 ] && exit 0; finished";
    let failure = failure_of(LaunchConfig {
        // Time for rank 0 to finish, whichever comes first.
        grace: DEADLINE,
        ..job(folder.path(), 2, script)
    });
    assert_eq!(failure.cause.rank, 1);
    assert!(failure.others.is_empty(), "{failure}");
    let message = failure.to_string();
    message.assert_contains([
        "rank 1 exited with 0 and did not report that it had finished",
        "report_finished",
    ]);
    assert_eq!(Outcome::Failed(failure).exit_code(), 1);
}

#[test]
fn a_rank_that_says_that_it_has_finished_has_still_to_end_with_0() {
    let folder = tempfile::tempdir().unwrap();
    let failure = failure_of(job(folder.path(), 1, "finished; exit 3"));
    let message = failure.to_string();
    message.assert_contains(["exit code 3, after it had reported"]);
    assert_eq!(Outcome::Failed(failure).exit_code(), 3);
}

#[test]
fn a_rank_that_could_not_write_its_report_has_printed_why_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let script = "if [ $RANK = 0 ]; then exec sleep 600; fi
        printf 'error: the report is not written\\n  because: No space left on device\\nhelp: make room\\n' >&2; exit 1";
    let failure = failure_of(job(folder.path(), 2, script));
    let message = failure.to_string();
    let first = message.lines().next().unwrap();
    assert_eq!(
        first,
        "rank 1 ended with exit code 1: the report is not written"
    );
    message.assert_contains([
        "\n  because: No space left on device\n",
        "\n  help: make room\n",
    ]);
}

#[test]
fn a_job_whose_ranks_were_stopped_themselves_has_not_succeeded() {
    for script in ["stopped", "[ $RANK = 1 ] && stopped || finished"] {
        let folder = tempfile::tempdir().unwrap();
        let outcome = Launcher::new(job(folder.path(), 2, script)).run().unwrap();
        assert_matches!(outcome, Outcome::Interrupted { .. });
        assert_eq!(outcome.exit_code(), 130);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut elastic = job(folder.path(), 2, "stopped");
    elastic.elastic = Some(ElasticLaunch::new(1, 2));
    let outcome = Launcher::new(elastic).run().unwrap();
    assert_eq!(outcome.exit_code(), 130, "{outcome}");
}

#[test]
fn a_failure_goes_before_a_stop_and_a_word_before_both_does_not_excuse_an_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let script = "[ $RANK = 1 ] && exit 7; stopped";
    let failure = failure_of(job(folder.path(), 2, script));
    assert_eq!(failure.cause.rank, 1);
    assert_eq!(Outcome::Failed(failure).exit_code(), 7);
    let folder = tempfile::tempdir().unwrap();
    let failure = failure_of(job(folder.path(), 1, "stopped; exit 3"));
    assert_eq!(Outcome::Failed(failure).exit_code(), 3);
}

#[test]
fn a_rank_of_its_own_job_is_never_not_needed() {
    let folder = tempfile::tempdir().unwrap();
    let failure = failure_of(job(folder.path(), 1, "not_needed"));
    assert_eq!(Outcome::Failed(failure).exit_code(), 1);
}

#[test]
fn a_rank_that_has_survived_a_panic_may_finish() {
    let folder = tempfile::tempdir().unwrap();
    let config = rank_job(folder.path(), 1, "survives a panic");
    let error = config.error_path(0);
    let outcome = Launcher::new(config).run().unwrap();
    assert_eq!(outcome.exit_code(), 0, "{outcome}");
    // The first report stays, and what is only attempted makes none.
    let report = RankReport::read(&error).unwrap();
    assert!(report.message.contains("\ncaught"), "{report:?}");
}

#[test]
fn a_report_of_an_earlier_run_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let config = job(folder.path(), 1, "exit 0");
    fs::create_dir_all(&config.log_dir).unwrap();
    let old = RankReport::new(0, ReportKind::Own, "old");
    write_report(&config.error_path(0), &old).unwrap();
    let old = RankReport::new(0, ReportKind::Finished, "");
    write_report(&config.finished_path(0), &old).unwrap();
    assert_eq!(failure_of(config).cause.report, None);
}

#[test]
fn a_stopped_rank_that_is_left_after_a_failure_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
        if [ $RANK = 1 ]; then echo $$ > $DIR/new; mv $DIR/new $DIR/pid; kill -STOP $$; fi
        until [ -f $DIR/pid ]; do sleep 0.01; done
        until grep -q ') T ' /proc/$(cat $DIR/pid)/stat; do sleep 0.01; done
        exit 7";
    let failure = failure_of(LaunchConfig {
        grace: DEADLINE * 100,
        kill_after: DEADLINE * 100,
        ..job(folder.path(), 2, script)
    });
    assert_eq!(failure.cause.rank, 0);
    assert!(
        failure.others.iter().all(|rank| rank.ended_by_launcher),
        "{failure}"
    );
}

/// Without heartbeats, a rank hears of another one that has given up, and of the stopped rank nobody speaks.
#[test]
fn a_rank_that_was_stopped_comes_before_the_one_that_waited_for_it_in_vain() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
        if [ $RANK = 1 ]; then echo $$ > $DIR/new; mv $DIR/new $DIR/pid; kill -STOP $$; fi
        until [ -f $DIR/pid ]; do sleep 0.01; done
        until grep -q ') T ' /proc/$(cat $DIR/pid)/stat; do sleep 0.01; done
        said='"kind":"aborted","message":"rank 2 aborted the group","unix_time_ms":1'
        if [ $RANK = 0 ]; then echo "{\"rank\":0,\"lost_rank\":2,$said}" > $EVERBURN_ERROR_FILE; fi
        exit 75"#;
    let failure = failure_of(LaunchConfig {
        grace: DEADLINE,
        ..job(folder.path(), 3, script)
    });
    assert_eq!(failure.stopped, [1]);
    let text = failure.to_string();
    assert!(
        text.starts_with("rank 1 was stopped (SIGSTOP), and the launcher has ended it: rank "),
        "{text}"
    );
}
