//! What a training says at its end.

use everburn_launch::{EXIT_UNAVAILABLE, EndedRank, LostMachine, RankExit, RankReport, ReportKind};
use everburn_record::Live;
use everburn_tests::AssertContains;

use super::*;

#[test]
fn an_elastic_job_without_a_checkpoint_here_is_not_advised_to_start_again() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("a")).unwrap();
    assert!(how_to_continue(&run).ends_with("the same command starts again"));
    let config = "[ranks]\nnodes = 2\nelastic = \"1:4\"\n";
    std::fs::write(run.config_path(), config).unwrap();
    let help = how_to_continue(&run);
    assert!(help.ends_with("the command of each machine, as before, starts again"));
    let live = Live {
        step: 12,
        ..Live::default()
    };
    live.write(&run.path().join(Live::FILE)).unwrap();
    let help = how_to_continue(&run);
    assert!(help.contains("in a-node-1/checkpoints"), "{help}");
    assert!(!help.contains("starts again"), "{help}");
    // A checkpoint here may be older than theirs.
    std::fs::create_dir_all(run.checkpoints().join("epoch-0001")).unwrap();
    how_to_continue(&run).assert_contains([
        "continues from the checkpoint epoch-0001",
        "; but another machine of this elastic job may have written newer ones, in a-node-1/checkpoints",
    ]);
}

#[test]
fn the_folder_of_another_machine_leads_to_the_checkpoints_of_machine_0() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(runs.path().join("a-node-1")).unwrap();
    std::fs::write(run.config_path(), "[ranks]\nnodes = 2\n").unwrap();
    let help = how_to_continue(&run);
    let first = format!(
        "{} on machine 0; start every",
        runs.path().join("a").display()
    );
    help.assert_contains(["a-node-1 has no checkpoint to continue from: ", &first]);
    assert!(!help.contains("starts again"), "{help}");
}

#[test]
fn metrics_read_as_in_the_lines_of_the_epochs() {
    let metrics = [("mae".to_owned(), 0.000_25), ("top2".to_owned(), 1.0)];
    let line = tested(None, "", 0.000_5, &BTreeMap::from(metrics));
    assert_eq!(line, "test loss 0.0005  mae 0.00025  top2 1.0000");
    let metrics = [
        ("mae".to_owned(), f64::NAN),
        ("mse".to_owned(), f64::INFINITY),
    ];
    let line = tested(None, "", 0.5, &BTreeMap::from(metrics));
    assert_eq!(line, "test loss 0.5000  mae NaN  mse inf");
}

#[test]
fn another_machine_than_the_first_does_not_say_that_there_is_a_checkpoint() {
    let met = help_without_checkpoints(false, false);
    assert!(met.ends_with("with --resume if machine 0 has a checkpoint, else without"));
    let before = help_without_checkpoints(true, false);
    assert!(
        before.ends_with("of each machine again, without --resume"),
        "{before}"
    );
    let resumed = help_without_checkpoints(true, true);
    assert!(resumed.ends_with("of each machine again"), "{resumed}");
}

/// Rank 2 has ended with `exit`, and said so.
pub(crate) fn failure(exit: RankExit, message: &str) -> JobFailure {
    let cause = EndedRank {
        report: Some(RankReport::new(2, ReportKind::Own, message)),
        ..EndedRank::new(2, exit)
    };
    JobFailure::new(cause, "rank-2.log")
}

#[test]
fn a_job_whose_rank_or_machine_was_killed_stood_still_or_was_lost_is_continued() {
    let of = |exit| failure(exit, "rank 2 itself has not run");
    assert!(may_do_better(&of(RankExit::Code(EXIT_STALLED))));
    assert!(may_do_better(&of(RankExit::Signal(9))));
    assert!(!may_do_better(&of(RankExit::Code(1))));
    let lost = LostMachine {
        number: 0,
        ranks: vec![0, 1],
        host: None,
    };
    assert!(may_do_better(&JobFailure {
        lost_machine: Some(lost),
        ..of(RankExit::Code(EXIT_UNAVAILABLE))
    }));
}

#[test]
fn a_job_that_ends_before_its_first_checkpoint_says_how_it_starts_again_and_loses_less() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("a")).unwrap();
    let arguments = TrainArguments::default();
    let help = |exit, message: &str| {
        let outcome = Outcome::Failed(Box::new(failure(exit, message)));
        help_after(&outcome, &arguments, &run)
    };
    let configure = |ranks: &str| {
        let config = format!("model = \"mnist\"\n[ranks]\n{ranks}");
        std::fs::write(run.config_path(), config).unwrap();
    };
    configure("ranks = 2\n");
    let killed = help(RankExit::Signal(9), "").unwrap();
    let parts = [
        "no checkpoint to continue from: the same command starts again; --checkpoint-every 10min ",
        "; --elastic continues without a rank",
    ];
    assert!(parts.iter().all(|part| killed.contains(part)), "{killed}");
    configure("ranks = 1\nnodes = 2\nelastic = \"1:2\"\n");
    let elastic = help(RankExit::Signal(9), "").unwrap();
    assert!(!elastic.contains("--elastic "), "{elastic}");
    configure("ranks = 1\nnodes = 2\n");
    let machines = help(RankExit::Signal(9), "").unwrap();
    machines.assert_contains(["the command of each machine, as before,"]);
    assert_eq!(help(RankExit::Code(1), "the data are gone"), None);
    let full = TrainError::Write {
        path: run.report_path(),
        reason: "No space left on device (os error 28)".to_owned(),
    };
    let full = help(RankExit::Code(1), &full.to_string()).unwrap();
    full.assert_contains([
        "make it writable (room, permission) or name a --run-dir on another disk",
    ]);
}

#[test]
fn an_epoch_that_was_not_finished_has_the_number_that_its_progress_had() {
    let told = |finished, unfinished_epoch| {
        epochs(&TrainingReport {
            epochs: finished,
            unfinished_epoch,
            ..TrainingReport::default()
        })
    };
    assert_eq!(told(1, None), "1 epoch  ");
    assert_eq!(told(10, Some(11)), "10 epochs and part of epoch 11  ");
    assert_eq!(told(0, Some(1)), "part of epoch 1  ");
    assert_eq!(told(0, None), "");
}

#[test]
fn a_time_that_does_not_count_from_the_beginning_says_so() {
    let taken = |steps_since_resume| {
        let report = TrainingReport {
            steps: 9,
            steps_since_resume,
            seconds: 2.0,
            ..TrainingReport::default()
        };
        time_taken(&report).split_off(units::seconds(2.0).len())
    };
    assert_eq!(taken(9), "");
    assert_eq!(taken(4), " since the resume");
}
